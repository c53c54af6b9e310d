"""Run untrusted programs: many, fast, isolated from us and from each other.

    with Executor(workers=4) as executor:
        for execution in executor.run(Job(program, inputs) for program in programs):
            print(execution.status, execution.outputs)

A program runs in a sandboxed child of a warm server process, never in ours; it never sees an expected output.
``run`` streams, ``submit`` gives a future; both may be used from any thread, also inside a notebook. One
executor serves rewards, search and inference of a stage together. ``docs/security.md`` says what is stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

from arcnb.programs.limits import STATUSES, Execution, Job, Limits, LimitsError
from arcnb.programs.service import Service

__all__ = ["STATUSES", "Execution", "Executor", "Job", "Limits", "LimitsError"]


class Executor:
    """A pool of sandboxed servers, started when the first job comes.

    ``workers`` is how many programs run at the same time (default: the processors this process may use).
    ``limits`` apply to jobs without limits of their own; ``entry`` is the function a program must define.
    """

    def __init__(
        self, workers: int | None = None, limits: Limits = Limits(), entry: str = "transform"
    ) -> None:
        self.limits = limits
        self.entry = entry
        self._service = Service(workers, entry)
        self.workers = self._service.workers

    def submit(self, job: Job) -> Future[Execution]:
        """Queue one job; thread-safe. The future always gets an ``Execution`` unless the executor is closed."""
        future: Future[Execution] = Future()
        future.set_running_or_notify_cancel()
        self._service.add(job, job.limits or self.limits, future.set_result, future.set_exception)
        return future

    def run(self, jobs: Iterable[Job], ordered: bool = True) -> Iterator[Execution]:
        """Yield one execution a job, in the order of the jobs or as they come.

        ``jobs`` may be endless: at most a few thousand are taken ahead of what has been consumed.
        """
        window = 1024 + 128 * self.workers
        pending: dict[Future, None] = {}
        source = iter(jobs)
        exhausted = False
        while True:
            while not exhausted and len(pending) < window:
                try:
                    pending[self.submit(next(source))] = None
                except StopIteration:
                    exhausted = True
            if not pending:
                return
            if ordered:
                first = next(iter(pending))
                del pending[first]
                yield first.result()
            else:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    del pending[future]
                    yield future.result()

    def close(self) -> None:
        """End every process of the service and wait for it; jobs not yet answered fail."""
        self._service.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Executor(workers={self.workers}, {self.limits})"
