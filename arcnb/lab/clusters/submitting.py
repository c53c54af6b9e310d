"""Handing runs to a scheduler: files are written, the scheduler is asked, and every run folder says which
task it waits for (job/job.json, and copies of the submit files beside it)."""

import contextlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from arcnb.errors import ArcnbError, nearest
from arcnb.lab.clusters import htcondor, slurm
from arcnb.lab.clusters.environments import build_archive
from arcnb.lab.clusters.jobs import ClusterJob
from arcnb.lab.runs.manifest import locked, now, write_manifest
from arcnb.lab.runs.run import Run, made_folder
from arcnb.machine.files import write_whole
from arcnb.values import misfit

SCHEDULERS: dict[str, ModuleType] = {"slurm": slurm, "htcondor": htcondor}
JOB_FOLDER = "job"  # in the run folder
RECORD = "job.json"
_SHAPE = {"scheduler": "str", "task": "str", "folder~": "str", "cluster~": "str"}


def scheduler_named(name: str) -> ModuleType:
    if name not in SCHEDULERS:
        raise ArcnbError(f"arcnb knows no scheduler {name!r}{nearest(name, SCHEDULERS)}")
    return SCHEDULERS[name]


def read_record(run: Run) -> dict[str, Any] | None:
    """{"scheduler", "task", "folder", "submitted"} of a run that was handed to a scheduler, else None; with
    "cluster" where that has a name."""
    try:
        record = json.loads((run.path / JOB_FOLDER / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return None if misfit(record, _SHAPE) or record["scheduler"] not in SCHEDULERS else record


def is_work_of(record: Mapping[str, Any], job: object) -> bool:
    """Is this job, of a manifest, the task of the record? A run that was submitted once may later run without
    its scheduler. A stage of a DAG is recorded before it has a number of its own."""
    scheduler, task = record["scheduler"], record["task"]
    if task.endswith("(DAG)"):
        return re.fullmatch(rf"{scheduler} \d+\.\d+", str(job)) is not None
    return bool(job == f"{scheduler} {task}")


def elsewhere(record: Mapping[str, Any]) -> str | None:
    """One sentence if the record is of another cluster than the one that answers here, where the number of
    its task is unknown or, worse, another job's."""
    recorded = record.get("cluster")
    here = slurm.cluster() if recorded and record["scheduler"] == slurm.NAME else ""
    if not here or here == recorded:
        return None
    return f"it was sent to the cluster {recorded}, and here is {here}"


def job_texts(scheduler: str, job: ClusterJob, after: Sequence[str] = ()) -> dict[Path, str]:
    """The files of a job and what is to be in them; nothing is made."""
    texts: dict[Path, str] = scheduler_named(scheduler).job_texts(job, after)
    return texts


def write_job(job: ClusterJob, texts: Mapping[Path, str]) -> None:
    """Write the files of a job; a packed environment is built first."""
    if job.environment.packed is not None:
        build_archive(job.environment.packed)
    made_folder(job.folder)
    for path, text in texts.items():
        write_whole(path, text)
        if path.suffix == ".sh":
            path.chmod(0o755)


def submit_job(scheduler: str, job: ClusterJob, files: Iterable[Path]) -> list[str]:
    """Hand in the job, whose files are written, and note its tasks in the run folders; SchedulerError if the
    scheduler refuses."""
    tasks: list[str] = scheduler_named(scheduler).submit(job)
    with cancelled_unless_noted(scheduler, tasks):
        cluster = slurm.cluster() if scheduler == slurm.NAME else ""
        for run, task in zip(job.runs, tasks, strict=True):
            note_task(run, scheduler, task, job.folder, files, cluster)
    return tasks


@contextlib.contextmanager
def cancelled_unless_noted(scheduler: str, tasks: Sequence[str]) -> Iterator[None]:
    """Cancel what was handed in if the block fails to note it, or is interrupted: folders that know nothing
    of their job would be withdrawn, or submitted again."""
    try:
        yield
    except (ArcnbError, OSError, KeyboardInterrupt) as error:
        scheduler_named(scheduler).cancel(tasks)
        raise ArcnbError(
            f"{scheduler} took {', '.join(tasks)}, which could not be noted and is cancelled: "
            f"{str(error) or 'interrupted'}"
        ) from error


def note_task(
    run: Run, scheduler: str, task: str, folder: Path, files: Iterable[Path], cluster: str = ""
) -> None:
    own = run.path / JOB_FOLDER
    own.mkdir(exist_ok=True)
    for file in files:
        if file.parent != own:
            shutil.copy2(file, own / file.name)
    record = {"scheduler": scheduler, "task": task, "folder": str(folder), "submitted": now()}
    record |= {"cluster": cluster} if cluster else {}
    write_whole(own / RECORD, json.dumps(record, indent=2) + "\n")
    with locked(run.path):
        manifest = run.manifest
        waits_for = f"{scheduler} {task}"
        quick = manifest["status"] in ("running", "done") or manifest["job"] == waits_for  # it has started
        if not quick:
            write_manifest(run.path, manifest | {"waits_for": waits_for})


def show(texts: Mapping[Path, str]) -> None:
    for path, text in texts.items():
        print(f"==> {path}\n{text}")
