"""Training in processes of its own: one a GPU through `accelerate launch` (torch's own launcher on CPUs), on
this machine or, in a job of several nodes, on all of them (`arcnb.models.training.nodes`).

launch("arcnb.models.sft.training", [str(run.path)], num_processes=4, log=run.path / "processes.log")
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from arcnb.machine.files import write_whole
from arcnb.machine.gpus import torch_sees_gpu
from arcnb.machine.processes import end_session, threads_each
from arcnb.machine.starts import tried_again
from arcnb.models.training.nodes import GRACE, ONE_NODE, Others, launcher, n_nodes, started, together
from arcnb.models.training.output import copy_lines, failure, is_consequence

PARALLEL = ("ddp", "zero3")


class LaunchError(RuntimeError):
    """A process of the training failed; the message quotes its exception."""


class LostError(LaunchError):
    """Another node, or what the processes need, failed; they were told to end, and may have saved."""


def parallel_problem(num_processes: int, parallel: str) -> str | None:
    """Why so many processes cannot be started in this way, as a sentence; None where they can."""
    if num_processes == 1:
        return None
    if parallel == "zero3" and importlib.util.find_spec("deepspeed") is None:
        return "parallel='zero3' needs the package deepspeed, which is not installed"
    import torch

    nodes = n_nodes()
    if num_processes % nodes:
        return f"num_processes={num_processes} cannot be shared equally by {nodes} nodes"
    if torch.cuda.is_available() and num_processes > nodes * torch.cuda.device_count():
        n_gpus = nodes * torch.cuda.device_count()
        return f"num_processes={num_processes} needs as many GPUs, and there are {n_gpus}"
    return None


def command_line(
    module: str,
    arguments: Sequence[str],
    num_processes: int,
    parallel: str = "ddp",
    gradient_accumulation_steps: int = 1,
) -> list[str]:
    """The command that runs `python -m module arguments` in num_processes processes that train together.

    "zero3": accelerate makes deepspeed's configuration of these flags, precision included, and transformers
    fills in the rest from the training arguments. "ddp": those say all, and a precision named here would be
    used where they name none, on a CPU.
    """
    if num_processes == 1:
        return _alone(module, arguments)
    words = _words(module, arguments, num_processes, parallel, gradient_accumulation_steps)
    return launcher(ONE_NODE, words)


def _alone(module: str, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", module, *arguments]


def _words(
    module: str, arguments: Sequence[str], num_processes: int, parallel: str, gradient_accumulation_steps: int
) -> list[str]:
    """What `accelerate launch` is told on every node alike."""
    precision = "bf16" if parallel == "zero3" and torch_sees_gpu() else "no"
    words = ["--mixed_precision", precision, "--dynamo_backend", "no", "--num_processes", str(num_processes)]
    if parallel == "zero3":
        words += ["--use_deepspeed", "--zero_stage", "3", "--zero3_save_16bit_model", "true"]
        words += ["--gradient_accumulation_steps", str(gradient_accumulation_steps)]
        words += ["--deepspeed_multinode_launcher", "standard"] if n_nodes() > 1 else []
    else:  # on CPUs, too, where a single process would be started without it, whatever number is asked for
        words += ["--multi_gpu"]
    return [*words, "-m", module, *arguments]


def launch(module: str, arguments: Sequence[str], num_processes: int, log: Path, **settings: Any) -> bool:
    """Run `python -m module arguments` in num_processes processes that train together, and wait for them;
    again where another process took their port before they opened it.

    What they print goes to `log` and, line by line, to our own output. When the caller is interrupted they
    get SIGTERM, time to save, then SIGKILL. settings: parallel and
    gradient_accumulation_steps, see `command_line`; environment: variables for them.
    pids: the folder in which the processes `write_pid` theirs, where SIGTERM makes them save and end well:
    then they alone are told, and an interrupt that all of them survived counts as their normal end.
    lost: asked all the time; a sentence says that the processes lost what they need, and ends them.
    Returns whether there was one. LaunchError when a process fails, LostError when something is lost that
    they need.
    """
    return tried_again(lambda: _launched(module, arguments, num_processes, log, **settings))


def _launched(
    module: str,
    arguments: Sequence[str],
    num_processes: int,
    log: Path,
    *,
    parallel: str = "ddp",
    gradient_accumulation_steps: int = 1,
    environment: Mapping[str, str] | None = None,
    pids: Path | None = None,
    lost: Callable[[], str | None] | None = None,
) -> bool:
    interrupted = False
    nodes = n_nodes() if num_processes > 1 else 1
    defaults = threads_each(max(1, num_processes // nodes))
    if not torch_sees_gpu():
        defaults["ACCELERATE_TORCH_DEVICE"] = "cpu"  # else "cpu:1", which torch.load does not know
    given = {"PYTHONUNBUFFERED": "1"} | dict(environment or {})
    log.parent.mkdir(parents=True, exist_ok=True)
    for old in pids.glob("*.pid") if pids else ():
        old.unlink()
    if num_processes == 1:
        words = []
    else:
        words = _words(module, arguments, num_processes, parallel, gradient_accumulation_steps)
    with together(words, defaults | given, nodes) as meeting, open(log, "a") as file:
        command = launcher(meeting, words) if words else _alone(module, arguments)
        process = started(command, defaults | os.environ | given)
        others, began = Others(meeting, lost), file.tell()
        try:
            # Its workers lead sessions of their own, and end when the launcher tells them to.
            with others.watched(lambda: end_session(process, GRACE)):
                _copy(process, file)
        except KeyboardInterrupt:
            if not (pids and _saved(process, pids, file)):
                raise
            interrupted = True
        finally:
            end_session(process, GRACE)
        sentences = list(others.lost)
        if process.returncode and not sentences:
            why = failure(log.read_bytes()[began:].decode(errors="replace"))
            which = f"one of {num_processes} processes" if num_processes > 1 else "its process"
            own = f"failed in {which} (exit {process.returncode}): {why}"
            sentences = sorted([own, *others.heard()], key=is_consequence)
    if sentences:
        kind = LostError if others.lost else LaunchError
        raise kind(f"{module}: {'; '.join(sentences)}; see {log}")
    return interrupted


def write_pid(pids: Path, rank: int) -> None:
    """Say in the folder `pids` which process this is, and of which machine."""
    write_whole(pids / f"{rank}.pid", f"{socket.gethostname()} {os.getpid()}", synced=False)


def _copy(process: subprocess.Popen, file: TextIO) -> None:
    def write(line: str) -> None:
        file.write(line)
        file.flush()

    copy_lines(process, write)


def _saved(process: subprocess.Popen, pids: Path, file: TextIO) -> bool:
    """Ask the processes of this machine in `pids` to save; whether all ended well and in time. What one of
    several is told, all agree on."""
    for path in pids.glob("*.pid"):
        host, pid = path.read_text().split()
        with suppress(ProcessLookupError):
            if host == socket.gethostname():
                os.kill(int(pid), signal.SIGTERM)
    too_late = threading.Timer(GRACE, os.killpg, (process.pid, signal.SIGKILL))
    too_late.start()
    try:
        _copy(process, file)
        return process.wait() == 0
    finally:
        too_late.cancel()
