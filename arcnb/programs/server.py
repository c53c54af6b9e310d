"""The warm server: a fresh interpreter that forks one child a program and watches over it.

    python server.py '{"control": 5, "caller": 1234, "package": "/...", "libraries": [...], "kind": "numpy", ...}'

The executor starts it and talks to it over one socket. A server never runs a program itself and never holds an
expected output. It reads one task at a time, forks, enforces the deadlines, kills and joins the child, and
sends the records back. It ends when the executor's process ends or closes the socket.
"""

from __future__ import annotations

import json
import sys

if __name__ == "__main__":
    SETTINGS = json.loads(sys.argv[1])
    sys.path[:0] = [SETTINGS["package"]]
    sys.path += [path for path in SETTINGS["libraries"] if path not in sys.path]

import gc
import importlib
import math
import mmap
import os
import select
import signal
import socket
import struct
import time
import warnings

from arcnb.programs import child, sandbox, wire

PROGRESS = struct.Struct("<IId")  # job index, number of the input being worked on (0 = loading), started
LIBRARIES = {
    "common": "arcnb.programs.barc",
    "dsl": "arcnb.programs.dsl",
    "rearc_dsl": "arcnb.programs.rearc_dsl",
}
FIRST_FREE_DESCRIPTOR = 3


class Server:
    """One control socket, one child at a time."""

    def __init__(self, settings: dict) -> None:
        self.control = socket.socket(fileno=settings["control"])
        self.caller = settings["caller"]
        self.entry = settings["entry"]
        self.pid = os.getpid()
        self.progress = mmap.mmap(-1, mmap.PAGESIZE)
        self.names = program_names(settings["kind"])
        self.poller = select.poll()
        self.poller.register(self.control, 0)
        sandbox.restrict_server()
        self.address_space = sandbox.address_space()
        self.rss = peak_rss_mb()

    def serve(self) -> None:
        """Answer tasks until the executor goes away."""
        while True:
            task = self.receive()
            lane, fresh, reverse, n_jobs, *limits, seed = wire.TASK.unpack_from(task)
            jobs = wire.decode_jobs(task, n_jobs)
            records = [self.run_isolated(i, jobs[i], *limits, seed, reverse) for i in range(n_jobs)]
            self.reply(records, last=True)

    def receive(self) -> memoryview:
        waiting = select.poll()
        waiting.register(self.control, select.POLLIN)
        while not waiting.poll(1000):
            self.leave_if_orphaned()
        (length,) = wire.LENGTH.unpack(self.read_exactly(wire.LENGTH.size))
        return memoryview(self.read_exactly(length))

    def read_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            n = self.control.recv_into(view)
            if n == 0:
                os._exit(0)
            view = view[n:]
        return data

    def reply(self, records: list[bytes], last: bool) -> None:
        body = b"".join([bytes((last,)), *records])
        try:
            self.control.sendall(wire.LENGTH.pack(len(body)) + body)
        except OSError:
            os._exit(0)

    def leave_if_orphaned(self, pid: int | None = None) -> None:
        if os.getppid() != self.caller:
            if pid:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)

    # ---------------------------------------------------------------- one child a program

    def run_isolated(
        self,
        index: int,
        job: tuple,
        seconds: float,
        per_input: float,
        memory_mb: int,
        most: int,
        seed: int,
        reverse: bool,
    ) -> bytes:
        """Fork, watch, kill, join: the record of one program."""
        program, grids = job
        read_end, write_end = os.pipe()
        start = time.monotonic()
        PROGRESS.pack_into(self.progress, 0, index, 0, start)
        pid = os.fork()
        if pid == 0:
            self.be_the_child(write_end, index, program, grids, seconds, memory_mb, seed, reverse)
        os.close(write_end)
        data, verdict = self.watch(pid, read_end, start, seconds, per_input, most, len(grids))
        os.close(read_end)
        os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        wall, cpu = time.monotonic() - start, usage.ru_utime + usage.ru_stime
        memory = max(0.0, usage.ru_maxrss / 1024 - self.rss)
        if verdict is None and len(data) >= wire.RECORD.size:
            size, *head, _, _, _, n_kind, n_message = wire.RECORD.unpack_from(data)
            if size == len(data) - wire.RECORD.size:
                payload = bytes(data[wire.RECORD.size :])
                head[0] = index
                return wire.RECORD.pack(size, *head, wall, cpu, memory, n_kind, n_message) + payload
        if verdict is None:
            verdict = death(status, len(data), cpu, seconds)
        return wire.encode_record(index, verdict[0], (), verdict[1], verdict[2], None, wall, cpu, memory)

    def be_the_child(self, write_end, index, program, grids, seconds, memory_mb, seed, reverse) -> None:
        try:
            os.dup2(write_end, FIRST_FREE_DESCRIPTOR)
            os.closerange(FIRST_FREE_DESCRIPTOR + 1, 256)
            sandbox.restrict_child(self.pid, seconds, self.address_space + memory_mb * 2**20)

            def progress(number: int) -> None:
                PROGRESS.pack_into(self.progress, 0, index, number, time.monotonic())

            record = child.run_alone(index, program, grids, self.entry, self.names, progress)
            child.write_all(FIRST_FREE_DESCRIPTOR, record)
        finally:
            os._exit(0)

    def watch(self, pid, read_end, start, seconds, per_input, most, n_inputs):
        """Collect what the child writes until its record is whole, it dies, or a deadline passes."""
        data = bytearray()
        self.poller.register(read_end, select.POLLIN)
        try:
            while True:
                _, number, began = PROGRESS.unpack_from(self.progress)
                now = time.monotonic()
                deadline = start + seconds
                if number and start <= began <= now:
                    deadline = min(deadline, began + per_input)
                left = deadline - now
                if left <= 0:
                    if now >= start + seconds:
                        return data, ("timeout", "Timeout", f"the program took longer than {seconds:g} s")
                    which = f"input {number} of {n_inputs}"
                    return data, ("timeout", "Timeout", f"{which} took longer than {per_input:g} s")
                ready = self.poller.poll(min(math.ceil(left * 1000), 1000))
                for descriptor, event in ready:
                    if descriptor != read_end and event:
                        os.kill(pid, signal.SIGKILL)
                        os._exit(0)
                if not ready:
                    self.leave_if_orphaned(pid)
                    continue
                chunk = os.read(read_end, 1 << 16)
                if not chunk:
                    return data, None
                data += chunk
                if len(data) > most + wire.RECORD.size:
                    return data, ("output_limit", "OutputLimit", f"wrote more than {most / 2**20:g} MiB")
                if len(data) >= wire.RECORD.size:
                    size = wire.RECORD.unpack_from(data)[0]
                    if len(data) >= wire.RECORD.size + size:
                        return data, None
        finally:
            self.poller.unregister(read_end)


