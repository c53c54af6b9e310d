"""Starting a queued run, and going on in the folder of one that was stopped, failed or killed: `arcnb run
--resume RUN`.

The kernel works where it did before (`cwd` in the manifest), wherever the run is resumed from. The stages do
the rest of the work themselves, by what they find in the folder. What is seen to here: that nobody else is at
work in it, that the parameters are the same, and that the trace of the earlier attempt is kept.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, reason
from arcnb.lab.notebooks.parameters import Declared, check_parameters
from arcnb.lab.runs import provenance
from arcnb.lab.runs.fingerprints import run_inputs
from arcnb.lab.runs.heartbeat import HEARTBEAT
from arcnb.lab.runs.manifest import JOB, cause, locked, working_folder, write_manifest
from arcnb.lab.runs.placeholders import resolved
from arcnb.lab.runs.provenance import notebook_record
from arcnb.lab.runs.run import Run, fresh_attempt
from arcnb.machine.processes import is_alive

ACCEPT = "accept_other_settings"  # of the notebooks that train
KERNEL_SECONDS = 10.0  # a kernel notices within a second that its runner is gone; one deep in C code may not


def changed_values(run: Run, given: Mapping[str, Any], declared: Declared) -> dict[str, Any]:
    """Those of the given values that differ from the run's.

    They may where the notebook's plan calls them free (budgets, memory), or all of them where its checkpoints
    are told to accept others; the stage compares what it goes on with. ArcnbError for any other: results of
    two settings must not mix in one folder.
    """
    recorded = _recorded(run)
    had = {name: recorded.get(name, declared.find(name).default) for name in given}
    changed = {name: value for name, value in given.items() if had[name] != value}
    accepts_all = (recorded | changed).get(ACCEPT) is True
    for name, value in changed.items():
        if not (accepts_all or declared.is_free(name)):
            or_so = f", or add -p {ACCEPT} true" if declared.is_free(ACCEPT) else ""
            raise ArcnbError(
                f"{run.path.name} ran with {name} = {had[name]!r}, so it cannot be resumed with {value!r}; "
                f"start a new run for that{or_so}"
            )
    return changed


def kept_values(run: Run, changed: Mapping[str, Any], declared: Declared) -> dict[str, Any]:
    """The run's parameters for its first or its next attempt. ArcnbError if the notebook no longer has one of
    them, or a reference to another run leads nowhere."""
    where = f"the notebook that {run.path.name} is resumed with"
    return check_parameters(_recorded(run) | changed, declared, where)


def _recorded(run: Run) -> dict[str, Any]:
    manifest = run.manifest
    if not manifest.get("references"):
        return manifest["parameters"]
    runs = {stage: Run(Path(folder)) for stage, folder in manifest["references"].items()}
    return resolved(manifest["parameters"], runs, run.path.name)


def reopen(run: Run, notebook: Path, values: Mapping[str, Any], changed: Mapping[str, Any]) -> bool:
    """Start the next attempt with these values: note the one before and put its executed copy aside. changed:
    those of them that differ, which a run that is done goes on for.

    Returns whether the notebook has changed since the last attempt, or since the run was queued. Raises
    ArcnbError if somebody is at work in the folder, or a scheduler is about to be: of two who resume a run at
    once, one gets it.
    """
    refuse_busy(run, bool(changed))
    _wait_for_kernel(run)
    with locked(run.path):
        refuse_busy(run, bool(changed))
        status, why = run.verdict()
        manifest = run.manifest
        record = notebook_record(notebook)
        if manifest.get("references") is not None:
            with contextlib.chdir(working_folder(manifest) or "."):  # where relative paths start from
                first = manifest.get("inputs") or run_inputs("", manifest["parameters"], values)
                other = run_inputs(record["sha256"], changed, changed)
            manifest["inputs"] = other | {"parameters": first["parameters"] | other["parameters"]}
        if status != "queued":
            status = "killed" if status == "running" else status  # by the scheduler, which starts it anew
            error = manifest["error"] or cause(why)
            ended = {"status": status, "start": manifest["start"], "end": manifest["end"], "error": error}
            manifest["attempts"].append(ended)
            copy = run.copy_path
            if copy.is_file():
                try:
                    copy.rename(copy.with_name(f"{copy.stem}.attempt-{len(manifest['attempts'])}.ipynb"))
                except OSError as refused:
                    raise ArcnbError(f"{copy} cannot be put aside: {reason(refused)}") from None
        with contextlib.suppress(OSError):  # by the last attempt's, this one would look dead from elsewhere
            (run.path / HEARTBEAT).unlink()
        before = (manifest["notebook"] or {}).get("sha256")
        fresh = fresh_attempt("engine") | provenance.surroundings()
        fresh |= {"notebook": record, "parameters": dict(values), "waits_for": None}
        write_manifest(run.path, manifest | fresh)
    return before not in (record["sha256"], None)


def refuse_busy(run: Run, more: bool = False) -> None:
    """ArcnbError if somebody is at work in the folder, or a scheduler is about to be; also for a run that is
    done, unless it is asked for more."""
    status, why = run.verdict()
    manifest = run.manifest
    if status == "running" and _same_job_again(manifest):
        return
    if status == "running" or (status == "done" and not more):
        raise ArcnbError(
            f"{run.path} is {status}" + (f" ({why})" if why else "") + ", so it cannot be resumed"
        )
    waiting = manifest.get("waits_for")
    if waiting and waiting.split()[0] != os.environ.get(JOB, " ").split(" ")[0]:
        raise ArcnbError(f"{run.path} waits as {waiting}; arcnb cancel it before you run it elsewhere")


def _same_job_again(manifest: dict[str, Any]) -> bool:
    """Has the scheduler started its job anew, while the manifest still speaks of a process on a node that
    cannot be seen from here? A job runs once at a time, so that process is gone."""
    job = os.environ.get(JOB)
    return job is not None and manifest.get("job") == job and is_alive(manifest["process"]) is None


def _wait_for_kernel(run: Run) -> None:
    """A runner that was killed leaves its kernel at work for a moment; two kernels in one folder would double
    rows."""
    kernel = run.manifest["kernel"]
    deadline = time.monotonic() + KERNEL_SECONDS
    while kernel and is_alive(kernel):
        if time.monotonic() > deadline:
            raise ArcnbError(
                f"a kernel of {run.path.name} is still at work (process {kernel['pid']}); end it first"
            )
        time.sleep(0.1)
