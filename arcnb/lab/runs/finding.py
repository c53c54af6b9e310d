"""Finding runs: all of them, those of a name, and the one that a text means."""

import contextlib
import os
from pathlib import Path

from arcnb.errors import ArcnbError, nearest, reason
from arcnb.lab.runs.manifest import MANIFEST, read_manifest
from arcnb.lab.runs.run import Run, is_run, runs_root


def list_runs() -> list[Run]:
    """All run folders below the root, oldest first. ArcnbError for a root that cannot be listed."""
    root = runs_root()
    try:
        os.scandir(root).close()  # glob finds nothing where it may not look
    except FileNotFoundError:  # nothing has run yet
        return []
    except OSError as error:
        raise ArcnbError(f"{root} cannot be listed: {reason(error)}") from None
    return [Run(path.parent) for path in sorted(root.glob(f"*/{MANIFEST}"))]


def runs_called(name: str) -> list[Run]:
    """All readable runs of exactly that name, newest first."""
    found = []
    for run in reversed(list_runs()):
        if name in run.path.name:
            with contextlib.suppress(ArcnbError):  # an unreadable one is none that anybody asked for
                found += [run] if run.name == name else []
    return found


def find_run(reference: str | Path, beginnings: bool = True) -> Run:
    """A run by its folder's path, its folder's name, a beginning of that which fits one run only (unless
    `beginnings` is false: for what cannot be undone), or its run name (the newest of several)."""
    if not str(reference).strip():
        raise ArcnbError("an empty text names no run")
    root = runs_root()
    folder = Path(os.path.realpath(reference))  # which a link that leads to itself does not disturb
    if is_run(folder):
        return Run(folder)
    fits = [run for run in list_runs() if run.path.name.startswith(str(reference))] if beginnings else []
    if is_run(root / reference):
        return Run(root / reference)
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise ArcnbError(
            f"{str(reference)!r} fits {len(fits)} runs in {root}, the last is {fits[-1].path.name}"
        )
    if newest := _newest(str(reference)):
        return newest
    for place in (folder, root / reference):
        if place.parent == root and os.path.isdir(place):
            read_manifest(place)  # which says what is wrong with it
    known = nearest(str(reference), run_names())
    raise ArcnbError(f"there is no run {str(reference)!r}, neither as a path nor in {root}{known}")


def run_names() -> set[str]:
    """What the folders of all runs are called."""
    return {run.called for run in list_runs()}


def named_exactly(name: str) -> Run | None:
    """The run whose folder below the root has this name, else the newest of this run name."""
    if "/" not in name and is_run(runs_root() / name):
        return Run(runs_root() / name)
    return _newest(name)


def _newest(name: str) -> Run | None:
    """The newest run of this name; if no readable one has it, the newest whose folder is called so: whoever
    reads its manifest hears what is wrong with it."""
    found = runs_called(name) or [run for run in reversed(list_runs()) if run.called == name]
    return next(iter(found), None)
