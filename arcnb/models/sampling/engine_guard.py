"""Engine processes must not outlive the process that started them, not even if that one is killed by SIGKILL.

An engine in processes of its own holds gigabytes of memory, and when its parent vanishes it waits for
orders for ever. So a guard runs beside it, in a session of its own (a killed process group spares it): it
sleeps until the parent is gone, then kills every process that carries the engine's mark. The mark is an
environment variable, and the title for engines that overwrite their environment with a title. Their folder is
called after it, and goes with them.

This file is also the guard's program: `python engine_guard.py PARENT_PID MARK`.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

MARK_VARIABLE = "ARCNB_ENGINE_MARK"


def start_guard() -> tuple[str, subprocess.Popen]:
    """Starts a guard for this process, and makes `folder_of` its mark. Returns the mark that engine processes
    have to carry, and the guard.

    Terminate the guard after the engine was closed in good order.
    """
    mark = f"arcnb-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    folder_of(mark).mkdir(mode=0o700)
    command = [sys.executable, "-S", "-E", __file__, str(os.getpid()), mark]
    guard = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, close_fds=True)
    return mark, guard


def folder_of(mark: str) -> Path:
    """Where engine processes have their sockets and temporary files, which they leave when killed."""
    return Path(tempfile.gettempdir(), mark)


def marked_processes(mark: str) -> list[int]:
    """Ids of the running processes that carry `mark`, without this one and multiprocessing's cleaners."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended by now, or it is another user's
            title = (folder / "cmdline").read_bytes()
            if b"resource_tracker" in title or b"engine_guard" in title:  # it frees the shared memory
                continue
            carried = title + b"\0" + (folder / "environ").read_bytes()
            if mark.encode() in carried:
                found.append(int(folder.name))
    return found


def kill_marked(mark: str) -> None:
    """Kills all processes that carry `mark`, until two looks find none: a dying process may just have started
    a child, and a process that is being started shows no environment yet. Then their folder goes."""
    none_found = 0
    for _ in range(10):
        pids = marked_processes(mark)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        none_found = 0 if pids else none_found + 1
        if none_found == 2:
            break
        select.select([], [], [], 0.2)
    shutil.rmtree(folder_of(mark), ignore_errors=True)


def _watch(parent: int, mark: str) -> None:
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:
        pass  # gone already
    else:
        select.select([handle], [], [])
    kill_marked(mark)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2])
