"""The warm servers of one service: who is free, batches to them, records from them, and what a dead one had.

A server works on one batch at a time and may hold the next already, so that it need not wait for us. One that
dies, or is not heard of for too long, is put away; its tickets come back as records with the status ``lost``.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
import warnings
from collections.abc import Iterator

from arcnb.errors import ArcnbError
from arcnb.programs import wire
from arcnb.programs.executor.lanes import HASH_SEED, OTHER_HASH_SEED, Batch, Ticket
from arcnb.programs.executor.warm_server import WarmServer
from arcnb.programs.sandbox.preload import KINDS
from arcnb.programs.sandbox.time_limits import BY_THE_CLOCK

# Processor time after which a program is handed back as slow, so that it holds up no quick one (0: never),
# and how many times as much wall time on a machine that has a processor for every process.
PATIENCE = {"shared": 0.025, "alone": 0.015, "slow": 0.0}
WALL_PATIENCE = 2
DEPTH = {"shared": 2, "alone": 8, "slow": 1}  # batches in a server's hands, each one program but in `shared`
MAX_FAILED_STARTS = 3  # in a row
MAX_KILLED_STARTS = 5  # the same, where servers were killed: that may have been somebody's hand
PROCESSORS = os.cpu_count() or 1  # the machine's, as its load is
GRACE_SECONDS = 30.0  # beyond a program's own time, after which its server is taken for hung

News = Iterator[tuple[Ticket, wire.Record, str]]  # ticket, record, the lane it ran in

_warned: set[str] = set()


class Pool:
    """Servers of several kinds; ``selector`` wakes the service when one of them has news."""

    def __init__(self, workers: int, selector: selectors.BaseSelector) -> None:
        self.workers = workers
        self.servers: list[WarmServer] = []
        self._selector = selector
        self._failed_starts = 0

    @property
    def busy(self) -> int:
        return sum(bool(server.batches) for server in self.servers)

    @property
    def slow(self) -> int:
        """Servers that are at work on a slow program."""
        return sum(server.batches[0].lane == "slow" for server in self.servers if server.batches)

    @property
    def well_fed(self) -> bool:
        """Whether every worker has its next batch already, so that replies may gather for a moment."""
        depths = [len(server.batches) for server in self.servers if server.batches]
        return len(depths) >= self.workers and min(depths) > 1

    def not_full(self) -> Iterator[WarmServer]:
        """Servers at work that may hold one more batch."""
        for server in self.servers:
            if server.batches and _has_room(server):
                yield server

    def idle(self, kind: tuple[str, int]) -> WarmServer:
        """A server of this kind without a batch, rather one that is ready; a new one if there is none."""
        idle = [server for server in self._of(kind) if not server.batches]
        return max(idle, key=lambda server: server.ready, default=None) or self._start(kind)

    def quick(self, kind: tuple[str, int]) -> WarmServer:
        """A server of this kind for a quick batch. Where all that are ready are at work, one of them has it
        sooner than a new one, which takes a second to start; another is started for what comes after."""
        own = self._of(kind)
        ready = [server for server in own if server.ready and _has_room(server)]
        if not ready:
            return self.idle(kind)
        server = min(ready, key=lambda one: len(one.batches))
        if server.batches and all(one.ready for one in own) and len(own) < self.workers:
            self._start(kind)
        return server

    def _of(self, kind: tuple[str, int]) -> list[WarmServer]:
        return [server for server in self.servers if (server.kind, server.hash_seed) == kind]

    def warm(self) -> None:
        """Start what is missing of a server for every worker, of the kind that most programs need, and of one
        of each other kind, for which the first round that asks would wait."""
        for place, name in enumerate(KINDS):
            kind = name, HASH_SEED
            for _ in range((1 if place else self.workers) - len(self._of(kind))):
                self._start(kind)

    def _start(self, kind: tuple[str, int]) -> WarmServer:
        server = WarmServer(*kind)
        self.servers.append(server)
        server.watch(self._selector)
        return server

    def give(self, server: WarmServer, lane: str, tickets: list[Ticket]) -> None:
        """Put a batch in line for a server."""
        limits, again = tickets[0].limits, tickets[0].first is not None
        patience = min(PATIENCE[lane], limits.seconds, limits.seconds_per_input)
        wall_patience = WALL_PATIENCE * patience * max(1.0, os.getloadavg()[0] / PROCESSORS)
        jobs = [
            wire.encode_job(ticket.program, ticket.grids[::-1] if again else ticket.grids)
            for ticket in tickets
        ]
        orders = wire.Orders(
            lane=wire.SHARED if lane == "shared" else wire.ALONE,
            n_jobs=len(jobs),
            seconds=limits.seconds,
            seconds_per_input=limits.seconds_per_input,
            patience=patience,
            wall_patience=wall_patience,
            memory_mb=int(limits.memory_mb),
            output_bytes=int(limits.output_mb * 2**20),
            seed=OTHER_HASH_SEED if again else 0,
        )
        patient = len(tickets) * 2 * wall_patience
        until_news = patient if lane == "shared" else BY_THE_CLOCK * limits.seconds
        server.batches.append(Batch(dict(enumerate(tickets)), lane, until_news))
        server.last_news = time.monotonic()
        server.queue(wire.encode_task(orders, jobs))

    def send(self) -> News:
        """Send what is in line for the servers."""
        for server in list(self.servers):
            if server.waiting_to_send:
                yield from self.serve(server, selectors.EVENT_WRITE)

    def serve(self, server: WarmServer, events: int) -> News:
        """Send to and read from a server that is ready for it."""
        try:
            if events & selectors.EVENT_WRITE:
                server.flush()
                server.watch(self._selector)
            replies = list(server.replies()) if events & selectors.EVENT_READ else ()
        except (OSError, EOFError):
            yield from self._lose(server)
            return
        for what, body in replies:
            yield from self._hear(server, what, body)

    def check_hung(self) -> News:
        """Put away servers that have been silent for longer than any program of theirs may take."""
        now = time.monotonic()
        for server in list(self.servers):
            if server.batches and now - server.last_news > server.batches[0].seconds + GRACE_SECONDS:
                yield from self._lose(server, hung=True)

    def close(self) -> None:
        for server in self.servers:
            server.end()

    def _hear(self, server: WarmServer, what: int, body: bytes) -> News:
        server.last_news = time.monotonic()
        if what == wire.HELLO:
            server.ready = True
            self._failed_starts = 0
            warn_once(body.decode())
            return
        batch = server.batches[0]
        at = 0
        while at < len(body):
            end = wire.end_of_record(body, at)
            ticket = batch.tickets.pop(wire.index_of_record(body, at))
            try:
                record = wire.parse_record(body[at:end], len(ticket.grids))
            except wire.WireError as error:
                used = wire.measurements(body, at)
                record = wire.Record("crashed", (), "BadMessage", str(error), None, *used)
            ticket.losses += record.status == "lost"  # its process was killed, not its server
            yield ticket, record, batch.lane
            at = end
        if what == wire.DONE:
            server.batches.popleft()

    def _lose(self, server: WarmServer, hung: bool = False) -> News:
        """Put away a server that died or hangs; what it had is lost, through no fault of the programs.

        ArcnbError: too many in a row have not started.
        """
        self._selector.unregister(server.control)
        self.servers.remove(server)
        code, errors = server.end()
        if not server.ready:
            self._failed_starts += 1
            killed = code == -signal.SIGKILL
            if self._failed_starts >= (MAX_KILLED_STARTS if killed else MAX_FAILED_STARTS):
                python, why = server.process.args[0], errors.strip().rpartition("\n")[2]
                if hung:
                    why = "it said nothing for too long"
                elif killed:
                    why = "it was killed, as where memory is short (fewer workers need less)"
                raise ArcnbError(f"the program server cannot start under {python} (exit {code}): {why}")
        # Last ones first: each goes to the head of its queue.
        for place, batch in reversed(list(enumerate(server.batches))):
            for ticket in reversed(batch.tickets.values()):
                ticket.losses += server.ready and place == 0  # the others it had not come to
                yield ticket, wire.Record("lost"), batch.lane


def _has_room(server: WarmServer) -> bool:
    return not server.batches or len(server.batches) < DEPTH[server.batches[-1].lane]


def warn_once(lost: str) -> None:
    """Say, once a process, which layers of the sandbox this system lacks."""
    for line in lost.splitlines():
        if line not in _warned:
            _warned.add(line)
            warnings.warn(f"program sandbox: {line}", RuntimeWarning, stacklevel=2)
