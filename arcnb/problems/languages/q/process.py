"""One process for one program, ended whatever it does: no input, bounded time, memory and output, no ports.

Written for q, with nothing of q in it but the command: the tests drive it with a scripted interpreter.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from arcnb.programs import sandbox
from arcnb.programs.executor.limits import Limits
from arcnb.programs.sandbox.time_limits import BY_THE_CLOCK, processor_time

LAUNCHER = Path(__file__).with_name("confinement.py")
WALLS = Path(sandbox.__file__).parent
TICK = 0.05  # seconds between looks at the clock and at ports
# What an interpreter reads to start: libraries, time zones, the host's name and processors (for its licence).
LIBRARIES = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64"),
    *("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo"),
    *("/dev/null", "/dev/urandom", "/dev/zero", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
    *("/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/resolv.conf"),
)
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1")


@dataclass(frozen=True)
class Interpreter:
    """How an interpreter is started: `command` followed by the script and `options`.

    environment: all it sees. readable: files and folders it needs, beside the system's libraries and the
    script's folder. described: for reports. may_connect: it asks a licence server. confine: False leaves
    files and network open to programs. base_mb: address space it takes for itself, MiB.
    """

    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    readable: tuple[str, ...] = ()
    described: str = ""
    may_connect: bool = False
    confine: bool = True
    base_mb: int = 1024


@dataclass(frozen=True)
class Transcript:
    """What a process wrote, and how it ended.

    status: "ok" (it ended by itself), "timeout", "output_limit" or "unsafe" (it opened a port).
    """

    status: str
    text: str
    code: int | None
    seconds: float


def run_script(interpreter: Interpreter, files: Mapping[str, str], script: str, limits: Limits) -> Transcript:
    """Run `script`, one of `files` (name: text), in a folder of its own that holds just these.

    limits: `seconds` of processor time for the whole process, three times as long by the clock. Its process
    group is killed at the end, in any case.
    """
    with tempfile.TemporaryDirectory(prefix=f"arcnb-q-{os.getpid()}-") as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text, encoding="utf-8", errors="replace")
        options = [option.format(memory_mb=limits.memory_mb) for option in interpreter.options]
        command = [*interpreter.command, script, *options]
        return _run(interpreter, command, folder, limits)


def _run(interpreter: Interpreter, command: Sequence[str], folder: str, limits: Limits) -> Transcript:
    longest = BY_THE_CLOCK * limits.seconds
    orders = {
        "parent": os.getpid(),
        "seconds": longest,
        "memory_mb": limits.memory_mb + interpreter.base_mb,
        "readable": [*LIBRARIES, *interpreter.readable, folder],
        "runnable": [os.path.realpath(command[0]), *LOADERS],
        "may_connect": interpreter.may_connect,
        "confine": interpreter.confine,
    }
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(LAUNCHER), str(WALLS), json.dumps(orders), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={"LANG": "C.UTF-8", "HOME": folder, **(interpreter.environment or {})},
        start_new_session=True,
    )
    most = int(limits.output_mb * (1 << 20))
    try:
        status, data = _watch(process, limits.seconds, started + longest, most)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        code = process.wait()
    seconds = time.monotonic() - started
    return Transcript(status, data[:most].decode("utf-8", "replace"), code, seconds)


def _watch(process: subprocess.Popen, seconds: float, deadline: float, most: int) -> tuple[str, bytearray]:
    """Read what it writes until it closes its output or ends, or goes too far."""
    data = bytearray()
    pipe = process.stdout.fileno()
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    looked = time.monotonic()
    while True:
        now = time.monotonic()
        left = deadline - now
        if left <= 0 or processor_time(process.pid) >= seconds:
            return "timeout", data
        if now - looked >= TICK:
            if listens(process.pid):
                return "unsafe", data
            looked = now
        if poller.poll(1000 * min(TICK, left)):
            chunk = os.read(pipe, 1 << 16)
            data += chunk
            if len(data) > most:
                return "output_limit", data
            if chunk:
                continue
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
                return "ok", data
            return "timeout", data
        if process.poll() is not None:  # a process that it left behind holds the pipe
            return "ok", data


def listens(pid: int) -> bool:
    """Whether a process or one of its children waits for connections."""
    import psutil

    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        return any(
            link.status == psutil.CONN_LISTEN for one in family for link in one.net_connections(kind="inet")
        )
    except psutil.Error:
        return False
