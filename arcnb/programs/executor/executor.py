"""Run untrusted programs: many, fast, isolated from us and from each other.

    with Executor(workers=4) as executor:
        for execution in executor.run(Job(program, inputs) for program in programs):
            print(execution.status, execution.outputs)

A program runs in a sandboxed child of a warm server process, never in ours and in no other program's; it
never sees an expected output. ``run`` streams, ``submit`` gives a future; both may be used from any thread,
also inside a notebook. One executor serves rewards, search and inference of a stage together.
``docs/explanation/security.md`` says what is stopped.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Event

import numpy as np

from arcnb.errors import ArcnbError
from arcnb.programs import wire
from arcnb.programs.executor.lanes import Asker, Ticket
from arcnb.programs.executor.limits import Execution, Job, Limits
from arcnb.programs.executor.service import Service
from arcnb.programs.sandbox.preload import kind_of

_CELL = np.dtype(np.uint8)
WINDOW = 4096  # jobs that `run` takes ahead of what has been consumed
WINDOW_SIZE = 1 << 26  # characters of their programs, or one more job: some carry megabytes of input


def _stays() -> bool:
    """Who asks by `submit` waits for the answer."""
    return False


class Executor:
    """A pool of sandboxed servers, started when the first job comes.

    ``workers`` is how many programs run at the same time (default: the processors this process may use).
    ``limits`` apply to jobs without limits of their own.
    ``shared``: every program that comes was written by our own generators, so that many may share a process,
    which is several times as fast; one could change the answers of the next. Never for a model's programs.
    """

    def __init__(self, workers: int | None = None, limits: Limits = Limits(), shared: bool = False) -> None:
        if workers is not None and workers < 1:
            raise ArcnbError(f"workers must be at least 1, got {workers}")
        self.limits = limits
        self.shared = shared
        self._service = Service(workers, shared)
        self.workers = self._service.workers
        self._end = weakref.finalize(self, self._service.close)

    @property
    def program_seconds(self) -> float:
        """Wall time that programs ran so far, of all workers together: every run counts, also one that is
        begun anew, and no verdict that was known already."""
        return self._service.program_seconds

    def warm(self) -> None:
        """Start the servers now, so that the first jobs wait for no imports. Returns at once."""
        self._service.warm()

    def submit(self, job: Job) -> Future[Execution]:
        """Queue one job, from any thread. Its future fails only when the executor is closed."""
        future: Future[Execution] = Future()
        future.set_running_or_notify_cancel()
        self._add(job, future.set_result, future.set_exception)
        return future

    def run(self, jobs: Iterable[Job], ordered: bool = True) -> Iterator[Execution]:
        """Yield one execution a job, in the order of the jobs or as they come.

        ``jobs`` may be endless or slow: at most ``WINDOW`` of them, or ``WINDOW_SIZE`` of their programs, are
        taken ahead of what has been consumed, and what is finished is given before the next is taken. What
        their source raises is raised behind the answers to the jobs before. Who leaves early (``break``, an
        error, ``close``) leaves no programs behind but those in servers' hands and those that somebody else
        asked for, too.
        """
        finished: SimpleQueue[tuple[int, Execution | BaseException]] = SimpleQueue()
        source, left = enumerate(jobs), Event()
        early: dict[int, Execution | BaseException] = {}
        sizes: dict[int, int] = {}
        taken, yielded, held, end = 0, 0, 0, None
        try:
            while end is None or yielded < taken:
                waits = end is not None or taken - yielded == WINDOW or held > WINDOW_SIZE
                if not waits:
                    try:
                        number, job = next(source)
                        deliver = partial(_deliver, finished, number)
                        self._add(job, deliver, deliver, left.is_set)
                        taken += 1
                        sizes[number] = len(job.program or "")
                        held += sizes[number]
                    except Exception as error:
                        end = error
                while waits or not finished.empty():
                    number, outcome = finished.get()
                    waits, early[number] = False, outcome
                    while (one := yielded if ordered else number) in early:
                        yield _unwrap(early.pop(one))
                        yielded += 1
                        held -= sizes.pop(one)
        finally:
            left.set()
            if yielded < taken:
                self._service.forget_who_left()
        if not isinstance(end, StopIteration):
            raise end

    def close(self) -> None:
        """End every process of the service and wait for it; jobs not yet answered fail."""
        self._end()

    def _add(
        self, job: Job, deliver: Callable, fail: Callable, has_left: Callable[[], bool] = _stays
    ) -> None:
        limits = job.limits or self.limits
        if not isinstance(job.program, str | None):
            raise ArcnbError(f"job {job.key!r}: the program must be text, got {type(job.program).__name__}")
        if job.program is None or not job.program.strip():
            deliver(Execution("no_code", key=job.key))
            return
        if not isinstance(job.inputs, Sequence | np.ndarray):
            raise ArcnbError(f"job {job.key!r}: a tuple of inputs expected, got {type(job.inputs).__name__}")
        if not 0 < len(job.inputs) < 1 << 16:
            raise ArcnbError(f"job {job.key!r}: 1 to 65535 inputs expected, got {len(job.inputs)}")
        grids = [_grid_bytes(grid, number, job) for number, grid in enumerate(job.inputs)]
        program = job.program.encode("utf-8", "surrogatepass")
        asker = Asker(job.key, deliver, fail, has_left)
        self._service.add(Ticket(program, grids, limits, kind_of(job.program), [asker]))

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Executor(workers={self.workers}, {self.limits})"


def _deliver(finished: SimpleQueue, number: int, outcome: Execution | BaseException) -> None:
    finished.put((number, outcome))


def _unwrap(outcome: Execution | BaseException) -> Execution:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _grid_bytes(value: object, number: int, job: Job) -> bytes:
    """An input as the wire carries it; ``ArcnbError`` names the input that is no grid."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        raise ArcnbError(f"job {job.key!r}, input {number}: a grid expected, got what is no array") from None
    shape, kind = array.shape, array.dtype
    if len(shape) != 2 or kind.kind not in "iu" or not (min(shape) > 0 and max(shape) <= wire.MAX_SIDE):
        raise ArcnbError(
            f"job {job.key!r}, input {number}: a grid of integers, 1..30 a side, expected, "
            f"got {kind} of shape {shape}"
        )
    if kind != _CELL:
        if array.min() < 0 or array.max() > 9:
            raise ArcnbError(
                f"job {job.key!r}, input {number}: cells {array.min()}..{array.max()}, outside 0..9"
            )
        array = array.astype(_CELL)
    cells = array.tobytes()
    if cells.translate(None, wire.DIGITS):
        raise ArcnbError(f"job {job.key!r}, input {number}: cell {array.max()} is outside 0..9")
    return bytes(shape) + cells
