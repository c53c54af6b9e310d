"""The executor's service: one thread that hands tickets to a pool of servers and decides what follows.

At most ``workers`` servers are at work at a time, and one more for quick programs while all of them have slow
ones; idle ones of several kinds may wait (see ``preload``). A ticket that was lost with its process is run
again; one that is slow changes lanes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import CancelledError

from arcnb.errors import ArcnbError
from arcnb.machine.processes import usable_cores
from arcnb.programs import wire
from arcnb.programs.executor.lanes import Lanes, Ticket, server_kind
from arcnb.programs.executor.limits import Execution
from arcnb.programs.executor.pool import PATIENCE, News, Pool
from arcnb.programs.executor.verdicts import answer, compared, execution_of, tell
from arcnb.programs.sandbox.time_limits import CLOCK

NAP_SECONDS = 0.004
MAX_LOSSES = 10  # how often a job may lose its process before that counts as its own doing
REMEMBERED = 4096  # verdicts kept, so that an identical job is not run again
SLOW_PATIENCE = 5.0  # seconds after which a slow program may hold up quick ones


class Service:
    """Servers, lanes and the thread between them; started by the first job."""

    def __init__(self, workers: int | None, shared: bool = False) -> None:
        self.workers = workers or usable_cores()
        self.shared = shared
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # reentrant: garbage collection may close us while it is held
        self._inbox: deque[Ticket] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failure: BaseException | None = None  # what ended the thread, other than a call of close
        self._asleep = False
        self._is_full = False  # what comes has to wait for a server: it need not be seen before there is news
        self._to_warm = False
        self._somebody_left = False
        self.program_seconds = 0.0

    # ---------------------------------------------------------------- called from any thread

    def add(self, ticket: Ticket) -> None:
        """Queue a ticket; its askers are answered from the service's thread."""
        if self._pid != os.getpid():
            self._reset()  # we are a fork of the process that the servers belong to: start our own
        with self._lock:  # what is appended here is seen by the thread, at the latest by its last look
            self._start()
            self._inbox.append(ticket)
        if not self._is_full:
            self.wake()

    def warm(self) -> None:
        """Start a server for every worker, of the kind that most programs need, and one of each other."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            self._start()
            self._to_warm = True
        self.wake()

    def forget_who_left(self) -> None:
        """Have what nobody waits for any more dropped before it is run."""
        if self._pid == os.getpid():
            self._somebody_left = True
            self.wake()

    def wake(self) -> None:
        """Have the thread look at what was added."""
        if self._asleep:
            self._asleep = False
            with contextlib.suppress(OSError):  # it is closing
                self._wake.send(b"x")

    def _start(self) -> None:
        """Start the thread unless it runs. To be called with the lock.

        Raises ArcnbError with the reason when a server could not start, RuntimeError when we are closed.
        """
        if isinstance(self._failure, ArcnbError):
            raise ArcnbError(str(self._failure)) from self._failure
        if self._closed:
            raise RuntimeError("the executor is closed") from self._failure
        if self._thread is not None:
            return
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._work, name="arcnb-executor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End every server, wait for it, and fail what was not answered.

        In the service's own thread (a callback, or garbage collection there) that follows once this returns.
        """
        if self._pid != os.getpid():
            return  # we are a fork: the servers are not ours, and a thread left behind may hold the lock
        with self._lock:
            self._closed = True
        if self._thread is not None:
            with contextlib.suppress(OSError):
                self._wake.send(b"x")
            if self._thread is not threading.current_thread():
                self._thread.join()

    # ---------------------------------------------------------------- the service's thread

    def _work(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._woken, selectors.EVENT_READ, None)
        self.pool = Pool(self.workers, selector)
        self._lanes = Lanes()
        self._flying: dict[tuple, Ticket] = {}
        self._remembered: OrderedDict[tuple, Execution] = OrderedDict()
        self._number = 0
        error: BaseException = CancelledError("the executor was closed")
        try:
            while not self._closed:
                if self._to_warm:
                    self._to_warm = False
                    self.pool.warm()
                self._take_in()
                if self._somebody_left:
                    self._somebody_left = False
                    self._drop_unwanted()
                self._hand_out()
                self._settle_all(self.pool.send())
                self._is_full = bool(self._lanes.shared or self._lanes.alone)
                self._asleep = True
                for key, events in selector.select(0 if self._inbox else 1.0):
                    if key.data is None:
                        self._woken.recv(4096)
                    else:
                        self._settle_all(self.pool.serve(key.data, events))
                self._asleep = self._is_full = False
                self._settle_all(self.pool.check_hung())
                if self.pool.well_fed:
                    time.sleep(NAP_SECONDS)
        except ArcnbError as no_server:
            error = self._failure = no_server
        except BaseException as unexpected:  # never leave anyone waiting for an answer
            error = self._failure = unexpected
            raise
        finally:
            with self._lock:
                self._closed = True
                unanswered = [*self._flying.values(), *self._inbox]
            self.pool.close()
            for ticket in unanswered:
                for asker in ticket.askers:
                    tell(asker.fail, error)
            selector.close()
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
                self._lanes.put(ticket, "shared" if self.shared else "alone")

    def _drop_unwanted(self) -> None:
        """Those in a server's hands are run; what becomes of them is dropped then."""
        unwanted = {ticket for ticket in self._flying.values() if not ticket.is_wanted()}
        batches = [batch for server in self.pool.servers for batch in server.batches]
        held = {ticket for batch in batches for ticket in batch.tickets.values()}
        for ticket in unwanted - held:
            del self._flying[ticket.identity]
        self._lanes.drop(unwanted)

    def _hand_out(self) -> None:
        """Give waiting tickets to servers: quick ones first, slow ones when no quick one waits."""
        lanes, pool = self._lanes, self.pool
        while True:
            busy, slow = pool.busy, pool.slow
            room = max(1, self.workers - slow)
            if busy - slow < room and (work := lanes.quick(None, 2 * room)):
                pool.give(pool.quick(server_kind(work[1][0])), *work)
                continue
            for server in pool.not_full():
                if work := lanes.quick((server.kind, server.hash_seed), 2 * room):
                    pool.give(server, *work)
                    break
            else:
                if not (lanes.slow and self._slow_may_start(busy, slow)):
                    return
                ticket = lanes.slow.popleft()
                pool.give(pool.idle(server_kind(ticket)), "slow", [ticket])

    def _slow_may_start(self, busy: int, slow: int) -> bool:
        if busy < self.workers and not (self._lanes.shared or self._lanes.alone):
            return True
        waited = time.monotonic() - self._lanes.slow[0].waiting_since
        return waited > SLOW_PATIENCE and slow < max(1, self.workers // 2)

    def _settle_all(self, news: News) -> None:
        for ticket, record, lane in news:
            self._settle(ticket, record, lane)

    def _settle(self, ticket: Ticket, record: wire.Record, lane: str) -> None:
        """What follows from a record: another lane, a second run, or the final verdict."""
        self.program_seconds += record.seconds
        if not ticket.is_wanted():
            del self._flying[ticket.identity]
            return
        if record.status == "slow" and lane != "slow":
            # One that was only kept from running, by a busy machine, goes before those that ran on and on.
            self._lanes.put(ticket, "slow", first=record.cpu_seconds < PATIENCE[lane] / 2)
            return
        if record.status == "isolate" and lane == "shared":
            self._lanes.put(ticket, "alone")
            return
        if record.status == "lost":
            if ticket.losses < MAX_LOSSES:
                again = lane == "shared" and ticket.losses < 2
                self._lanes.put(ticket, "shared" if again else "alone", first=True)
                return
            killed = f"the process was killed {ticket.losses} times, as where a machine runs out of memory"
            record = wire.Record("crashed", (), record.error_type or "SIGKILL", killed)
        elif record.status in ("isolate", "slow"):
            record = wire.Record("crashed", (), "BadMessage", f"a program cannot answer {record.status!r}")
        execution = execution_of(record, ticket)
        if ticket.limits.check_determinism:
            if ticket.first is None and execution.status == "ok":
                ticket.first = execution
                self._lanes.put(ticket, "alone")
                return
            if ticket.first is not None:
                execution = compared(ticket.first, execution)
        identity = ticket.identity
        del self._flying[identity]
        by_the_clock = record.status == "timeout" and (record.error_message or "").endswith(CLOCK)
        if record.status != "crashed" and not by_the_clock:  # either may have been the machine's doing
            self._remembered[identity] = execution
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
        answer(ticket, execution)
