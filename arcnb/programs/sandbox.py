"""The walls around a program: limits, no new privileges, death with the parent."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_libc = ctypes.CDLL(None, use_errno=True)
LINUX = sys.platform == "linux"


def restrict_server() -> None:
    """Once, in the warm server, before it runs any program."""
    if LINUX:
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def restrict_child(server_pid: int, seconds: float, address_space: int) -> None:
    """In the forked child, before it runs the program: own session, hard limits, death with the server."""
    os.setsid()
    if LINUX:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server_pid:
            os._exit(0)
    cpu = int(seconds) + 2
    for limit, value in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_AS, address_space),
    ):
        resource.setrlimit(limit, (value, value))


def address_space() -> int:
    """Address space of this process in bytes (0 where the system does not say)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0
