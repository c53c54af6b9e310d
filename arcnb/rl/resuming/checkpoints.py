"""Checkpoints of a GRPO run: which settings one is of, which is kept, what a resumed run sets aside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.models.training.checkpoints import (
    STATE,
    newest_complete,
    plain_difference,
    refuse_differences,
    set_aside_log,
    step_of,
)

ROLLBACKS = "rollbacks.json"  # beside the checkpoints, which it outlives
PAGES = "collapse-step*.html"  # of alarms, in the run folder
STATE_KEY = "RunStateCallback"  # the name under which our own state stands in trainer_state.json


def saved_state(checkpoint: Path) -> dict:
    """What our RunState kept in a checkpoint; empty for a checkpoint of another program."""
    state = json.loads((checkpoint / STATE).read_text())
    return state.get("stateful_callbacks", {}).get(STATE_KEY, {}).get("attributes", {})


def refuse_other_settings(checkpoint: Path, settings: Mapping, accept: bool, announce=print) -> None:
    """ArcnbError that names every setting which differs from the checkpoint's, unless `accept`."""
    before = saved_state(checkpoint).get("settings")
    refuse_differences(checkpoint, before, settings, accept, announce, _difference)


def _difference(name: str, before, now) -> str:
    """One setting of a checkpoint that is another one now; tasks are named, and not all shown."""
    if name != "eval_task_versions" or before is None or now is None:
        return plain_difference(name, before, now)
    changed = [id_ for id_ in before if now.get(id_, before[id_]) != before[id_]]
    parts = {
        "are without": [id_ for id_ in before if id_ not in now],
        "have besides": [id_ for id_ in now if id_ not in before],
        "have another version of": changed,
    }
    said = [f"{what} {_some(sorted(ids))}" for what, ids in parts.items() if ids]
    return f"{name} now {', '.join(said)}"


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")


def evaluated_before(checkpoint: Path, eval_tasks: Mapping[str, str]) -> tuple[bool, str]:
    """(whether the evaluations before the checkpoint are of other tasks than these, what a reader of the
    held-out curves has to be told about it). eval_tasks: versions by id, as in the run's identity. A
    checkpoint that does not say its tasks counts as of others."""
    before = saved_state(checkpoint).get("settings") or {}
    never = before.get("eval_steps") == 0
    if not eval_tasks or never or before.get("eval_task_versions") == eval_tasks:
        return False, ""
    until = f"held-out evaluation up to step {step_of(checkpoint)}"
    return True, f"{until} was of other tasks: do not compare pass@k before and after it"


def keep_best(checkpoint: Path, best: Path) -> Path:
    """Copy a checkpoint into the folder `best`, whole or not at all, and drop what was the best before.

    Copied and not linked: a signal can make the trainer write the same checkpoint once more, in place.
    """
    best.mkdir(parents=True, exist_ok=True)
    kept = best / checkpoint.name
    if not kept.exists():
        partial = best / f".{checkpoint.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(checkpoint, partial)
        partial.rename(kept)
    for old in best.glob("checkpoint-*"):
        if old != kept:
            shutil.rmtree(old)
    return kept


def keep_best_copy(best: Path, target: Path) -> None:
    """Put a kept checkpoint back among the others."""
    kept = keep_best(best, target.parent / "restored")
    kept.rename(target)
    kept.parent.rmdir()


def size_of(folder: Path) -> int:
    """Bytes of all files below folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def prune(folder: Path, budget_gb: float, keep: Iterable[Path] = ()) -> list[Path]:
    """Delete the oldest checkpoints until all together fit budget_gb (GiB; 0: no limit); returns the deleted.

    The newest complete one and those in `keep` stay, whatever they take.
    """
    if not budget_gb:
        return []
    checkpoints = sorted((p for p in folder.glob("checkpoint-*") if step_of(p) >= 0), key=step_of)
    newest = newest_complete(folder, announce=lambda sentence: None)
    sizes = {path: size_of(path) for path in checkpoints}
    total = sum(sizes.values())
    deleted = []
    for path in checkpoints:
        if total <= budget_gb * 2**30:
            break
        if path == newest or path in set(keep):
            continue
        shutil.rmtree(path)
        total -= sizes[path]
        deleted.append(path)
    return deleted


def set_aside(output: Path, step: int) -> Path | None:
    """Move what a run wrote after `step` (-1: all of it) out of the way of the run that goes on from there.

    Metrics lines, predictions, completion tables and a best checkpoint of later steps go to `abandoned/N/`,
    with all of it the number of rollbacks and the pages of alarms too; later checkpoints are deleted. Returns
    that folder, or None where nothing was later.
    """
    moved: list[tuple[Path, str]] = []
    for folder, pattern, position in (
        ("rollouts", "round*.parquet", slice(5, 10)),
        ("held_out", "round*.parquet", slice(5, 10)),
        ("checkpoints/completions", "completions_*.parquet", slice(12, 17)),
    ):
        # Rollouts of round N were sampled to make step N + 1, the completions table is named after the step
        # made.
        first = step if folder == "rollouts" else step + 1
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


def abandoned_rollouts(output: Path) -> list[PredictionSet]:
    """The rollouts of steps that were undone by a resume or a rollback, one set an event."""
    return [PredictionSet(folder) for folder in sorted(output.glob("abandoned/*/rollouts"))]
