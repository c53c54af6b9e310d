"""Where jobs wait for a server, and in what order they get one.

Three lanes. *alone*: one process a program. *shared*: programs of our own generators, many a process; one
that harmed its process goes on alone. *slow*: programs that took longer than the other lanes wait
(``pool.PATIENCE``); they run, one process each, when nothing quick is waiting.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import NamedTuple

from arcnb.programs.executor.limits import Execution, Limits

SHARING = 256  # programs a process at most
HASH_SEED, OTHER_HASH_SEED = 0, 20250921

Deliver = Callable[[Execution], object]
Fail = Callable[[BaseException], object]


class Asker(NamedTuple):
    """Who is told of a verdict, or why there is none; ``has_left`` once nobody wants to hear it."""

    key: object
    deliver: Deliver
    fail: Fail
    has_left: Callable[[], bool]


@dataclass(slots=True, eq=False)
class Ticket:
    """A distinct (program, inputs, limits) on its way, and everyone who asked for it."""

    program: bytes
    grids: list[bytes]
    limits: Limits
    kind: str
    askers: list[Asker]
    number: int = 0
    losses: int = 0
    waiting_since: float = 0.0
    first: Execution | None = None  # the verdict of the first run, while a second run checks it
    identity: tuple = ()  # by a digest: a verdict is remembered longer than its program

    def __post_init__(self) -> None:
        told = hashlib.sha256(b"%d " % len(self.program) + self.program)
        for grid in self.grids:  # each begins with its size
            told.update(grid)
        self.identity = told.digest(), self.limits

    def is_wanted(self) -> bool:
        """Whether anybody still waits for it; those who have left are forgotten."""
        if any(asker.has_left() for asker in self.askers):
            self.askers = [asker for asker in self.askers if not asker.has_left()]
        return bool(self.askers)


@dataclass(slots=True, eq=False)
class Batch:
    """Tickets in one server's hands, by their index in it; ``seconds`` within which it has news."""

    tickets: dict[int, Ticket]
    lane: str
    seconds: float


@dataclass(slots=True, eq=False)
class Lanes:
    """What is waiting: those that may share by kind and limits, the others in order."""

    shared: OrderedDict[tuple[str, Limits], deque[Ticket]] = field(default_factory=OrderedDict)
    alone: deque[Ticket] = field(default_factory=deque)
    slow: deque[Ticket] = field(default_factory=deque)

    def put(self, ticket: Ticket, lane: str, first: bool = False) -> None:
        ticket.waiting_since = time.monotonic()
        if lane == "shared":
            queue = self.shared.setdefault((ticket.kind, ticket.limits), deque())
        else:
            queue = getattr(self, lane)
        (queue.appendleft if first else queue.append)(ticket)

    def drop(self, tickets: Container[Ticket]) -> None:
        """Take these out of line."""
        for key, queue in list(self.shared.items()):
            self.shared[key] = deque(ticket for ticket in queue if ticket not in tickets)
            if not self.shared[key]:
                del self.shared[key]
        self.alone = deque(ticket for ticket in self.alone if ticket not in tickets)
        self.slow = deque(ticket for ticket in self.slow if ticket not in tickets)

    def quick(self, kind: tuple[str, int] | None, share: int) -> tuple[str, list[Ticket]] | None:
        """The oldest quick work (for a kind of server, if given): its lane and its tickets.

        Programs that share are at most one of ``share`` parts of what waits, so that every worker gets some.
        """
        queues = [*self.shared.values(), self.alone] if self.alone else self.shared.values()
        heads = [(queue[0].number, queue) for queue in queues if kind in (None, server_kind(queue[0]))]
        if not heads:
            return None
        _, queue = min(heads, key=lambda head: head[0])
        if queue is self.alone:
            return "alone", [queue.popleft()]
        key = queue[0].kind, queue[0].limits
        tickets = [queue.popleft() for _ in range(min(SHARING, -(-len(queue) // share)))]
        if not queue:
            del self.shared[key]
        return "shared", tickets


def server_kind(ticket: Ticket) -> tuple[str, int]:
    """The kind of server a ticket needs next, and that server's hash seed."""
    return ticket.kind, HASH_SEED if ticket.first is None else OTHER_HASH_SEED
