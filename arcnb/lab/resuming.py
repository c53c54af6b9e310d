"""Going on in the folder of a run that was stopped, failed or killed: `arcnb run --resume RUN`.

The stages do the rest of the work themselves, by what they find in the folder. What is seen to here: that
nobody else is at work in it, that the parameters are the same, and that the trace of the earlier attempt is
kept.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arcnb.lab.manifest import RunError, locked, write_manifest
from arcnb.lab.notebooks import notebook_record
from arcnb.lab.parameters import Parameter, ParameterError, check_parameters
from arcnb.lab.processes import is_alive
from arcnb.lab.runs import Run, fresh_attempt

KERNEL_SECONDS = 10.0  # a kernel notices within a second that its runner is gone; one deep in C code may not


def kept_values(run: Run, given: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """The run's parameters, for a second attempt. ParameterError if `given` asks for others (results of two
    settings must not mix in one folder) or the notebook no longer has one of them."""
    recorded = run.manifest["parameters"]
    for name, value in given.items():
        if name not in recorded or recorded[name] != value:
            raise ParameterError(
                f"{run.path.name} ran with {name} = {recorded.get(name)!r}, so it cannot be resumed "
                f"with {value!r}; start a new run for that"
            )
    return check_parameters(recorded, declared, f"the notebook that {run.path.name} is resumed with")


def reopen(run: Run, notebook: Path) -> bool:
    """Start the next attempt: note the one before and put its executed copy aside.

    Returns whether the notebook has changed since. Raises RunError if somebody is at work in the folder: of
    two who resume a run at once, one gets it.
    """
    _refuse_running(run)
    _wait_for_kernel(run)
    with locked(run.path):
        _refuse_running(run)
        status, why = run.verdict()
        manifest = run.manifest
        error = manifest["error"] or {"type": None, "message": None, "sentence": why}
        ended = {"status": status, "start": manifest["start"], "end": manifest["end"], "error": error}
        copy = run.copy_path
        manifest["attempts"].append(ended)
        if copy.is_file():
            copy.rename(copy.with_name(f"{copy.stem}.attempt-{len(manifest['attempts'])}.ipynb"))
        before = (manifest["notebook"] or {}).get("sha256")
        record = notebook_record(notebook)
        write_manifest(run.path, manifest | fresh_attempt("engine") | {"notebook": record})
    return before not in (record["sha256"], None)


def _refuse_running(run: Run) -> None:
    status, why = run.verdict()
    if status in ("running", "done"):
        raise RunError(f"{run.path} is {status}" + (f" ({why})" if why else "") + ", so it cannot be resumed")


def _wait_for_kernel(run: Run) -> None:
    """A runner that was killed leaves its kernel at work for a moment; two kernels in one folder would double
    rows."""
    kernel = run.manifest["kernel"]
    deadline = time.monotonic() + KERNEL_SECONDS
    while kernel and is_alive(kernel):
        if time.monotonic() > deadline:
            raise RunError(
                f"a kernel of {run.path.name} is still at work (process {kernel['pid']}); end it first"
            )
        time.sleep(0.1)
