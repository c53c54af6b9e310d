"""Child processes that end with their parent, how one ends, by what it is known again, memory for them.

A pid alone proves nothing (it may be reused, or belong to another machine or container), so a process is
named by host, boot, pid namespace, pid and start time.
"""

import atexit
import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import NoReturn

from arcnb.errors import ArcnbError, reason

_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up here, not anew in every child


def ending_with_parent(sign: int = signal.SIGTERM, parent: int | None = None) -> Callable[[], None]:
    """For `preexec_fn` of subprocess.Popen: the child gets `sign` when the thread that started it ends, even
    one that was killed. Linux only; elsewhere it does nothing. parent: where the child itself calls this, the
    process that started it."""
    parent = parent or os.getpid()

    def arrange() -> None:
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, int(sign), 0, 0, 0)
            if os.getppid() != parent:  # it was quicker
                os.kill(os.getpid(), sign)

    return arrange


def shared_context(method: str = "spawn") -> BaseContext:
    """multiprocessing's context of this start method; ArcnbError where shared memory takes no files, of which
    its locks, pools and queues are made."""
    context = multiprocessing.get_context(method)
    try:
        context.Lock()
    except OSError as error:
        remedy = "mount /dev/shm writable (a container: --tmpfs /dev/shm, or --shm-size 2g)"
        raise ArcnbError(f"processes cannot work together, /dev/shm says {reason(error)}: {remedy}") from None
    return context


def start_session(command: Sequence[str], sign: int = signal.SIGTERM, **options) -> subprocess.Popen:
    """Start a command that leads a session of its own, so that an interrupt of a terminal reaches its parent
    alone, and that gets `sign` when its parent ends. options: of subprocess.Popen. `end_session` ends it."""
    arrange = ending_with_parent(sign)
    own = {"stdin": subprocess.DEVNULL, "start_new_session": True, "preexec_fn": arrange}
    return subprocess.Popen(command, **own, **options)


def end_session(process: subprocess.Popen, seconds: float) -> None:
    """End a child that leads a session of its own: SIGTERM to all of it where the child is still there, so
    many seconds, then SIGKILL to what is left, also of a leader that died before."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def leave(code: int = 0) -> NoReturn:
    """End this process well, as Python does, but for taking all objects apart: one to two seconds where torch
    and trl are loaded. Threads are waited for, exit handlers run, and what was printed arrives."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(ValueError, OSError):  # closed, or nobody reads it any more
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # what libraries in C have printed
    os._exit(code)


def pid_place() -> str:
    """Boot and pid namespace of this process, which no two machines or containers share. "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process_identity(pid: int | None = None) -> dict[str, object]:
    """Name process `pid` (default: this one) so that it can be recognised later, by anyone."""
    pid = os.getpid() if pid is None else pid
    return {"host": socket.gethostname(), "place": pid_place(), "pid": pid, "started": _start_ticks(pid)}


def is_alive(identity: dict[str, object]) -> bool | None:
    """True or False for a process of this machine and container; None for one that cannot be seen from
    here."""
    if identity.get("host") != socket.gethostname() or identity.get("place") != pid_place():
        return None
    started = _start_ticks(int(str(identity["pid"])))
    return started is not None and started == identity.get("started")


def out_of_memory_kills() -> int:
    """A number that rises with every process that the out-of-memory killer ends, as far as its counters can
    be read: those of our cgroups, several of which may count the same process, and the machine's.

    A rise during a run that ends in SIGKILL is the best evidence that an ordinary user gets.
    """
    names = ("memory.events", "memory.oom_control")
    files = [folder / name for folder in cgroup_folders() for name in names]
    return sum(map(_oom_kills, [*files, Path("/proc/vmstat")]))


def death_cause(returncode: int | None, oom_kills: int = 0) -> str:
    """One clause for a process that ended by itself: the signal, running out of memory, or the exit code.

    `oom_kills`: how many out-of-memory kills were counted while the process ran.
    """
    if returncode is None:
        return "it stopped answering"
    if returncode >= 0:
        return f"its process ended with exit code {returncode}"
    name = signal_name(-returncode)
    why = " because memory ran out" if oom_kills else " (by hand, by a scheduler, or for want of memory)"
    return f"killed by {name}" + (why if name == "SIGKILL" else "")


def signal_name(number: int) -> str:
    """What a signal is called, "SIGKILL" of 9; "signal 40" of one without a name, as real-time ones are."""
    return signal.Signals(number).name if number in iter(signal.Signals) else f"signal {number}"


def resident_gb(pid: int) -> float | None:
    """Resident memory of a process and its descendants in GB; a page that several share counts for each of
    them."""
    import psutil

    total = 0
    try:
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += member.memory_info().rss
    except psutil.Error:
        return None
    return round(total / 1024**3, 2)


def usable_cores() -> int:
    """How many cores this process may use: fewer than the machine's where a scheduler says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(n_processes: int) -> dict[str, str]:
    """The environment by which so many processes of this machine share the cores that this one may use.
    OpenMP starts a thread a core in each of them, unless it is told a number."""
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() // n_processes))}


def usable_memory_gb(root: Path = Path("/")) -> float:
    """GB (2**30) that the processes here may take: the machine's, or the least that a cgroup around them
    allows. root: under which /proc and /sys are."""
    import psutil

    sizes = [psutil.virtual_memory().total]
    for folder in cgroup_folders(root):
        for limit in ("memory.max", "memory.limit_in_bytes"):  # of version 2, and 1
            with suppress(OSError, ValueError):
                sizes.append(int((folder / limit).read_text()))
    return round(min(sizes) / 1024**3, 1)


def cgroup_folders(root: Path = Path("/")) -> list[Path]:
    """Where the cgroups that count this process's memory should be, each before the one around it. In a
    container the inner ones may be missing: its own stands in place of the outermost."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            own = Path(path.lstrip("/"))
            folders += [root / "sys/fs/cgroup" / controllers / one for one in (own, *own.parents)]
    return folders


def _start_ticks(pid: int) -> int | None:
    """Start of a live process in clock ticks since boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before may hold spaces and parentheses
    return None if fields[0] in "ZX" else int(fields[19])


def _oom_kills(path: Path) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
