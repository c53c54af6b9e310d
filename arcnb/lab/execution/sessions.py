"""The kernel's side of a run that no engine looks after: a notebook in JupyterLab, under plain papermill, or
a script.

Such a run is owned by the kernel process itself: it beats its own heart, `record` marks it as done, and when
the kernel goes away first, the manifest says failed (the last cell raised) or preempted (it was shut down).
"""

import ast
import atexit
import contextlib
import os
import signal
import sys
import textwrap
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.execution import known_warnings
from arcnb.lab.execution.stopping import NUDGE
from arcnb.lab.notebooks.files import read_notebook
from arcnb.lab.notebooks.parameters import notebook_parameters
from arcnb.lab.runs.heartbeat import HEARTBEAT, Heartbeat
from arcnb.lab.runs.manifest import MANIFEST, RUN_DIR, cause, now, seconds_between
from arcnb.lab.runs.provenance import notebook_record
from arcnb.lab.runs.run import Run, new_run, run_name
from arcnb.machine.imports import ipython_shell
from arcnb.plans import opened

_current: dict[str, Any] = {"run": None, "heartbeat": None, "error": None}


def open_run(name: str | None = None) -> Run:
    """The run that this notebook belongs to.

    Under `arcnb run` that is the folder the engine made. Elsewhere (JupyterLab, plain papermill, a script) it
    is a new one, called `name` or after the notebook, with the values of the parameters cell in its manifest;
    running the cell again before anything was written gives the same folder, afterwards a new one.
    """
    known_warnings.silence()
    listen_to_stops()
    folder = os.environ.get(RUN_DIR)
    if folder:
        return Run(Path(folder).resolve())
    return _own_run(name)


def _own_run(name: str | None) -> Run:
    """The kernel's current run if nothing was written to it yet, else a new one."""
    run = _current["run"]
    if run is not None and _is_untouched(run):
        return run
    _close()
    shell = ipython_shell()
    path = _notebook_path(shell)
    parameters = _parameters(shell, path) if shell is not None else {}
    record = notebook_record(path) if path.is_file() else None
    run = new_run(name or run_name(path.stem), parameters, record)
    if _current["run"] is None:
        atexit.register(_close)
        if shell is not None:
            shell.events.register("post_run_cell", _remember_error)
    heartbeat = Heartbeat(run.path, lambda: {"pid": os.getpid()})
    heartbeat.start()
    _current.update(run=run, heartbeat=heartbeat, error=None)
    return run


def listen_to_stops() -> None:
    """Let SIGTERM interrupt the running cell as Ctrl-C does, so that a stage can save what it has.

    Schedulers send SIGTERM to every process of a job; the default would end the kernel on the spot. Under the
    engine it is left to the runner, which got it too and interrupts the cell: two interrupts would hit the
    saving. Elsewhere it goes through whatever handles SIGINT at that moment: between cells nobody, inside a
    trainer perhaps its own.
    """
    owner = os.getpid()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker: it is to end, as if this handler were not there
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and RUN_DIR not in os.environ:
            handler(signal.SIGINT, frame)

    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, interrupt)
        if signal.getsignal(NUDGE) is signal.SIG_DFL:
            signal.signal(NUDGE, lambda signum, frame: None)


def _close() -> None:
    """End the current run's heartbeat and, if `record` was never called, say how it ended."""
    run, heartbeat, error = _current["run"], _current["heartbeat"], _current["error"]
    if run is None:
        return
    try:
        manifest = run.manifest
        if manifest["status"] != "running":
            return
        end = now()
        kind = "failed" if error else "preempted"
        error = error or cause("the notebook ended before its last cell")
        run.update(status=kind, end=end, seconds=seconds_between(manifest["start"], end), error=error)
    except ArcnbError as problem:
        print(f"arcnb: {problem}", file=sys.stderr)
    finally:
        heartbeat.finish()  # who sees a run at work without one takes it for dead


def _remember_error(result: Any) -> None:
    error = result.error_before_exec or result.error_in_exec
    if error:
        kind = type(error).__name__
        sentence = textwrap.shorten(f"In [{result.execution_count}]: {kind}: {error}", 400)
        error = cause(sentence, kind, str(error))
    _current["error"] = error


def _is_untouched(run: Run) -> bool:
    """Was nothing written to it yet? One whose folder was removed, or whose manifest cannot be read, is over,
    which `_close` tells."""
    try:
        if run.manifest["status"] != "running":
            return False
        names = [path.name for path in run.path.iterdir()]
    except (ArcnbError, OSError):
        return False
    return not any(name not in (MANIFEST, HEARTBEAT) and name[0] != "." for name in names)


def _notebook_path(shell: Any) -> Path:
    """JupyterLab and VS Code say which notebook a kernel serves; of papermill and nbconvert the command line
    does. `notebook` where nobody knows."""
    path = os.environ.get("JPY_SESSION_NAME") or (shell and shell.user_ns.get("__vsc_ipynb_file__"))
    if path:
        return Path(str(path))
    try:
        parent = Path("/proc", os.environ["JPY_PARENT_PID"])
        command = (parent / "cmdline").read_text().split("\0")
        folder = Path(os.readlink(parent / "cwd"))
    except (KeyError, OSError):
        return Path("notebook")
    return next((folder / word for word in command if word.endswith(".ipynb")), Path("notebook"))


def _parameters(shell: Any, path: Path) -> dict[str, Any]:
    """The names that cells holding nothing but literal assignments gave a value: the parameters cell and the
    one that papermill injects after it. Options of the notebook's plan are flat, by the names that other runs
    have them by."""
    names: list[str] = []
    for source in shell.user_ns.get("In", []):
        assigned = []
        with contextlib.suppress(SyntaxError, ValueError, AttributeError, TypeError):  # a cell that does more
            for statement in ast.parse(source).body:
                target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
                ast.literal_eval(statement.value)
                assigned.append(target.id)
            names += assigned
    values = {name: shell.user_ns[name] for name in names if name in shell.user_ns}
    try:
        declared = notebook_parameters(read_notebook(path), path.name)
    except ArcnbError:
        return values
    if not declared.plan_name:
        return values
    found: dict[str, Any] = {}
    for name, value in opened(values, declared.knows).items():
        known = declared.find(name).name if declared.knows(name) else name
        found[name if known in found else known] = value  # given twice: the plan refuses it
    return found
