"""The warm server: a fresh interpreter that has loaded what programs import and forks a child for each.

The executor starts it (``executor/warm_server.py``) and talks to it over one socket, its standard input. A
server never runs a program itself and never holds an expected output. It reads one task at a time, has it run
(``forks``) and sends the records back. It ends when the executor's process ends or closes the socket.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable

from arcnb.programs import wire
from arcnb.programs.sandbox import child, heap
from arcnb.programs.sandbox.forks import Forks
from arcnb.programs.sandbox.preload import program_names
from arcnb.programs.sandbox.shared import run_shared
from arcnb.programs.sandbox.walls import Sandbox


class Control:
    """The server's end of the socket to the executor; ``poller`` tells when the executor is gone."""

    def __init__(self, caller: int) -> None:
        self.descriptor = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self.poller = select.poll()
        self.poller.register(self.descriptor, 0)  # hang-up only
        if os.getppid() != caller:
            os._exit(0)
        # Children hold a copy of all this: a descriptor that they close tells them less than a number.
        self._process, self._caller = None, caller
        try:
            self._process, self._caller = os.pidfd_open(caller), None
            self.poller.register(self._process, select.POLLIN)
        except (AttributeError, OSError):
            pass  # then the socket tells, and `getppid` a little later

    def receive(self) -> bytearray:
        """The next task, without its length; ends the server when there will be none."""
        self.poller.modify(self.descriptor, select.POLLIN)
        while self.descriptor not in self.news(1000):
            pass
        self.poller.modify(self.descriptor, 0)
        (length,) = wire.LENGTH.unpack(self._read_exactly(wire.LENGTH.size))
        return self._read_exactly(length)

    def news(self, milliseconds: int) -> list[int]:
        """Descriptors with news in time; ends the server, and with it its child, if the executor is gone."""
        events = self.poller.poll(min(milliseconds, 1000))
        for descriptor, event in events:
            if descriptor == self._process or (descriptor == self.descriptor and event != select.POLLIN):
                os._exit(0)
        if self._caller and os.getppid() != self._caller:
            os._exit(0)
        return [descriptor for descriptor, _ in events]

    def reply(self, what: int, body: bytes) -> None:
        """Send records, or what else a reply may hold."""
        try:
            child.write_all(self.descriptor, wire.LENGTH.pack(len(body) + 1) + bytes((what,)) + body)
        except OSError:
            os._exit(0)

    def _read_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            n = os.readv(self.descriptor, [view])
            if n == 0:
                os._exit(0)
            view = view[n:]
        return data


def start(libraries: dict, readable: list, caller: int) -> Callable[[], None]:
    """Build the walls around what was loaded, say hello; what then serves until the executor goes.

    Nothing of these arguments is left in a frame that a program's child finds.
    """
    control = Control(caller)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    sys.argv = sys.orig_argv = [""]
    heap.settle()
    forks = Forks(control, Sandbox(readable), program_names(libraries))
    for name, module in sys.modules.items():
        if name.split(".")[0] == "arcnb" and hasattr(module, "__path__"):
            module.__path__ = []  # nothing more is imported from here
    os.dup2(1, 2)  # whatever this process, which may write no file, has to say
    gc.collect()
    gc.freeze()
    gc.disable()
    forks.measure_idle_child()
    control.reply(wire.HELLO, "\n".join(forks.sandbox.lost).encode())
    return lambda: _serve(control, forks)


def _serve(control: Control, forks: Forks) -> None:
    """Answer tasks until the executor goes away."""
    while True:
        orders, jobs = wire.decode_task(control.receive())
        if orders.lane == wire.SHARED:
            run_shared(forks, orders, jobs, lambda records: control.reply(wire.RECORDS, records))
            control.reply(wire.DONE, b"")
        else:
            # One only, so that this process, and its child, holds no program but this one.
            ((program, grids),) = jobs
            control.reply(wire.DONE, forks.run_isolated(orders, program, grids))
