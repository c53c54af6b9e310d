"""The executor's engine room: one thread that hands tasks to warm servers and turns records into verdicts.

At most ``workers`` servers are at work at a time; idle ones of several kinds may wait (see ``preload``). A
server that dies is replaced, and what it had in hand is run again.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import threading
import time
import warnings
from collections import OrderedDict, deque
from concurrent.futures import CancelledError
from dataclasses import replace

from arcnb.programs import wire
from arcnb.programs.lanes import OTHER_HASH_SEED, Lanes, Task, Ticket, first_lane, server_kind
from arcnb.programs.limits import Execution
from arcnb.programs.warm_server import ServerError, WarmServer

BATCH_SECONDS = 0.03  # processor time a program may use in a batch
DEPTH = {"batch": 2, "isolated": 4, "slow": 1}  # tasks in a server's hands, so that it need not wait for us
NAP_SECONDS = 0.004
MAX_LOSSES = 10  # how often a job may lose its process before that counts as its own doing
MAX_FAILED_STARTS = 3
LEARNT_FROM = 1000  # successes that an adaptive limit looks back on
LEAST_SECONDS = 0.2  # what an adaptive limit leaves a slow program at least
REMEMBERED = 4096  # verdicts kept, so that an identical job is not run again
SLOW_PATIENCE = 5.0  # seconds after which a slow program may hold up quick ones
GRACE_SECONDS = 30.0  # beyond a task's own time, after which its server is taken for hung

_warned: set[str] = set()


class Service:
    """Servers, lanes and the thread between them; started by the first job."""

    def __init__(self, workers: int | None, entry: str, adaptive: bool = False) -> None:
        self.workers = workers or usable_processors()
        self.entry = entry
        self.adaptive = adaptive
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._inbox: deque[Ticket] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._asleep = False

    # ---------------------------------------------------------------- called from any thread

    def add(self, ticket: Ticket, wake: bool = True) -> None:
        """Queue a ticket; its askers are answered from the service's thread, which ``wake`` makes look."""
        if self._pid != os.getpid():
            self._reset()  # we are a fork of the process that the servers belong to: start our own
        if self._closed:
            raise RuntimeError("the executor is closed")
        self._inbox.append(ticket)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._start()
        if wake:
            self.wake()

    def wake(self) -> None:
        """Have the thread look at what was added."""
        if self._asleep:
            self._asleep = False
            with contextlib.suppress(OSError):  # it is closing
                self._wake.send(b"x")

    def _start(self) -> None:
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._work, name="arcnb-executor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End every server, wait for it, and fail what was not answered."""
        self._closed = True
        if self._pid == os.getpid() and self._thread is not None:
            with contextlib.suppress(OSError):
                self._wake.send(b"x")
            self._thread.join()

    # ---------------------------------------------------------------- the service's thread

    def _work(self) -> None:
        self._servers: list[WarmServer] = []
        self._lanes = Lanes()
        self._flying: dict[tuple, Ticket] = {}
        self._remembered: OrderedDict[tuple, Execution] = OrderedDict()
        self._number = 0
        self._failed_starts = 0
        self._needed: deque[float] = deque(maxlen=LEARNT_FROM)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        error: BaseException = CancelledError("the executor was closed")
        try:
            while not self._closed:
                self._take_in()
                self._hand_out()
                self._send()
                self._asleep = True
                for key, events in self._selector.select(0 if self._inbox else 1.0):
                    if key.data is None:
                        self._woken.recv(4096)
                    else:
                        self._serve(key.data, events)
                self._asleep = False
                self._check_hung()
                if self._well_fed():
                    time.sleep(NAP_SECONDS)
        except ServerError as no_server:
            error = no_server
        except BaseException as unexpected:  # never leave anyone waiting for an answer
            error = unexpected
            raise
        finally:
            self._closed = True
            for server in self._servers:
                server.end()
            for ticket in [*self._flying.values(), *self._inbox]:
                for _, _, fail in ticket.askers:
                    fail(error)
            self._selector.close()
            self._woken.close()
            self._wake.close()

    def _take_in(self) -> None:
        """Move new tickets from the inbox to a lane, or answer them from what is known."""
        while self._inbox:
            ticket = self._inbox.popleft()
            identity = ticket.identity
            if known := self._remembered.get(identity):
                self._remembered.move_to_end(identity)
                answer(ticket, known)
            elif same := self._flying.get(identity):
                same.askers += ticket.askers
            else:
                self._number += 1
                ticket.number = self._number
                self._flying[identity] = ticket
                self._lanes.put(ticket, first_lane(ticket))

    def _hand_out(self) -> None:
        """Give waiting tickets to servers: quick ones first, slow ones when no quick one waits."""
        lanes = self._lanes
        while True:
            slow = sum(server.tasks[0].lane == "slow" for server in self._servers if server.tasks)
            busy = sum(bool(server.tasks) for server in self._servers)
            room = max(1, self.workers - slow)
            if busy - slow < room and (work := lanes.quick(None, 2 * room)):
                self._give(self._idle_server(server_kind(work[1][0])), *work)
                continue
            for server in self._servers:
                if server.tasks and len(server.tasks) < DEPTH[server.tasks[-1].lane]:
                    work = lanes.quick((server.kind, server.hash_seed), 2 * room)
                    if work:
                        self._give(server, *work)
                        break
            else:
                if not (lanes.slow and self._slow_may_start(busy, slow)):
                    return
                ticket = lanes.slow.popleft()
                self._give(self._idle_server(server_kind(ticket)), "slow", [ticket])

    def _slow_may_start(self, busy: int, slow: int) -> bool:
        if busy < self.workers and not (self._lanes.batch or self._lanes.isolated):
            return True
        waited = time.monotonic() - self._lanes.slow[0].waiting_since
        return waited > SLOW_PATIENCE and slow < max(1, self.workers // 2)

    def _learnt_seconds(self, seconds: float) -> float:
        """Ten times what all but one in a thousand recent successes needed, or ``seconds`` if less."""
        if not self.adaptive or len(self._needed) < LEARNT_FROM:
            return seconds
        needed = sorted(self._needed)[-LEARNT_FROM // 1000]
        return min(seconds, max(LEAST_SECONDS, 10 * needed))

    def _idle_server(self, kind: tuple[str, int]) -> WarmServer:
        for server in self._servers:
            if not server.tasks and (server.kind, server.hash_seed) == kind:
                return server
        server = WarmServer(*kind, self.entry)
        self._servers.append(server)
        server.watch(self._selector)
        return server

    def _give(self, server: WarmServer, lane: str, tickets: list[Ticket]) -> None:
        limits = tickets[0].limits
        seconds = self._learnt_seconds(limits.seconds) if lane == "slow" else limits.seconds
        again = tickets[0].first is not None
        jobs = [
            wire.encode_job(ticket.program, ticket.grids[::-1] if again else ticket.grids)
            for ticket in tickets
        ]
        in_batch = lane == "batch"
        message = wire.encode_task(
            jobs,
            lane=wire.BATCH if in_batch else wire.ISOLATED,
            seconds=min(BATCH_SECONDS, seconds) if in_batch else seconds,
            seconds_per_input=limits.seconds_per_input,
            memory_mb=int(limits.memory_mb),
            output_bytes=int(limits.output_mb * 2**20),
            fresh_calls=limits.fresh_calls,
            seed=OTHER_HASH_SEED if again else 0,
        )
        seconds = len(tickets) * 20 * BATCH_SECONDS if in_batch else limits.seconds
        server.tasks.append(Task(dict(enumerate(tickets)), lane, seconds))
        server.last_news = time.monotonic()
        server.queue(message)

    def _send(self) -> None:
        for server in list(self._servers):
            if server.waiting_to_send:
                self._serve(server, selectors.EVENT_WRITE)

    def _serve(self, server: WarmServer, events: int) -> None:
        """Send to and read from a server that is ready for it."""
        try:
            if events & selectors.EVENT_WRITE:
                server.flush()
                server.watch(self._selector)
            if events & selectors.EVENT_READ:
                for what, body in server.replies():
                    self._hear(server, what, body)
        except (OSError, EOFError):
            self._lose(server)

    def _hear(self, server: WarmServer, what: int, body: bytes) -> None:
        server.last_news = time.monotonic()
        if what == wire.HELLO:
            server.ready = True
            self._failed_starts = 0
            warn_once(body.decode())
            return
        task = server.tasks[0]
        at = 0
        while at < len(body):
            end = wire.end_of_record(body, at)
            ticket = task.tickets.pop(wire.index_of_record(body, at))
            try:
                record = wire.parse_record(body[at:end])
            except wire.WireError as error:
                record = verdict("crashed", "BadMessage", str(error))
            self._settle(ticket, record, task.lane)
            at = end
        if what == wire.DONE:
            server.tasks.popleft()

    def _settle(self, ticket: Ticket, record: wire.Record, lane: str) -> None:
        """What follows from a record: another lane, a second run, or the final verdict."""
        if record.status in ("isolate", "slow") and lane == "batch":
            self._lanes.put(ticket, "isolated" if record.status == "isolate" else "slow")
            return
        if record.status == "lost":
            ticket.losses += 1
            if ticket.losses < MAX_LOSSES:
                self._lanes.put(
                    ticket, "batch" if lane == "batch" and ticket.losses < 2 else "isolated", first=True
                )
                return
            record.status = "crashed"
        elif record.status in ("isolate", "slow"):
            record = verdict("crashed", "BadMessage", f"a program cannot answer {record.status!r}")
        elif record.status == "ok" and len(record.outputs) != len(ticket.grids):
            message = f"{len(record.outputs)} outputs for {len(ticket.grids)} inputs"
            record = verdict("crashed", "BadMessage", message)
        execution = Execution(
            record.status,
            record.outputs if record.status == "ok" else None,
            record.error_type,
            record.error_message,
            record.error_line,
            record.seconds,
            record.cpu_seconds,
            record.memory_mb,
            ticket.askers[0][0],
        )
        if self.adaptive and execution.status == "ok":
            self._needed.append(execution.seconds)
        if ticket.limits.check_determinism:
            if ticket.first is None and execution.status == "ok":
                ticket.first = execution
                self._lanes.put(ticket, "isolated")
                return
            if ticket.first is not None:
                execution = compared(ticket.first, execution)
        identity = ticket.identity
        del self._flying[identity]
        if record.status != "crashed":
            self._remembered[identity] = execution
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
        answer(ticket, execution)

    def _lose(self, server: WarmServer) -> None:
        """Put away a server that died, and run again what it had in hand."""
        self._selector.unregister(server.control)
        self._servers.remove(server)
        code, errors = server.end()
        if not server.ready and code != -signal.SIGKILL:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                python = server.process.args[0]
                raise ServerError(f"the program server cannot start under {python} (exit {code}): {errors}")
        for place, task in reversed(list(enumerate(server.tasks))):
            begun = server.ready and place == 0
            for ticket in reversed(task.tickets.values()):
                ticket.losses -= not begun  # it had not come to this one
                self._settle(ticket, verdict("lost", "SIGKILL", "its server was killed"), task.lane)

    def _well_fed(self) -> bool:
        """Whether every server has its next task already, so that replies may gather for a moment."""
        depths = [len(server.tasks) for server in self._servers if server.tasks]
        return len(depths) >= self.workers and min(depths) > 1

    def _check_hung(self) -> None:
        now = time.monotonic()
        for server in list(self._servers):
            if server.tasks and now - server.last_news > server.tasks[0].seconds + GRACE_SECONDS:
                self._lose(server)


def answer(ticket: Ticket, execution: Execution) -> None:
    """Tell everyone who asked, each with the key of its own job."""
    for key, deliver, _ in ticket.askers:
        deliver(execution if execution.key is key else replace(execution, key=key))


def compared(first: Execution, second: Execution) -> Execution:
    """The verdict after a second run on the inputs in reverse order."""
    if second.status != "ok":
        message = f"a second run ended with {second.status}: {second.error_message}"
    else:
        pairs = zip(first.outputs, reversed(second.outputs), strict=True)
        differ = [n for n, (a, b) in enumerate(pairs, 1) if a.shape != b.shape or (a != b).any()]
        if not differ:
            return first
        message = f"a second run gave other outputs for inputs {', '.join(map(str, differ))}"
    return replace(
        first, status="nondeterministic", outputs=None, error_type="Nondeterministic", error_message=message
    )


def verdict(status: str, error_type: str, message: str) -> wire.Record:
    """A record made on this side of the wire."""
    return wire.Record(0, status, (), error_type, message, None, 0.0, 0.0, 0.0)


def warn_once(lost: str) -> None:
    """Say, once a process, which layers of the sandbox this system lacks."""
    for line in lost.splitlines():
        if line not in _warned:
            _warned.add(line)
            warnings.warn(f"program sandbox: {line}", RuntimeWarning, stacklevel=2)


def usable_processors() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
