"""The executor's handle on one warm server process: starting it, bytes to it, replies from it, its end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from arcnb.programs import wire

# A server shows this command line to every program. What is the caller's comes through the socket, and the
# packages are made without running their `__init__`, which imports what no server needs. A caller that
# ignores the end of its children, or blocks signals, hands that down to a server, which has to wait for its.
COMMAND = "import os; exec(os.read(0, int.from_bytes(os.read(0, 4), 'little'))); serve()"
START = """
import _signal, sys, types
_signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
_signal.pthread_sigmask(_signal.SIG_SETMASK, ())
sys.path += {libraries!r}
for name, folder in {packages!r}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
del name, folder
from arcnb.programs.sandbox import heap
heap.reserve({kind!r})
from arcnb.programs.sandbox import preload
loaded = preload.load({kind!r}, {libraries!r})
heap.use_up_crumbs()
from arcnb.programs.sandbox import server
serve = server.start(*loaded, {caller!r})
del loaded
"""
_PROGRAMS = Path(__file__).parents[1]
_PACKAGES = {"arcnb": str(_PROGRAMS.parent), "arcnb.programs": str(_PROGRAMS)}
# What a server's interpreter sees of the environment. Threads in linear algebra would each cost a program's
# address space, a fixed hash seed makes the order of sets the same in every run, and what the dynamic linker
# looks up at the start it need not look up in every child.
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "LD_BIND_NOW": "1",
}
_KEPT = "LD_LIBRARY_PATH"  # an interpreter from a module system or conda may not start without


class WarmServer:
    """One server process, with the batches in its hands in order (the first is being worked on)."""

    def __init__(self, kind: str, hash_seed: int) -> None:
        self.kind = kind
        self.hash_seed = hash_seed
        self.batches: deque = deque()
        self.ready = False
        self.last_news = time.monotonic()
        self._watched = 0
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the server)
        self.control, theirs = socket.socketpair()
        environment = _ENVIRONMENT | {"PYTHONHASHSEED": str(hash_seed)}
        if _KEPT in os.environ:
            environment[_KEPT] = os.environ[_KEPT]
        with theirs:
            self.process = subprocess.Popen(
                # The interpreter itself, not a link to it that lies in the caller's folder.
                [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-c", COMMAND, "arcnb-programs"],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=environment,
                start_new_session=True,
                cwd="/",
            )
        values = {"kind": kind, "caller": os.getpid(), "packages": _PACKAGES}
        start = START.format(libraries=_library_folders(), **values).encode()
        with contextlib.suppress(OSError):  # one that died already is noticed later
            self.control.sendall(wire.LENGTH.pack(len(start)) + start)
        self.control.setblocking(False)

    def queue(self, message: bytes) -> None:
        """Put a batch's bytes in line for ``flush``."""
        self._outgoing += message

    @property
    def waiting_to_send(self) -> bool:
        return bool(self._outgoing)

    def flush(self) -> None:
        """Send on; ``OSError`` when the server is gone."""
        with contextlib.suppress(BlockingIOError):
            while self._outgoing:
                del self._outgoing[: self.control.send(self._outgoing)]

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Register with ``selector`` for what there is to wait for, replies and room to send."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        if events != self._watched:
            (selector.modify if self._watched else selector.register)(self.control, events, self)
            self._watched = events

    def replies(self) -> Iterator[tuple[int, bytes]]:
        """The replies that have arrived, as (what, body); ``EOFError`` when the server is gone."""
        try:
            data = self.control.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self._incoming += data
        while len(self._incoming) >= wire.LENGTH.size:
            end = wire.LENGTH.size + wire.LENGTH.unpack_from(self._incoming)[0]
            if len(self._incoming) < end:
                return
            reply = bytes(self._incoming[wire.LENGTH.size : end])
            del self._incoming[:end]
            yield reply[0], reply[1:]

    def end(self) -> tuple[int, str]:
        """Kill the process, and with it its child, and wait for it; how it ended and the last it said."""
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=0 if self.ready else 0.2)  # one that failed to start ends by itself
        self.process.kill()
        code = self.process.wait()
        self._errors.seek(0)
        errors = self._errors.read().decode("utf-8", "replace").strip()[-2000:]
        self._errors.close()
        return code, errors


def _library_folders() -> list[str]:
    """The folders that hold numpy, scipy and RE-ARC's source, found without importing them."""
    folders = {}
    for name in ("numpy", "scipy", "reasoning_gym"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            folders[str(Path(spec.origin).parents[1])] = True
    return list(folders)
