"""Training in several processes, one a GPU, through `accelerate launch` (torch's own launcher on CPUs).

launch("arcnb.models.sft", [str(run.path)], num_processes=4, log=run.path / "processes.log")
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

GRACE = 60  # seconds that processes get to save when the caller is stopped


class LaunchError(RuntimeError):
    """A process of the training failed; the message quotes its exception."""


def launch(module: str, arguments: Sequence[str], num_processes: int, log: Path) -> None:
    """Run `python -m module arguments` in num_processes processes that train together, and wait for them.

    What they print goes to `log` and, line by line, to our own standard error. When the caller is interrupted
    they get SIGTERM, time to save, then SIGKILL. LaunchError when one fails.
    """
    import torch

    if torch.cuda.is_available():
        launcher = ["accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_machines", "1"]
        launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
        launcher += ["--num_processes", str(num_processes)]
    else:  # on CPUs `accelerate launch` would start a single process, whatever it is asked for
        launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(num_processes)]
    command = [sys.executable, "-m", *launcher, "-m", module, *arguments]
    log.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // num_processes))},
    )
    try:
        with open(log, "a") as file:
            for line in process.stdout:
                file.write(line)
                file.flush()
                sys.stderr.write(line)
        code = process.wait()
    finally:
        _end(process)
    if code:
        raise LaunchError(
            f"{module} failed in one of {num_processes} processes (exit {code}): {_cause(log)}; see {log}"
        )


def _cause(log: Path) -> str:
    """The first exception that a process printed, without what the launcher makes of it."""
    found = re.search(
        r"^(?:\[rank\d+\]: ?)?(?:\w+\.)*(\w*(?:Error|Exception|Interrupt): .*)$",
        log.read_text(errors="replace"),
        re.MULTILINE,
    )
    return found[1] if found else "no exception was printed"


def _end(process: subprocess.Popen) -> None:
    """End the launcher's whole session, if it is still there."""
    if process.poll() is not None:
        return
    for sign, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 10)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
