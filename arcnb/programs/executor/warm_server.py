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

_SCRIPT = Path(__file__).parents[1] / "sandbox" / "server.py"
_PACKAGE = Path(__file__).parents[3]
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
_KEPT = ("LD_LIBRARY_PATH", "TMPDIR")  # an interpreter from a module system or conda may not start without


class ServerError(RuntimeError):
    """A server process could not be started; the message holds what it said."""


class WarmServer:
    """One server process, with the tasks in its hands in order (the first is being worked on)."""

    def __init__(self, kind: str, hash_seed: int, entry: str) -> None:
        self.kind = kind
        self.hash_seed = hash_seed
        self.tasks: deque = deque()
        self.ready = False
        self.last_news = time.monotonic()
        self._watched = 0
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the server)
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        arguments = [theirs.fileno(), os.getpid(), kind, entry, _PACKAGE, os.pathsep.join(_library_folders())]
        environment = _ENVIRONMENT | {name: os.environ[name] for name in _KEPT if name in os.environ}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-B", str(_SCRIPT), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                env=environment | {"PYTHONHASHSEED": str(hash_seed)},
                start_new_session=True,
                cwd="/",
            )

    def queue(self, message: bytes) -> None:
        """Put a task's bytes in line for ``flush``."""
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
