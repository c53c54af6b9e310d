"""Is the process that a manifest names still there, and what did a dead one die of?

A pid alone proves nothing (it may be reused, or belong to another machine or container), so a process is
named by host, boot, pid namespace, pid and start time.
"""

import contextlib
import os
import signal
import socket
from pathlib import Path

from arcnb.machine.processes import cgroup_folders, pid_place


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
    known = -returncode in iter(signal.Signals)
    name = signal.Signals(-returncode).name if known else f"signal {-returncode}"
    why = " because memory ran out" if oom_kills else " (by hand, by a scheduler, or for want of memory)"
    return f"killed by {name}" + (why if name == "SIGKILL" else "")


def resident_gb(pid: int) -> float | None:
    """Resident memory of a process and its descendants in GB; a page that several share counts for each of
    them."""
    import psutil

    total = 0
    try:
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += member.memory_info().rss
    except psutil.Error:
        return None
    return round(total / 1024**3, 2)


def _start_ticks(pid: int) -> int | None:
    """Start of a live process in clock ticks since boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before may hold spaces and parentheses
    return None if fields[0] in "ZX" else int(fields[19])


def _oom_kills(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
