"""Where jobs wait for a server, and in what order they get one.

Three lanes. *batch*: most programs at first, many a process. *isolated*: programs that a batch handed back,
that ask for fresh calls, or that are run a second time; one process each. *slow*: programs that took longer
than the other lanes wait (``pool.PATIENCE``); they run, one process each, when nothing quick is waiting.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from arcnb.programs.executor.limits import Execution, Limits
from arcnb.programs.sandbox.plain_names import TELLTALES

BATCH_PROGRAMS = 256
LEAD = 1000  # younger jobs that may overtake one whose batch is not yet worth a process
HASH_SEED, OTHER_HASH_SEED = 0, 20250921

Deliver = Callable[[Execution], object]
Fail = Callable[[BaseException], object]


@dataclass(slots=True, eq=False)
class Ticket:
    """A distinct (program, inputs, limits) on its way, and everyone who asked for it."""

    program: bytes
    grids: list[bytes]
    limits: Limits
    kind: str
    askers: list[tuple[object, Deliver, Fail]]
    number: int = 0
    losses: int = 0
    waiting_since: float = 0.0
    first: Execution | None = None  # the verdict of the first run, while a second run checks it
    identity: tuple = ()

    def __post_init__(self) -> None:
        self.identity = self.program, tuple(self.grids), self.limits


@dataclass(slots=True, eq=False)
class Task:
    """Tickets in one server's hands, by their index in the task; ``seconds`` within which it has news."""

    tickets: dict[int, Ticket]
    lane: str
    seconds: float


@dataclass(slots=True, eq=False)
class Lanes:
    """What is waiting: batches by kind and limits, the others in order."""

    batch: OrderedDict[tuple[str, Limits], deque[Ticket]] = field(default_factory=OrderedDict)
    isolated: deque[Ticket] = field(default_factory=deque)
    slow: deque[Ticket] = field(default_factory=deque)

    def __iter__(self) -> Iterator[Ticket]:
        for queue in (*self.batch.values(), self.isolated, self.slow):
            yield from queue

    def put(self, ticket: Ticket, lane: str, first: bool = False) -> None:
        ticket.waiting_since = time.monotonic()
        if lane == "batch":
            queue = self.batch.setdefault((ticket.kind, ticket.limits), deque())
        else:
            queue = getattr(self, lane)
        (queue.appendleft if first else queue.append)(ticket)

    def quick(self, kind: tuple[str, int] | None, share: int) -> tuple[str, list[Ticket]] | None:
        """The oldest quick work (for a kind of server, if given): its lane and its tickets.

        A batch takes at most one of ``share`` parts of what waits, so that every worker gets some. A short
        queue gives way for a moment to a full one: a process for few programs costs as much as for many.
        """
        heads = [
            (queue[0].number + LEAD * (len(queue) < BATCH_PROGRAMS // 2), "batch", key)
            for key, queue in self.batch.items()
            if kind is None or kind == (key[0], HASH_SEED)
        ]
        if self.isolated and (kind is None or kind == server_kind(self.isolated[0])):
            heads.append((self.isolated[0].number, "isolated", None))
        if not heads:
            return None
        _, lane, key = min(heads, key=lambda head: head[0])
        if lane == "isolated":
            return lane, [self.isolated.popleft()]
        queue = self.batch[key]
        n = min(BATCH_PROGRAMS, -(-len(queue) // share))
        tickets = [queue.popleft() for _ in range(n)]
        if not queue:
            del self.batch[key]
        return lane, tickets


def first_lane(ticket: Ticket) -> str:
    """Where a job begins; a batch hands it back if it cannot stay there."""
    program = ticket.program
    if (
        ticket.limits.fresh_calls
        or program.startswith(b"class ")
        or any(text in program for text in TELLTALES)
    ):
        return "isolated"
    return "batch"


def server_kind(ticket: Ticket) -> tuple[str, int]:
    """The kind of server a ticket needs next, and that server's hash seed."""
    return ticket.kind, HASH_SEED if ticket.first is None else OTHER_HASH_SEED