def death(status: int, written: int, cpu: float, seconds: float) -> tuple[str, str, str]:
    """The verdict on a child that died without a whole record."""
    if written:
        return "crashed", "BadMessage", f"the process wrote {written} bytes that are no result"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
        if number == signal.SIGXCPU or (number == signal.SIGKILL and cpu >= seconds):
            return "timeout", "Timeout", f"the program used more than {seconds:g} s of processor time"
        if number == signal.SIGKILL:
            return "lost", "SIGKILL", "the process was killed from outside"
        return "crashed", name, f"the process died of {name}"
    code = os.waitstatus_to_exitcode(status)
    return "crashed", "Exit", f"the process ended with code {code} before it answered"


def program_names(kind: str) -> dict:
    """The names every program finds defined; loads the libraries of this kind of server."""
    import typing

    import numpy as np

    if kind == "scipy":
        import scipy.ndimage
        import scipy.optimize
        import scipy.signal
        import scipy.spatial.distance
        import scipy.stats  # noqa: F401
    names = {"np": np, "numpy": np, "List": typing.List, "Tuple": typing.Tuple}  # noqa: UP006
    if kind != "numpy":
        for alias, package in LIBRARIES.items():
            try:
                sys.modules[alias] = importlib.import_module(package)
            except ModuleNotFoundError:
                continue
        if "common" in sys.modules:
            library = sys.modules["common"]
            public = getattr(library, "__all__", [name for name in vars(library) if not name.startswith("_")])
            names = {name: getattr(library, name) for name in public} | names
    return names


def peak_rss_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    server = Server(SETTINGS)
    sys.path.remove(SETTINGS["package"])
    gc.collect()
    gc.freeze()
    server.serve()


if __name__ == "__main__":
    main()
