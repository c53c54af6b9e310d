"""Child processes that end with their parent, how one ends, what their numbers mean, memory for them."""

import atexit
import ctypes
import multiprocessing
import os
import signal
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


def threads_each(n_processes: int) -> dict[str, str]:
    """The environment by which so many processes of this machine share the cores that this one may use.
    OpenMP starts a thread a core in each of them, unless it is told a number."""
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // n_processes))}


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
