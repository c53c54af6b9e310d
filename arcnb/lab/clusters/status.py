"""What is true of a submitted run: what its scheduler says, and what its folder says (manifest, heartbeat).

Where the two contradict each other the scheduler is believed about processes, and the folder about results: a
run that its manifest calls running, though the scheduler has ended its task, has died, and that is written
down for good. Not of another user's run: schedulers may keep the jobs of others to themselves.
"""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.batch.workers import LOG
from arcnb.lab.clusters.submitting import SCHEDULERS, elsewhere, read_record
from arcnb.lab.clusters.tools import ENDED, RUNNING, JobState, SchedulerError, owner
from arcnb.lab.runs.heartbeat import place_text, read_heartbeat
from arcnb.lab.runs.manifest import MANIFEST, cause, locked, now, write_manifest
from arcnb.lab.runs.run import Run, stopped_early
from arcnb.machine.files import age_of
from arcnb.machine.processes import is_alive

WRITING = "writing the page"  # of a run that is done: its job's last seconds
SETTLING_SECONDS = 10.0  # what a run may take to write its end after the scheduler says it has ended


@dataclass(frozen=True)
class StatusLine:
    """One line of `arcnb status`."""

    run: Run
    task: str  # "slurm 12_3"
    scheduler: str  # its words, or why it could not be asked
    status: str
    news: str


def is_open(run: Run) -> bool:
    """Was it submitted, and may it still come to something?"""
    if read_record(run) is None:
        return False
    manifest = run.manifest
    return bool(manifest.get("waits_for")) or manifest["status"] in ("queued", "running", "preempted")


def status_lines(runs: Sequence[Run]) -> list[StatusLine]:
    """Of submitted runs, in their order. A scheduler that does not answer leaves what the folders say."""
    records = {run.path: record for run in runs if (record := read_record(run)) is not None}
    states: dict[Path, JobState | None] = {}
    troubles = _elsewhere(records)
    for name, scheduler in SCHEDULERS.items():
        tasks = {
            str(folder): record["task"]
            for folder, record in records.items()
            if record["scheduler"] == name and folder not in troubles
        }
        if not tasks:
            continue
        try:
            found = scheduler.states(tasks)
            states |= {Path(folder): found.get(folder) for folder in tasks}
        except SchedulerError as error:
            troubles |= {Path(folder): str(error) for folder in tasks}
    return [
        _line(run, records[run.path], states.get(run.path), troubles.get(run.path))
        for run in runs
        if run.path in records
    ]


def _elsewhere(records: Mapping[Path, Mapping[str, Any]]) -> dict[Path, str]:
    """run folder -> one sentence, of the runs that another cluster has: the silence of this one about them
    means nothing."""
    clusters = {(record["scheduler"], record.get("cluster")): record for record in records.values()}
    told = {key: elsewhere(record) for key, record in clusters.items()}
    found = {path: told[record["scheduler"], record.get("cluster")] for path, record in records.items()}
    return {path: sentence for path, sentence in found.items() if sentence}


def _line(run: Run, record: dict[str, str], state: JobState | None, trouble: str | None) -> StatusLine:
    task = f"{record['scheduler']} {state.task if state and state.task else record['task']}"
    ours = owner(run.path) == os.getuid()
    words = trouble or (_words(state) if state else "no longer known" if ours else "not told of another user")
    unwritten = ""
    try:
        if trouble is None and ours:
            try:
                settle(run, task, state)
            except ArcnbError as error:
                unwritten = str(error)
        status, news = _told(run, record, state)
    except ArcnbError as error:  # its manifest was removed or broken meanwhile
        status, news = "unreadable", str(error)
    return StatusLine(run, task, words, status, unwritten or news)


