"""The other half of sampling: programs are run, scored and written while the engine goes on generating.

A program goes to the executor as soon as its completion is there, and is scored when its own verdict comes.
So a program that takes seconds holds up its own prompt and no other, and it is mostly done by the time the
prompt's longest completion is. Rows are kept once their prompt is whole. When a verdict comes does not change
it, nor which rows there are.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from functools import partial

from arcnb.arc.predictions.prediction import Prediction, PredictionKey
from arcnb.programs.executor.executor import Executor
from arcnb.programs.extraction import Extraction
from arcnb.programs.judging import Asked, judged
from arcnb.search.sampling.early_stop import EarlyStop
from arcnb.search.sampling.sampled_set import SampledSet

WAITING_ROWS = 8192  # so many may be put and not yet judged before the engine has to wait, too

PromptKey = tuple[str, int]  # task id and slot


class ScoringThread:
    """Judges and stores in a thread of its own; prompts that were put whole are on disk after `with`.

    Leaving the block on an error or an interrupt still judges and writes them, because those completions are
    paid for. A part is written every `part_rows` predictions or `part_seconds` of the set.
    there: rows on disk, which are not written again when they are made once more beside others of the prompt.
    """

    def __init__(
        self,
        made: SampledSet,
        executor: Executor,
        shard: tuple[int, int],
        early_stop: EarlyStop | None,
        there: Container[PredictionKey] = (),
    ):
        self.made, self.executor, self.shard = made, executor, shard
        self.early_stop, self.there = early_stop, there
        self._tasks = {task.task_id: task for task in made.tasks}
        self._asked = Asked(self._tasks)
        self._room = threading.Semaphore(WAITING_ROWS)
        # What the thread has to do, as engine and executor say in theirs; None: no more completions.
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._prompts: dict[PromptKey, dict[int, Prediction]] = {}  # judged rows of prompts under way
        self._rows_under_way = 0
        self._part: list[Prediction] = []
        self._written = time.monotonic()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="judge-and-write", daemon=True)

    def __enter__(self) -> ScoringThread:
        self.executor.warm()  # while the engine makes the first completions
        self._thread.start()
        return self

    def put(self, key: PromptKey, n: int, row: Prediction) -> None:
        """Queue one of the n completions of a prompt; waits while too many are not judged yet."""
        while self._error is None:
            if self._room.acquire(timeout=1.0):
                return self._inbox.put(partial(self._ask, key, n, row))
        raise self._error

    def leave_out(self, key: PromptKey) -> None:
        """This prompt has no completions and will have none."""
        self._inbox.put(partial(self._take, key, []))

    def drop(self, key: PromptKey) -> None:
        """Forget what was put of this prompt, which will never be whole."""
        self._inbox.put(partial(self._prompts.pop, key, None))

    def __exit__(self, kind, error, trace) -> None:
        self._inbox.put(None)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _work(self) -> None:
        more = True
        try:
            while more or self._rows_under_way:
                try:
                    do = self._inbox.get(timeout=self.made.part_seconds)
                    more = more and do is not None
                    if do:
                        do()
                except queue.Empty:  # an old part has to be written though nothing comes
                    pass
                due = time.monotonic() - self._written > self.made.part_seconds
                if self._part and (due or len(self._part) >= self.made.part_rows):
                    self._write()
            if self._part:
                self._write()
        except BaseException as error:
            self._error = error

    def _ask(self, key: PromptKey, n: int, row: Prediction) -> None:
        """Hand the program of a completion to the executor, whose own thread only passes the verdict on."""
        found, job = self._asked.about(row)
        self._prompts.setdefault(key, {})
        self._rows_under_way += 1

        def deliver(execution: Future) -> None:
            self._inbox.put(partial(self._score, key, n, row, found, execution))

        self.executor.submit(job).add_done_callback(deliver)

    def _score(self, key: PromptKey, n: int, row: Prediction, found: Extraction, execution: Future) -> None:
        self._room.release()
        self._rows_under_way -= 1
        rows = self._prompts.get(key)
        if rows is None:  # its prompt was dropped
            return
        rows[row.index] = judged(row, found, execution.result(), self._tasks[row.task_id])
        if len(rows) == n:
            del self._prompts[key]
            self._take(key, [rows[index] for index in range(n)])

    def _take(self, key: PromptKey, rows: Sequence[Prediction]) -> None:
        if self.early_stop is not None:
            rows = self.early_stop.keep(*key, rows)
        self._part += [row for row in rows if row.key not in self.there]

    def _write(self) -> None:
        first = min(row.round for row in self._part)
        self.made.predictions.write_part(self._part, first, *self.shard)
        self._part, self._written = [], time.monotonic()
