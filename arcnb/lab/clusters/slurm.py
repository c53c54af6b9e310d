"""Slurm by its own command line: sbatch, squeue, scancel; sacct where there is an accounting database."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from arcnb.lab.clusters.jobs import ClusterJob
from arcnb.lab.clusters.scripts import render, script_texts
from arcnb.lab.clusters.tools import ENDED, HELD, RUNNING, WAITING, JobState, SchedulerError, call, owner

NAME = "slurm"

_PHASES = {
    WAITING: ("PENDING", "REQUEUED", "REQUEUE_FED", "SUSPENDED", "RESV_DEL_HOLD"),
    HELD: ("REQUEUE_HOLD", "SPECIAL_EXIT"),
    RUNNING: ("RUNNING", "CONFIGURING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"),
}
_HELD_REASONS = ("JobHeldUser", "JobHeldAdmin")


def job_texts(job: ClusterJob, after: Sequence[str] = ()) -> dict[Path, str]:
    """What is to be written into job.sbatch, runs.txt and task.sh; `after`: jobs that must have ended well
    before."""
    output = str(job.folder / ("slurm-%A_%a.out" if job.is_array else "slurm-%j.out"))
    dependency = f"afterok:{':'.join(after)}" if after else ""
    text = render("slurm.sbatch.jinja", job=job, output=output, after=dependency)
    return {job.folder / "job.sbatch": text, **script_texts(job, NAME)}


def submit(job: ClusterJob) -> list[str]:
    """Submit the files of `job_texts`, which are written; the names of the tasks."""
    file = str(job.folder / "job.sbatch")
    try:
        answer = call(NAME, "sbatch", "--parsable", file, refused="Slurm refused the job")
    except SchedulerError as error:
        if "Invalid job array" not in str(error):
            raise
        more = f"{len(job.runs)} runs are more than the MaxArraySize of its configuration takes in one job"
        raise SchedulerError(f"{error}; {more}", refused=True) from None
    number = answer.strip().splitlines()[-1].partition(";")[0]
    return [f"{number}_{index}" for index in range(len(job.runs))] if job.is_array else [number]


def dependency(tasks: Sequence[str]) -> str:
    """What a job that is to wait for these tasks names: their whole job."""
    return tasks[0].partition("_")[0]


def states(tasks: Mapping[str, str]) -> dict[str, JobState]:
    """run folder -> state, of `tasks`: run folder -> task; without those that Slurm no longer knows."""
    users = ",".join(map(str, sorted(set(map(owner, tasks)))))  # who may have no names here
    answer = call(NAME, "squeue", "-h", "-r", "-t", "all", "-u", users, "-o", "%i|%T|%r|%N")
    found = {}
    for line in answer.splitlines():
        task, state, reason, node = line.split("|", 3)
        found[task] = _state(state, reason, node)
    missing = [task for task in tasks.values() if task not in found]
    found |= _accounted(missing) if missing else {}
    return {folder: found[task] for folder, task in tasks.items() if task in found}


def cancel(tasks: Sequence[str]) -> None:
    for start in range(0, len(tasks), 500):
        call(NAME, "scancel", *tasks[start : start + 500], refused="Slurm did not cancel")


def cluster() -> str:
    """The name of the cluster that answers here, or "": job numbers mean nothing elsewhere."""
    with contextlib.suppress(SchedulerError):
        answer = call(NAME, "scontrol", "show", "config")
        if match := re.search(r"^ClusterName\s*=\s*(\S+)", answer, re.M):
            return match[1]
    return ""


def _accounted(tasks: Sequence[str]) -> dict[str, JobState]:
    """What the accounting database remembers; nothing where there is none."""
    jobs = sorted({task.partition("_")[0] for task in tasks})
    try:
        answer = call(NAME, "sacct", "-n", "-P", "-X", "-j", ",".join(jobs), "-o", "JobID,State,NodeList")
    except SchedulerError:
        return {}
    rows = [line.split("|") for line in answer.splitlines() if line.count("|") == 2]
    return {task: _state(state.split()[0], "", node) for task, state, node in rows if task in tasks}


def _state(state: str, reason: str, node: str) -> JobState:
    phase = next((phase for phase, words in _PHASES.items() if state in words), ENDED)
    if phase == WAITING and reason in _HELD_REASONS:
        phase = HELD
    tell = reason if phase in (WAITING, HELD) and reason != "None" else ""
    return JobState(phase, f"{state} ({tell})" if tell else state, node)