def _told(run: Run, record: Mapping[str, str], state: JobState | None) -> tuple[str, str]:
    """(status, news)"""
    status, why = run.verdict()
    waits = bool(run.manifest.get("waits_for"))
    if status == "running":
        news = _progress(run)
    elif status == "killed" and state is not None and state.phase == RUNNING and run.manifest["end"] is None:
        status, news = "silent", f"{why}, though {record['scheduler']} says it is running on {state.node}"
    elif state is not None and state.phase != ENDED and status not in ("done", "queued"):
        news = f"waits to go on; {why}" if why else "waits to go on"
    elif status == "done" and state is not None and state.phase == RUNNING:
        news = WRITING
    else:
        news = why or ""
    if status == "queued" and state is not None and state.phase == RUNNING:
        news = f"starting on {state.node}; see {run.path / LOG}"
    elif status == "queued" and not waits and not news:
        news = "not submitted any more"
    return status, news


def settle(run: Run, task: str, state: JobState | None) -> None:
    """Write the end of a run that its scheduler has ended (or no longer knows) and that could not write it
    itself: its node died, it was cancelled while it waited, its environment could not be made. If the task
    waits again, whoever wrote `running` is dead, too."""
    if state is not None and state.phase == RUNNING:
        return
    again = state is not None and state.phase != ENDED
    words = state.text if state else "no longer known to the scheduler"
    on = f" on {state.node}" if state and state.node else ""
    with locked(run.path):
        manifest = run.manifest
        if manifest["status"] == "running" and manifest["job"] == task:
            beat, alive = read_heartbeat(run.path), is_alive(manifest["process"])
            if alive or (beat and beat["age"] < SETTLING_SECONDS):
                return  # it is just writing its end
            if alive is None and age_of(run.path / MANIFEST) < SETTLING_SECONDS:
                return  # it began after the scheduler was asked
            seen = f"last heartbeat {beat['time']}" if beat else "no heartbeat left"
            where = manifest["process"]["host"]
            if manifest["stop"]:  # the scheduler did not wait for the end to be written
                return _write_end(run, manifest, stopped_early(manifest["stop"], seen), "preempted")
            if again:
                sentence = f"it died with its node {where} ({seen}); {task} is {words}"
            else:
                sentence = f"it died with its node or job: {task} is {words}{on or f' on {where}'} ({seen})"
            _write_end(run, manifest, sentence)
        elif not again and (manifest.get("waits_for") == task or _of_this_dag(manifest, task)):
            if manifest["status"] == "queued":
                sentence = f"it never started: {task} is {words}{on}{_said(run)}; see {run.path / LOG}"
                _write_end(run, manifest, sentence)
            else:  # a resubmission that came to nothing leaves the earlier end
                write_manifest(run.path, manifest | {"waits_for": None})


def _said(run: Run) -> str:
    """What the job's script came to grief by, if it began: the last line of the log behind its first one."""
    with contextlib.suppress(OSError):
        lines = (run.path / LOG).read_text(encoding="utf-8", errors="replace").split("\n== ")[-1].splitlines()
        if lines[1:]:
            return f", {re.sub(r'^.*: line [0-9]+: ', '', lines[-1])}"
    return ""


def write_cancelled(run: Run) -> None:
    """The end of a queued run that will not start."""
    with locked(run.path):
        manifest = run.manifest
        if manifest["status"] == "queued":
            _write_end(run, manifest, "before it started: cancelled")
        elif manifest.get("waits_for"):
            write_manifest(run.path, manifest | {"waits_for": None})


def _write_end(run: Run, manifest: dict[str, object], sentence: str, status: str = "killed") -> None:
    ended = {"status": status, "end": now(), "error": cause(sentence), "waits_for": None}
    write_manifest(run.path, manifest | ended)


def _of_this_dag(manifest: dict[str, object], task: str) -> bool:
    """A job of a DAG has got its own number in the meantime."""
    waits = str(manifest.get("waits_for") or "")
    return "(DAG)" in waits and waits.split()[0] == task.split()[0]


def _progress(run: Run) -> str:
    beat = read_heartbeat(run.path)
    if beat is None:
        return "no heartbeat yet"
    pieces = [place_text(beat), str(beat.get("progress") or ""), f"{beat['age']:.0f} s ago"]
    if beat.get("stop"):
        pieces.append("stopping")
    return ", ".join(piece for piece in pieces if piece)


def _words(state: JobState) -> str:
    return f"{state.text} on {state.node}" if state.phase == RUNNING and state.node else state.text
