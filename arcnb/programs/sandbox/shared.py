"""Many programs in one child, one after the other: for programs that our own generators wrote.

They are under the same walls and limits as any other, but share their memory: nothing keeps one from changing
what the next one finds. An executor asks for this lane only when it was made with ``shared=True``.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from arcnb.programs import wire
from arcnb.programs.sandbox import child
from arcnb.programs.sandbox.time_limits import processor_time
from arcnb.programs.wire import Orders

if TYPE_CHECKING:
    from arcnb.programs.sandbox.forks import Forks

FLUSH_SECONDS = 0.01
LOOK_SECONDS = 0.02


def run_shared(forks: Forks, orders: Orders, jobs: list, reply: Callable[[bytes], None]) -> None:
    """Run the jobs in as few children as it takes; ``reply`` with records as they come.

    A program that uses up our patience is handed back as slow, one whose child dies or runs out of memory as
    one to isolate; those after it continue in a new child.
    """
    left = list(range(len(jobs)))
    while left:
        left = _run_child(forks, orders, jobs, left, reply)


def _run_child(forks: Forks, orders: Orders, jobs: list, indices: list[int], reply: Callable) -> list[int]:
    """One child for as many of the programs as it gets through; the indices that are left."""
    budget = orders.patience
    start, longest = time.monotonic(), orders.wall_patience * len(indices) + 10
    pid, pipe = forks.fork(longest, orders.memory_mb)
    if pid == 0:
        try:
            _run_all(forks, jobs, indices)
        finally:
            os._exit(1)
    data, done, slow = bytearray(), 0, False
    while True:
        _, began, began_cpu = forks.page.read()
        now, total = time.monotonic(), processor_time(pid)
        used = total - began_cpu if 0 <= began_cpu <= total else total
        waited = now - began if start <= began <= now else now - start
        slow = used >= budget or waited >= orders.wall_patience or now - start >= longest
        if slow:
            break
        if forks.wait(pipe, min(LOOK_SECONDS, budget - used)):
            chunk = os.read(pipe, 1 << 18)
            if not chunk:
                break
            data += chunk
            done += _pass_on(data, indices[done:], reply)
    forks.end(pid, pipe)
    left = indices[done:]
    if left:
        index = forks.page.read()[0]
        culprit = index if index in left else left[0]
        reply(wire.encode_record(culprit, "slow" if slow else "isolate", cpu_seconds=used))
        left.remove(culprit)
    return left


def _run_all(forks: Forks, jobs: list, indices: list[int]) -> None:
    """In the child: a record a program, until one runs out of memory."""
    waiting, flushed, base = b"", time.monotonic(), _peak_mb()
    for index in indices:
        start, cpu = time.monotonic(), time.thread_time()
        if start - flushed > FLUSH_SECONDS:
            child.write_all(forks.RESULT, waiting)
            waiting, flushed = b"", start
        forks.page.note(index)
        program, grids = jobs[index]
        grids = [child.input_array(grid) for grid in grids]
        verdict = child.run_alone(program, grids, child.new_namespace(forks.names), _ignore)
        if verdict[0] == "memory":
            break
        used = time.monotonic() - start, time.thread_time() - cpu, _peak_mb() - base
        waiting += wire.encode_record(index, *verdict, *used)
    child.write_all(forks.RESULT, waiting)


def _pass_on(data: bytearray, expected: list[int], reply: Callable[[bytes], None]) -> int:
    """Send whole records on if they are those expected next, and take them off ``data``; how many."""
    at = count = 0
    while count < len(expected) and (end := wire.end_of_record(data, at)) <= len(data):
        if wire.index_of_record(data, at) != expected[count]:
            break
        at, count = end, count + 1
    if count:
        reply(bytes(data[:at]))
        del data[:at]
    return count


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _ignore(_: int) -> None:
    """These programs are timed by program, not by input."""
