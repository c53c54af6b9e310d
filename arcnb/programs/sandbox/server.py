"""The warm server: a fresh interpreter that has loaded what programs import and forks a child for each.

    python server.py <socket> <caller's pid> <kind> <entry> <package folder> <library folders>

The executor starts it and talks to it over one socket. A server never runs a program itself and never holds
an expected output. It reads one task at a time, has it run (``forks``) and sends the records back. It ends
when the executor's process ends or closes the socket.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    import importlib.util

    sys.path += sys.argv[6].split(os.pathsep)
    # This very copy of the package, without making its folder a place to import from.
    _folder = os.path.join(sys.argv[5], "arcnb")
    _init = os.path.join(_folder, "__init__.py")
    _spec = importlib.util.spec_from_file_location("arcnb", _init, submodule_search_locations=[_folder])
    sys.modules["arcnb"] = importlib.util.module_from_spec(_spec)
    # Nothing is to be done after a fork: `random` would draw a new seed from the system in every child.
    os.register_at_fork = lambda **_: None

import gc
import select
import signal
import warnings

from arcnb.programs import wire
from arcnb.programs.sandbox import child, heap
from arcnb.programs.sandbox.batch import Batch
from arcnb.programs.sandbox.forks import Forks
from arcnb.programs.sandbox.preload import load, program_names
from arcnb.programs.sandbox.rehearsal import rehearse
from arcnb.programs.sandbox.walls import Sandbox


class Control:
    """The server's end of the socket to the executor."""

    def __init__(self, descriptor: int, caller: int) -> None:
        self.descriptor = descriptor
        self.caller = caller

    def receive(self) -> bytearray:
        """The next task, without its length; ends the server when there will be none."""
        waiting = select.poll()
        waiting.register(self.descriptor, select.POLLIN)
        while not waiting.poll(1000):
            self.leave_if_orphaned()
        (length,) = wire.LENGTH.unpack(self._read_exactly(wire.LENGTH.size))
        return self._read_exactly(length)

    def _read_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            n = os.readv(self.descriptor, [view])
            if n == 0:
                os._exit(0)
            view = view[n:]
        return data

    def reply(self, what: int, body: bytes) -> None:
        """Send records, or what else a reply may hold."""
        try:
            child.write_all(self.descriptor, wire.LENGTH.pack(len(body) + 1) + bytes((what,)) + body)
        except OSError:
            os._exit(0)

    def leave_if_orphaned(self) -> None:
        """End the server, and with it its child, if the executor's process is gone."""
        if os.getppid() != self.caller:
            os._exit(0)


def serve(control: Control, forks: Forks) -> None:
    """Answer tasks until the executor goes away."""
    while True:
        orders, jobs = wire.decode_task(control.receive())
        if orders.lane == wire.BATCH:
            forks.run_batch(orders, jobs, lambda records: control.reply(wire.RECORDS, records))
            control.reply(wire.DONE, b"")
        else:
            # One only, so that this process, and its child, holds no program but this one.
            ((program, grids),) = jobs
            run = forks.run_fresh if orders.fresh_calls else forks.run_isolated
            control.reply(wire.DONE, run(orders, program, grids))


def main() -> None:
    # The socket may have a high number, from a caller with many open files; children close only low ones.
    descriptor = os.dup(int(sys.argv[1]))
    os.close(int(sys.argv[1]))
    control = Control(descriptor, int(sys.argv[2]))
    kind, entry = sys.argv[3:5]
    sys.argv = [""]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    libraries, readable = load(kind)
    names = program_names(libraries)
    batch = Batch(entry, names, libraries)
    rehearse(batch, names)
    forks = Forks(control, Sandbox(readable), entry, names, batch)
    for name, module in sys.modules.items():
        if name.split(".")[0] == "arcnb" and hasattr(module, "__path__"):
            module.__path__ = []  # nothing more is imported from here
    heap.keep_freed_memory()
    gc.collect()
    heap.fill_gaps()
    gc.freeze()
    gc.disable()
    forks.measure_idle_child()
    control.reply(wire.HELLO, "\n".join(forks.sandbox.lost).encode())
    serve(control, forks)


if __name__ == "__main__":
    main()
