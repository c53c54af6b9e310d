"""Disk use of runs, and removing them without pulling the floor from under others."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, reason
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.heartbeat import read_heartbeat
from arcnb.lab.runs.manifest import MANIFEST
from arcnb.lab.runs.named_paths import pieces, texts
from arcnb.lab.runs.run import SILENCE_SECONDS, Run, is_run, runs_root

# A folder moves to .removed.PID, below the root, first, so that no half of it looks like a run.
REMOVED = ".removed"
_RUN_FOLDER = re.compile(r"\d{8}-\d{6}-.+")


def disk_bytes(folder: Path) -> int:
    """Bytes that the files of a folder take on disk; a file with several names counts once."""
    seen, total = set(), 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                state = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            if (state.st_dev, state.st_ino) not in seen:
                seen.add((state.st_dev, state.st_ino))
                total += state.st_blocks * 512
    return total


def folders_without_manifest() -> list[Path]:
    """Folders below the root that are named as runs are and are none, for want of a manifest: half deleted
    ones, say. And those whose removal was interrupted, or is under way."""
    named = sorted(runs_root().glob("[0-9]*-[0-9]*-*/"))
    half = [path for path in named if _RUN_FOLDER.fullmatch(path.name) and not (path / MANIFEST).exists()]
    return half + sorted(runs_root().glob(f"{REMOVED}.*/*/"))


def pointers(runs: Iterable[Run]) -> dict[Path, set[Path]]:
    """run folder -> folders of the runs whose manifests point to it, as a parent, by a parameter or a
    reference: by its path, or by its name, which is unique and stays when all of them are moved or copied.
    Manifests of other versions are read as far as they can be: they count, too."""
    folders = {run.path.resolve() for run in runs}  # the root may be a link, and paths in texts are resolved
    found: dict[Path, set[Path]] = {}
    for folder in folders:
        manifest = _manifest_as_it_is(folder)
        pointing = [manifest.get(key) for key in ("parents", "parameters", "references")]
        cwd = str(manifest.get("cwd") or "")
        named = {run for text in texts(pointing) for run in _runs_in_text(text, folders, cwd)}
        for target in named - {folder}:
            found.setdefault(target, set()).add(folder)
    return found


def refuse_at_work(runs: Sequence[Run]) -> None:
    """ArcnbError for the first of the runs that is running, or that a scheduler is about to start."""
    for run in runs:
        try:
            (status, why), waits_for = run.verdict(), run.manifest.get("waits_for")
        except ArcnbError:  # of another version, or broken: its heartbeat alone says whether it is at work
            beat = read_heartbeat(run.path)
            if beat and beat["age"] < SILENCE_SECONDS:
                raise ArcnbError(
                    f"{run.path} has a heartbeat {beat['age']:.0f} s old; stop it before you remove it"
                ) from None
            continue
        if status == "running":
            doubt = f" {why}; if it is dead, delete the folder by hand" if why else ""
            raise ArcnbError(f"{run.path} is running{doubt or '; stop it before you remove it'}")
        if waits_for:
            raise ArcnbError(f"{run.path} waits as {waits_for}; arcnb cancel it first")


def refuse_needed(runs: Sequence[Run]) -> None:
    """ArcnbError for the first of the runs that a run which stays points to."""
    going = {run.path.resolve() for run in runs}
    pointed = pointers(list_runs())
    for run in runs:
        if staying := sorted(pointed.get(run.path.resolve(), set()) - going):
            if len(staying) > 1:
                needed = f"{staying[0].name} and {len(staying) - 1} more point to it; remove those"
            else:
                needed = f"{staying[0].name} points to it; remove that"
            raise ArcnbError(f"{run.path.name} is kept: {needed} first or --force")


def remove(run: Run) -> None:
    """Remove the folder; ArcnbError in one sentence if that is impossible, or if it is not of a run. One of
    which nothing could be removed stays where it is."""
    if not is_run(run.path):
        raise ArcnbError(f"{run.path} is not a run of arcnb, so it is left alone")
    if run.path.is_symlink():
        raise ArcnbError(f"{run.path} is a link to {run.path.resolve()}; remove both by hand")
    bin_ = runs_root() / f"{REMOVED}.{os.getpid()}"  # of this process: others may not write into ours
    target, whole = run.path, sorted(run.path.rglob("*"))
    try:
        if run.path.parent.resolve() == runs_root().resolve():
            bin_.mkdir(exist_ok=True)
            target = run.path.rename(bin_ / run.path.name)
        shutil.rmtree(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            if sorted(target.rglob("*")) == [target / path.relative_to(run.path) for path in whole]:
                target = target.rename(run.path)
        left = "" if target == run.path else f"; what is left of it is {target}"
        raise ArcnbError(f"cannot remove {run.path}: {reason(error)}{left}") from None
    finally:
        with contextlib.suppress(OSError):
            bin_.rmdir()


def _manifest_as_it_is(folder: Path) -> Mapping[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _runs_in_text(text: str, folders: set[Path], cwd: str) -> set[Path]:
    """Run folders whose path is in the text, or that a path in the text (of several, see named_paths) lies
    in, here or where the runs were before. Relative ones start from `cwd`."""
    found = set()
    called = {folder.name: folder for folder in folders}
    for piece in pieces(text):
        if "/" in piece and len(piece) < 4096:
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # it is no path, then
                path = (cwd / Path(piece).expanduser()).resolve()
                found |= {folder for folder in (path, *path.parents) if folder in folders}
                found |= {called[part] for part in Path(piece).parts if part in called}
    return found
