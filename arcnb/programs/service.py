"""The executor's engine room: a thread that hands tasks to warm servers and turns their records into verdicts."""

from __future__ import annotations

import importlib.util
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from arcnb.programs import wire
from arcnb.programs.limits import Execution, Job, Limits

_SERVER = Path(__file__).with_name("server.py")
_PACKAGE = Path(__file__).parents[2]


@dataclass(slots=True, eq=False)
class Ticket:
    """A job on its way: what to send, how often it was tried, whom to tell."""

    job: Job
    limits: Limits
    program: bytes
    grids: list[bytes]
    kind: str
    deliver: Callable[[Execution], object]
    fail: Callable[[BaseException], object]
    tries: int = 0


@dataclass(slots=True, eq=False)
class Worker:
    """One server process and the tickets it is working on."""

    process: subprocess.Popen
    control: socket.socket
    kind: str
    tickets: list[Ticket] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)


class Service:
    """Servers, a queue and the thread between them; started by the first job."""

    def __init__(self, workers: int | None, entry: str) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))
        self.entry = entry
        self._queue: deque[Ticket] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._running: list[Worker] = []

    def add(self, job: Job, limits: Limits, deliver: Callable, fail: Callable) -> None:
        """Queue a job; ``deliver`` is called with its execution, from the service's thread."""
        if self._closed:
            raise RuntimeError("the executor is closed")
        if not job.program or not job.program.strip():
            deliver(Execution("no_code", key=job.key))
            return
        grids = [wire.encode_grid(input_grid(grid, n)) for n, grid in enumerate(job.inputs)]
        program = job.program.encode("utf-8", "surrogatepass")
        ticket = Ticket(job, limits, program, grids, kind_of(job.program), deliver, fail)
        with self._lock:
            if self._thread is None:
                self._start()
        self._queue.append(ticket)
        self._wake.send(b"x")

    def _start(self) -> None:
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._loop, name="arcnb-executor", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._woken, selectors.EVENT_READ, None)
        while not self._closed:
            self._assign(selector)
            for key, _ in selector.select(1.0):
                if key.data is None:
                    self._woken.recv(4096)
                else:
                    self._read(key.data, selector)
        for worker in self._running:
            worker.process.kill()
            worker.control.close()
            worker.process.wait()
            self._queue.extend(worker.tickets)
        for ticket in self._queue:
            ticket.fail(CancelledError("the executor was closed"))
        self._woken.close()

    def _assign(self, selector: selectors.BaseSelector) -> None:
        while self._queue:
            ticket = self._queue[0]
            busy = sum(bool(worker.tickets) for worker in self._running)
            if busy >= self.workers:
                return
            idle = [w for w in self._running if not w.tickets and w.kind == ticket.kind]
            if not idle:
                worker = start_worker(ticket.kind, self.entry)
                self._running.append(worker)
                selector.register(worker.control, selectors.EVENT_READ, worker)
                idle = [worker]
            self._queue.popleft()
            worker = idle[0]
            worker.tickets = [ticket]
            limits = ticket.limits
            message = wire.encode_task(
                [wire.encode_job(ticket.program, ticket.grids)],
                lane=wire.ISOLATED,
                seconds=limits.seconds,
                seconds_per_input=limits.seconds_per_input,
                memory_mb=int(limits.memory_mb),
                output_bytes=int(limits.output_mb * 2**20),
            )
            try:
                worker.control.sendall(message)
            except OSError:
                self._lose(worker, selector)

    def _read(self, worker: Worker, selector: selectors.BaseSelector) -> None:
        try:
            data = worker.control.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self._lose(worker, selector)
            return
        worker.received += data
        while len(worker.received) >= 4:
            (length,) = wire.LENGTH.unpack_from(worker.received)
            if len(worker.received) < 4 + length:
                return
            body = bytes(worker.received[4 : 4 + length])
            del worker.received[: 4 + length]
            at = 1
            while at < len(body):
                size, index = wire.RECORD.unpack_from(body, at)[:2]
                end = at + wire.RECORD.size + size
                ticket, worker.tickets = worker.tickets[index], []
                try:
                    record, _ = wire.parse_record(body[:end], at)
                except wire.WireError as error:
                    record = wire.Record(0, "crashed", (), "BadMessage", str(error), None, 0.0, 0.0, 0.0)
                self._settle(ticket, record)
                at = end

    def _settle(self, ticket: Ticket, record: wire.Record) -> None:
        status, outputs = record.status, None
        kind, message = record.error_type, record.error_message
        if status == "lost":
            ticket.tries += 1
            if ticket.tries < 3:
                self._queue.appendleft(ticket)
                return
            status = "crashed"
        if status == "ok":
            if len(record.outputs) == len(ticket.grids):
                outputs = record.outputs
            else:
                status, kind = "crashed", "BadMessage"
                message = f"{len(record.outputs)} outputs for {len(ticket.grids)} inputs"
        ticket.deliver(
            Execution(
                status,
                outputs,
                kind,
                message,
                record.error_line,
                record.seconds,
                record.cpu_seconds,
                record.memory_mb,
                ticket.job.key,
            )
        )

    def _lose(self, worker: Worker, selector: selectors.BaseSelector) -> None:
        selector.unregister(worker.control)
        worker.control.close()
        worker.process.kill()
        worker.process.wait()
        self._running.remove(worker)
        for ticket in worker.tickets:
            self._settle(
                ticket, wire.Record(0, "lost", (), "SIGKILL", "its server died", None, 0.0, 0.0, 0.0)
            )

    def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._wake.send(b"x")
            self._thread.join()
            self._wake.close()
            self._thread = None


def input_grid(value: object, number: int) -> np.ndarray:
    """An input as uint8 cells; ``ValueError`` names the input that is no grid."""
    array = np.asarray(value)
    if array.ndim != 2 or array.dtype.kind not in "iu" or not all(1 <= side <= 30 for side in array.shape):
        raise ValueError(
            f"input {number}: a grid of 1..30 by 1..30 integers expected, got {array.dtype} {array.shape}"
        )
    if array.min() < 0 or array.max() > 9:
        raise ValueError(f"input {number}: cells {array.min()}..{array.max()} are outside 0..9")
    return array.astype(np.uint8)


def kind_of(program: str) -> str:
    """Which server a program needs: one with the libraries it mentions already loaded."""
    if "scipy" in program:
        return "scipy"
    return "common"


def start_worker(kind: str, entry: str) -> Worker:
    """Start one server in a fresh interpreter."""
    ours, theirs = socket.socketpair()
    settings = {
        "control": theirs.fileno(),
        "caller": os.getpid(),
        "package": str(_PACKAGE),
        "libraries": library_paths(),
        "kind": kind,
        "entry": entry,
    }
    environment = {
        "PYTHONHASHSEED": "0",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
    }
    process = subprocess.Popen(
        [sys.executable, "-s", "-S", "-P", "-B", str(_SERVER), json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if os.environ.get("ARCNB_EXECUTOR_DEBUG") else subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env=environment,
        start_new_session=True,
        cwd="/",
    )
    theirs.close()
    return Worker(process, ours, kind)


def library_paths() -> list[str]:
    """The folders that hold numpy and scipy, found without importing them."""
    specs = [importlib.util.find_spec(name) for name in ("numpy", "scipy")]
    return sorted({str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin})
