"""Run folders made before their notebook runs: members of a sweep, jobs that wait for a scheduler.

A queued run has its folder, its manifest and its parameters; `arcnb run --resume FOLDER` starts it, here or
on a node, once or again after it was stopped. That is all that sweeps, pipelines and clusters add to a run.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.runs import disk
from arcnb.lab.runs.finding import runs_called
from arcnb.lab.runs.manifest import MANIFEST, locked
from arcnb.lab.runs.provenance import notebook_record
from arcnb.lab.runs.run import Run, check_name, folder_of, new_run, runs_root

_STARTED = ("log.txt", "job")  # what starting a queued run leaves in its folder


def queue_run(
    name: str,
    notebook: Path,
    values: Mapping[str, Any],
    surroundings: Mapping[str, Any],
    references: Mapping[str, Run] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Run:
    """A new run folder with status queued.

    `values` are all parameters, `surroundings` what `provenance.surroundings()` said (asked once for many),
    `references` the runs that `${stage...}` in the values speaks of: they are looked up when the run starts.
    `inputs`: see arcnb.lab.runs.fingerprints; worked out at the start where they cannot be known before.
    """
    for parameter, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ArcnbError(f"{name}: no run can wait with {parameter} = {value}, which no manifest holds")
    fields: dict[str, Any] = {"status": "queued", **surroundings}
    if references is not None:
        fields["references"] = {stage: str(run.path) for stage, run in references.items()}
    if inputs is not None:
        fields["inputs"] = dict(inputs)
    return new_run(name, dict(values), notebook_record(notebook), "engine", None, fields)


def foreseen_run(name: str) -> Run:
    """The run that `queue_run` would make now, as a dry run speaks of it: its folder is not there."""
    check_name(name)
    return Run(folder_of(name))


@contextlib.contextmanager
def taken(name: str | None) -> Iterator[None]:
    """While active no other process makes a run of that name; ArcnbError if there is one. Without a name
    nothing."""
    if not name:
        yield
        return
    check_name(name)
    with alone():
        refuse_taken(name)
        yield


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """While active no other process is within such a block: one that looks whether a run is there, and makes
    it."""
    root = runs_root()
    with contextlib.suppress(OSError):  # who makes the run says it
        root.mkdir(parents=True, exist_ok=True)
    with locked(root) if root.is_dir() else contextlib.nullcontext():
        yield


def refuse_taken(name: str) -> None:
    """ArcnbError if a run of that name exists: results under one name should be of one run. One that failed
    and left nothing, as where its first cells refuse a parameter, has none."""
    for taken in runs_called(name):
        if _left_nothing(taken):
            continue
        raise ArcnbError(
            f"there is a run called {name!r} already, {taken.path} ({taken.status}); take another name, "
            "go on in it by --resume, make a second one of that name by --again, or remove it by arcnb rm"
        )


def _left_nothing(run: Run) -> bool:
    """Did it fail at its first attempt, with nothing in its folder but the account of that?"""
    manifest = run.manifest
    if manifest["status"] != "failed" or any(manifest[key] for key in ("outcome", "artifacts", "attempts")):
        return False
    account = (MANIFEST, run.copy_path.name, run.page_path.name, *_STARTED)
    return all(path.name in account for path in run.path.iterdir())


def withdraw(runs: Iterable[Run]) -> list[Run]:
    """Remove those that were queued for something which was then refused, and which nobody has started."""
    waiting = [run for run in runs if run.manifest["status"] == "queued" and not run.manifest["attempts"]]
    for run in waiting:
        disk.remove(run)
    return waiting
