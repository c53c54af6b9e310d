"""The run folder of a GRPO run: which checkpoints it keeps, and what a resumed run sets aside in it."""

from __future__ import annotations

import shutil
from pathlib import Path

from arcnb.machine.files import remove_oldest, replaced_folder
from arcnb.models.training.checkpoints import newest_complete, set_aside_log, step_of

ROLLBACKS = "rollbacks.json"  # beside the checkpoints, which it outlives
PAGES = "collapse-step*.html"  # of alarms, in the run folder


def keep_best(checkpoint: Path, best: Path) -> Path:
    """Copy a checkpoint into the folder `best` and drop what was the best before.

    Copied and not linked: a signal can make the trainer write the same checkpoint once more, in place.
    """
    best.mkdir(parents=True, exist_ok=True)
    kept = best / checkpoint.name
    copy_whole(checkpoint, kept)
    for old in best.glob("checkpoint-*"):
        if old != kept:
            shutil.rmtree(old)
    return kept


def copy_whole(checkpoint: Path, target: Path) -> None:
    """Copy a checkpoint, whole or not at all; nothing is done where there is one of this name."""
    if not target.exists():
        with replaced_folder(target) as work:
            shutil.copytree(checkpoint, work, dirs_exist_ok=True)


def prune(folder: Path, budget_gb: float) -> list[Path]:
    """Delete the oldest checkpoints until all together fit budget_gb (GiB; 0: no limit); returns the deleted.

    The newest complete one stays, whatever it takes.
    """
    if not budget_gb:
        return []
    checkpoints = sorted((p for p in folder.glob("checkpoint-*") if step_of(p) >= 0), key=step_of)
    newest = newest_complete(folder, announce=lambda sentence: None)
    return remove_oldest(checkpoints, budget_gb * 2**30, {newest})


def set_aside(output: Path, step: int) -> Path | None:
    """Move what a run wrote after `step` (-1: all of it) out of the way of the run that goes on from there.

    Metrics lines, predictions, evaluations, completion tables and a best checkpoint of later steps go to
    `abandoned/N/`, with all of it the number of rollbacks and the pages of alarms too; later checkpoints are
    deleted. Returns that folder, or None where nothing was later.
    """
    moved: list[tuple[Path, str]] = []
    # Rollouts of round N were sampled to make step N + 1; the completions table is named after the step made.
    for folder, pattern, position, first in (
        ("rollouts", "round*.parquet", slice(5, 10), step),
        ("guided", "round*.parquet", slice(5, 10), step),
        ("held_out", "round*.parquet", slice(5, 10), step + 1),
        ("evaluation", "round*.parquet", slice(5, 10), step + 1),
        ("evaluation", "_conditions-round*.json", slice(17, 22), step + 1),
        ("checkpoints/completions", "completions_*.parquet", slice(12, 17), step + 1),
    ):
        for path in sorted((output / folder).glob(pattern)):
            if int(path.name[position]) >= first:
                moved.append((path, f"{Path(folder).name}/{path.name}"))
    for path in sorted((output / "best").glob("checkpoint-*")):
        if step_of(path) > step:
            moved.append((path, f"best/{path.name}"))
    rollbacks = output / "checkpoints" / ROLLBACKS
    if step < 0:
        moved += [(path, path.name) for path in sorted(output.glob(PAGES))]
        if rollbacks.is_file():
            moved.append((rollbacks, ROLLBACKS))
    return set_aside_log(output, step, moved)
