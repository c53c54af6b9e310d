"""The time limits of a program, enforced by its server from outside the program's process.

A child says in a page of shared memory which input it is at and since when. The server (``forks``) looks at
a ``Watch`` between two waits and kills the child when the watch has a verdict. A limit is processor time, so
that a verdict does not depend on what else the machine does; by the clock a program has ``BY_THE_CLOCK``
times as long. One that forges the page wins no more than the limit for the whole. Memory and files are
bounded by ``walls``, the size of an answer by ``forks``.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import time

from arcnb.programs.wire import Orders

# What the child is at (an input from 1, 0 = loading; or a program, see `shared`), since when, and the
# processor time used by then.
_PROGRESS = struct.Struct("<Idd")
_EMPTY = bytes(mmap.PAGESIZE)
BY_THE_CLOCK = 3.0  # times its limit that a program has by the clock: it may wait for a processor
CLOCK = "by the clock"  # so ends the message where that was too long, which the machine may have done
EXIT_SECONDS = 0.05  # for a process that has closed its pipe to end by itself
EXIT_CPU_SECONDS = 0.005  # ending needs microseconds

# What a child needs has names of its own: each object touched on the way may cost it a page.
_pack, _monotonic, _process_time = _PROGRESS.pack_into, time.monotonic, time.process_time

Verdict = tuple[str, str | None, str | None]  # status, error type, message
SLOW: Verdict = ("slow", None, None)  # an order to the executor, see `wire`


class ProgressPage(mmap.mmap):
    """One page that a server shares with its child."""

    def __new__(cls) -> ProgressPage:
        return super().__new__(cls, -1, mmap.PAGESIZE)

    def wipe(self) -> None:
        """Before a fork; the whole page, for a child before may have left a message behind the numbers."""
        self[:] = _EMPTY

    def note(self, number: int) -> None:
        """In the child: what it begins now."""
        _pack(self, 0, number, _monotonic(), _process_time())

    def read(self) -> tuple[int, float, float]:
        """Number, and the wall and processor time when it began; any values if the program forged them."""
        return _PROGRESS.unpack_from(self)


class Watch:
    """The clock of one program in a process of its own, from just before its fork."""

    def __init__(self, orders: Orders, n_inputs: int, page: ProgressPage) -> None:
        self.start = time.monotonic()
        self._orders = orders
        self._n_inputs = n_inputs
        self._page = page
        # No program is late before that.
        self.first_look = min(orders.patience or math.inf, orders.seconds_per_input, orders.seconds)

    def look(self, pid: int) -> tuple[float, Verdict | None]:
        """Seconds until the next look is due, and the verdict if the program's time is up."""
        number, began, used_then = self._page.read()  # before the clocks, which go on
        orders, now, used = self._orders, time.monotonic(), processor_time(pid)
        clocks = [("the program", orders.seconds, used, now - self.start)]
        if number and self.start <= began <= now:
            one, worked = f"input {number} of {self._n_inputs}", used - used_then
            clocks.append(
                (one, orders.seconds_per_input, worked if 0 <= worked <= used else 0.0, now - began)
            )
        left = math.inf
        for what, limit, worked, passed in clocks:
            longest = BY_THE_CLOCK * limit
            if worked >= limit or passed >= longest:
                bound = f"{limit:g} s" if worked >= limit else f"{longest:g} s {CLOCK}"
                late = f"{what} took longer than {bound}"
                return 0.0, ("timeout", "Timeout", late)
            left = min(left, limit - worked, longest - passed)
        if orders.patience:
            patience = min(orders.patience - used, self.start + orders.wall_patience - now)
            if patience <= 0:
                return 0.0, SLOW
            left = min(left, patience)
        # The next input may begin during a sleep, so never sleep for longer than one input may take.
        return min(left, orders.seconds_per_input), None

    def after_closed_pipe(self, pid: int) -> Verdict | None:
        """Wait for a child that can answer no more to end; the verdict if it goes on instead.

        Where the server has patience with quick programs only, one that goes on is handed back as slow: by
        then a kill from outside cannot be told from ours.
        """
        since, cpu = time.monotonic(), processor_time(pid)
        left = min(EXIT_SECONDS, self.look(pid)[0])
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() - since > left or processor_time(pid) - cpu > EXIT_CPU_SECONDS:
                went_on = ("crashed", "ClosedPipe", "the process closed its pipe and went on")
                return SLOW if self._orders.patience else went_on
            time.sleep(0.0005)
        return None


def processor_time(pid: int) -> float:
    """Processor seconds a child has used so far (0 where the system does not say)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0
