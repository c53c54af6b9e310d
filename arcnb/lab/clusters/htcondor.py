"""HTCondor by its own command line: condor_submit, condor_submit_dag, condor_q, condor_history, condor_rm.

A task carries its run folder as the attribute ArcnbRun, so that it is found again whoever submitted it: a job
of a DAG gets its number long after the DAG was handed in.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arcnb.errors import number_of
from arcnb.lab.clusters.jobs import ClusterJob
from arcnb.lab.clusters.scripts import render, script_texts
from arcnb.lab.clusters.tools import ENDED, HELD, RUNNING, WAITING, JobState, SchedulerError, call
from arcnb.machine.files import write_whole

NAME = "htcondor"

_STATUS = {
    1: (WAITING, "Idle"),
    2: (RUNNING, "Running"),
    3: (ENDED, "Removed"),
    4: (ENDED, "Completed"),
    5: (HELD, "Held"),
    6: (RUNNING, "Transferring output"),
    7: (WAITING, "Suspended"),
}
_ATTRIBUTES = (
    "ClusterId,ProcId,JobStatus,HoldReason,RemoveReason,RemoteHost,LastRemoteHost,NumJobStarts,"
    "ExitCode,ExitBySignal,ExitSignal,ArcnbRun"
)
_OURS = "ArcnbRun =!= undefined"
HISTORY_JOBS = 2000  # how far back finished tasks are looked for


def job_texts(job: ClusterJob, after: Sequence[str] = ()) -> dict[Path, str]:
    """What is to be written into job.sub, runs.txt and task.sh. Waiting for other jobs is what DAGs are for
    (`submit_dag`)."""
    if after:
        raise SchedulerError("HTCondor jobs wait for others in a DAG only: submit a pipeline")
    if job.resources.partition:
        raise SchedulerError("HTCondor has no partitions; say what the nodes must have by constraint")
    if job.resources.nodes > 1 and job.environment.container:
        raise SchedulerError("HTCondor runs no containers over several nodes: give venv or packed")
    return {job.folder / "job.sub": render("htcondor.sub.jinja", job=job), **script_texts(job, NAME)}


def submit(job: ClusterJob) -> list[str]:
    """Submit the files of `job_texts`, which are written; the names of the tasks."""
    path = str(job.folder / "job.sub")
    answer = call(NAME, "condor_submit", "-terse", path, refused="HTCondor refused the job")
    number = _number(r"^(\d+)\.0 - ", answer)
    return [f"{number}.{index}" for index in range(len(job.runs))]


def dag_text(jobs: Mapping[str, ClusterJob], needs: Mapping[str, Sequence[str]]) -> str:
    """The file of a DAG: jobs that wait for each other. Its words are separated by spaces, and its quoting
    depends on the version."""
    if spaced := next((job.folder for job in jobs.values() if re.search(r"\s", str(job.folder))), None):
        raise SchedulerError(f"{spaced}: HTCondor takes no spaces in the paths of a pipeline's jobs")
    lines = [f"JOB {name} {job.folder}/job.sub" for name, job in jobs.items()]
    lines += [f"PARENT {' '.join(before)} CHILD {name}" for name, before in needs.items() if before]
    return "# Written by arcnb; by hand: condor_submit_dag FILE\n" + "\n".join(lines) + "\n"


def submit_dag(path: Path, text: str) -> str:
    """Submit a DAG (the files of its jobs written) as a file at `path`; its job number."""
    write_whole(path, text)
    answer = call(NAME, "condor_submit_dag", "-f", str(path), refused="HTCondor refused the DAG")
    return _number(r"submitted to cluster (\d+)", answer)


def states(tasks: Mapping[str, str]) -> dict[str, JobState]:
    """run folder -> state, of `tasks`: run folder -> task, or "7 (DAG)" for a task of that DAG."""
    unmade = _unmade(tasks.values())  # asked first: what is made in the meantime is found in the queue
    query = ("-json", "-attributes", _ATTRIBUTES, "-constraint", _OURS)
    found = _newest(_ads("condor_q", "-allusers", *query), tasks)
    missing = {folder: task for folder, task in tasks.items() if folder not in found}
    if missing:
        ended = _newest(_ads("condor_history", *query, "-limit", str(HISTORY_JOBS)), missing)
        dags = {task.split()[0] for folder, task in missing.items() if folder not in ended and " " in task}
        alive = {str(job["ClusterId"]) for job in _in_queue(dags)}
        for folder, task in missing.items():
            if folder in ended:
                found[folder] = ended[folder]
            elif task in unmade:
                found[folder] = JobState(WAITING, "waits until others of its job have ended")
            elif task.split()[0] in alive:
                found[folder] = JobState(WAITING, "waits in its DAG")
    return found


def cancel(tasks: Sequence[str]) -> None:
    """Tasks, or whole DAGs for tasks that have no number yet. What HTCondor has not made yet it removes with
    the whole job alone, and would start once the others are gone."""
    names = list(dict.fromkeys(task.split()[0] for task in tasks))
    unmade = _unmade(tasks)
    for job in {name.partition(".")[0] for name in names if name in unmade}:
        there = {f"{job}.{ad['ProcId']}" for ad in _in_queue({job})}
        left = there | {task for task in unmade if task.partition(".")[0] == job}
        if not left <= set(names):
            raise SchedulerError(
                f"HTCondor makes some tasks of {job} only when others have ended (at_once), and until then "
                "cancels all of them or none; cancel the whole sweep",
                refused=True,
            )
        names = [name for name in names if name not in left] + [job]
    for start in range(0, len(names), 500):
        call(NAME, "condor_rm", *names[start : start + 500], refused="HTCondor did not remove")


def _newest(ads: Iterable[Mapping[str, Any]], tasks: Mapping[str, str]) -> dict[str, JobState]:
    """The newest task of each run folder among these. Of a DAG those behind its own number: others are of an
    earlier job of the run."""
    found: dict[str, tuple[int, JobState]] = {}
    for job in ads:
        folder, task = job["ArcnbRun"], f"{job['ClusterId']}.{job['ProcId']}"
        wanted = tasks.get(folder)
        if wanted is None or (" " not in wanted and wanted != task):
            continue
        if " " in wanted and job["ClusterId"] < int(wanted.split()[0]):
            continue
        if folder not in found or job["ClusterId"] > found[folder][0]:
            found[folder] = (job["ClusterId"], _state(job, task))
    return {folder: state for folder, (_, state) in found.items()}


def _state(job: Mapping[str, Any], task: str) -> JobState:
    phase, text = _STATUS.get(job["JobStatus"], (WAITING, f"status {job['JobStatus']}"))
    if phase == HELD and job.get("HoldReason"):
        text = f"{text} ({job['HoldReason']})"
    if phase == ENDED and job.get("RemoveReason"):
        text = f"{text} ({job['RemoveReason']})"
    elif phase == ENDED and job.get("ExitBySignal"):
        text = f"{text} (signal {job.get('ExitSignal')})"
    elif phase == ENDED and job.get("ExitCode"):
        text = f"{text} (exit code {job['ExitCode']})"
    elif phase == WAITING and job.get("NumJobStarts"):
        text = f"{text} again, after {number_of(job['NumJobStarts'], 'start')}"
    node = str(job.get("RemoteHost") or job.get("LastRemoteHost") or "").rpartition("@")[2]
    return JobState(phase, text, node, task)


def _number(pattern: str, answer: str) -> str:
    if match := re.search(pattern, answer, re.M):
        return match[1]
    raise SchedulerError(f"HTCondor's answer has no job number: {' '.join(answer.split())[:300]!r}")


def _ads(tool: str, *arguments: str) -> list[dict[str, Any]]:
    answer = call(NAME, tool, *arguments)
    return json.loads(answer) if answer.strip() else []


def _in_queue(jobs: Iterable[str]) -> list[dict[str, Any]]:
    """The tasks of these jobs that the queue has."""
    numbers = sorted(jobs)
    attributes = ("-json", "-attributes", "ClusterId,ProcId")
    return _ads("condor_q", "-allusers", *attributes, *numbers) if numbers else []


def _unmade(tasks: Iterable[str]) -> set[str]:
    """Tasks that HTCondor has promised and will make when there is room for them among those of `at_once`:
    until then neither its queue nor its history has them. Nobody is asked where all of these are of DAGs."""
    if all(" " in task for task in tasks):
        return set()
    attributes = "ClusterId,JobMaterializeNextProcId,TotalSubmitProcs"
    ads = _ads("condor_q", "-allusers", "-factory", "-json", "-attributes", attributes, "-constraint", _OURS)
    return {
        f"{ad['ClusterId']}.{number}"
        for ad in ads
        for number in range(ad.get("JobMaterializeNextProcId", 0), ad["TotalSubmitProcs"])
    }
