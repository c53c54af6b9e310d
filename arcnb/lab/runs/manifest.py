"""manifest.json: what a run was given, where it ran, how it ended. Written whole, read by anyone.

Keys (schema 1; times are ISO 8601 in UTC):

    schema, name, notebook {path, sha256} | null, parameters {}, parents [run folders], command
    cwd                         the folder that relative paths in the parameters start from: where the run was
                                started or queued, and where the kernel of every attempt works; null if it
                                was gone by then
    git, packages, hardware     see arcnb.lab.runs.provenance; of the last attempt
    status                      queued | running | done | failed | preempted | killed, as last written;
                                `Run.status` is the truthful one: it notices a vanished process
    start, end, seconds         of the last attempt; of a queued run, when it was queued
    process                     see arcnb.machine.processes; the one that will write `end`
    job                         the scheduler's job that the process belongs to ("slurm 12_3"), or null
    owner                       "engine" (arcnb run, papermill --engine arcnb) or "notebook" (anything else)
    cell                        {index, of, title} | null: where the run was when it ended; index from 1
    stop                        {signal, time} | null: the request to stop, if one came
    error                       {type, message, sentence}; null unless failed, preempted or killed
    peak_memory_gb              of the kernel and its children, sampled
    lost_outputs                [numbers of cells, from 1] of whose outputs the last did not come, or null
    attempts                    [status, start, end, error] of the attempts before a resume
    outcome {}, artifacts [{path, bytes}]
    report_problem              only of a run whose HTML page could not be written: why; null once it was

Only in runs that were queued first (arcnb.lab.runs.queueing):

    references                  {stage: run folder} that `${stage...}` in the parameters speaks of
    waits_for                   the scheduler's job that is to run it ("slurm 12_3"), until it starts
    inputs                      what a pipeline stage depends on, with their fingerprints
"""

import dataclasses
import json
import math
import os
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, reason
from arcnb.machine import locks
from arcnb.machine.files import write_whole
from arcnb.values import misfit

RUNS = "ARCNB_RUNS"  # the root of all runs
RUN_DIR = "ARCNB_RUN_DIR"  # set for the kernel by the engine: the run folder it belongs to
JOB = "ARCNB_JOB"  # set by the script of a submitted job: "slurm 12_3", "htcondor 7.0"

SCHEMA = 1
MANIFEST = "manifest.json"
STATUSES = ("queued", "running", "done", "failed", "preempted", "killed")


_ERROR = {"sentence?": "str"}
_PLACE = {"index": "int", "of": "int", "title": "str"}
_SHAPE = {
    "name": "str", "notebook?": {"path": "str"}, "parameters": "dict[str, Any]", "parents": "list[str]",
    "command?": "list[str]", "cwd~": "str", "git?": {"commit": "str", "dirty?": "bool"}, "packages": "dict",
    "hardware": {
        "host": "str", "cpu?": "str", "cores?": "int", "memory_gb?": "int | float",
        "gpus": [{"name": "str", "memory_gb": "int | float"}],
    },
    "status": "str", "start": "str", "end?": "str", "seconds?": "int | float", "owner": "str", "job?": "str",
    "process": {"host": "str", "pid": "int"}, "kernel?": {"host": "str", "pid": "int"}, "cell?": _PLACE,
    "stop?": {"signal": "str"}, "error?": _ERROR, "peak_memory_gb?": "int | float",
    "attempts": [{"status": "str", "error~": _ERROR}], "outcome": "dict[str, Any]",
    "artifacts": [{"path": "str", "bytes": "int"}], "report_problem~": "str", "lost_outputs~": "list[int]",
    "references~": "dict[str, str]", "waits_for~": "str", "inputs~": "dict[str, Any]",
}  # fmt: skip
BEAT = {"time": "str", "cell~": _PLACE, "progress~": "str"}  # of heartbeat.json


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def stamp() -> str:
    """The time in UTC as folders are named after it, to the second."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S")


def seconds_between(start: str, end: str) -> float:
    """0 where the clock was set back between the two."""
    return max(0.0, round((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds(), 3))


def cause(sentence: str | None, kind: str | None = None, message: str | None = None) -> dict[str, Any]:
    """The key `error`: why a run ended before its notebook did. `kind` and `message` are of the exception."""
    return {"type": kind, "message": message, "sentence": sentence}


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        raise ArcnbError(f"{folder} is not a run folder: it holds no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ArcnbError(f"{path} cannot be read: {reason(error)}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("schema"), int):
        raise ArcnbError(f"{path} is not a manifest of arcnb: it has no schema number")
    if manifest["schema"] != SCHEMA:
        raise ArcnbError(
            f"{path} has schema {manifest['schema']}, this version of arcnb reads schema {SCHEMA}"
        )
    wrong = misfit(manifest, _SHAPE, "it")
    try:
        datetime.fromisoformat(manifest["start"] if not wrong else now())
    except ValueError:
        wrong = f"start is {manifest['start']!r}"
    if wrong:
        raise ArcnbError(f"{path} is damaged: {wrong}")
    return manifest


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_whole(folder / MANIFEST, json.dumps(plain(manifest), indent=2, ensure_ascii=False) + "\n")


def working_folder(manifest: dict[str, Any]) -> str | None:
    """The folder that its relative paths start from, None where that is not known or cannot be entered
    here."""
    folder = manifest.get("cwd")
    return folder if folder and os.path.isdir(folder) and os.access(folder, os.X_OK) else None


def locked(folder: Path) -> AbstractContextManager[bool]:
    """One reader-then-writer of the manifest at a time: the runner and its kernel both add to it.

    The folder itself is locked, so no lock file stays behind. Some network file systems cannot do that; there
    two changes in the same millisecond may still lose one.
    """
    return locks.locked(folder, is_folder=True)


def plain(value: Any) -> Any:
    """Turn numpy scalars and arrays, data frames, dataclasses, paths and sets into what JSON holds; NaN into
    null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a pandas DataFrame: a list of rows
        return [plain(row) for row in value.to_dict(orient="records")]
    if hasattr(value, "to_dict"):  # a pandas Series
        return plain(value.to_dict())
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist())
    return str(value)
