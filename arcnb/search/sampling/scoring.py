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
from collections import deque
from collections.abc import Container, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from arcnb.arc.predictions.prediction import Prediction, PredictionKey
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task
from arcnb.programs.executor.executor import Executor
from arcnb.programs.extraction import Extraction
from arcnb.programs.judging import Asked, judged
from arcnb.search.sampling.early_stop import EarlyStop

WAITING_ROWS = 8192  # so many may be put and not yet judged before the engine has to wait, too
JUDGED_ROWS = 4096  # rows in the executor's hands, beyond which the next one waits for its turn

PromptKey = tuple[str, int]  # task id and slot


@dataclass(eq=False)
class _UnderWay:
    """A prompt of which rows are still to come or to be judged. left: so many; rows: each in its place."""

    key: PromptKey
    asked: Asked  # of this prompt alone, whose inputs are the same for all rows
    left: int
    rows: list[Prediction | None] = field(init=False)
    dropped: bool = False

    def __post_init__(self) -> None:
        self.rows = [None] * self.left


@dataclass(frozen=True)
class _Row:
    """A completion, as a prediction still to be judged, of a prompt with n of them."""

    key: PromptKey
    n: int
    row: Prediction


@dataclass(frozen=True)
class _End:
    """A prompt from which no more comes: left out from the start, or dropped with what came of it."""

    key: PromptKey
    left_out: bool


@dataclass(frozen=True)
class _Verdict:
    prompt: _UnderWay
    row: Prediction
    found: Extraction
    execution: Future


class ScoringThread:
    """Judges and stores in a thread of its own; prompts that were put whole are on disk after `with`.

    Leaving the block on an error or an interrupt still judges and writes them, because those completions are
    paid for. A part is written every `part_rows` predictions or `part_seconds`.
    there: rows on disk, which are not written again when they are made once more beside others of the prompt.
    program_seconds: time that programs ran so far, of all workers together.
    """

    def __init__(
        self,
        predictions: PredictionSet,
        tasks: Mapping[str, Task],
        executor: Executor,
        shard: tuple[int, int],
        part_rows: int,
        part_seconds: float,
        early_stop: EarlyStop | None,
        there: Container[PredictionKey] = (),
    ):
        self.predictions, self.tasks, self.executor = predictions, tasks, executor
        self.shard, self.part_rows, self.part_seconds = shard, part_rows, part_seconds
        self.early_stop, self.there = early_stop, there
        self.program_seconds = 0.0
        self._room = threading.Semaphore(WAITING_ROWS)
        # Completions from the engine's thread (None: no more) and verdicts from the executor's.
        self._inbox: queue.SimpleQueue[_Row | _End | _Verdict | None] = queue.SimpleQueue()
        self._prompts: dict[PromptKey, _UnderWay] = {}
        self._waiting: deque[tuple[_UnderWay, Prediction]] = deque()
        self._rows_under_way = 0
        self._ended = False
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
                return self._inbox.put(_Row(key, n, row))
        raise self._error

    def leave_out(self, key: PromptKey) -> None:
        """This prompt has no completions and will have none."""
        self._inbox.put(_End(key, left_out=True))

    def drop(self, key: PromptKey) -> None:
        """Forget what was put of this prompt, which will never be whole."""
        self._inbox.put(_End(key, left_out=False))

    def __exit__(self, kind, error, trace) -> None:
        self._inbox.put(None)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _work(self) -> None:
        try:
            while not (self._ended and not self._waiting and not self._rows_under_way):
                self._hear()
                while self._waiting and self._rows_under_way < JUDGED_ROWS:
                    self._ask(*self._waiting.popleft())
                due = time.monotonic() - self._written > self.part_seconds
                if self._part and (due or len(self._part) >= self.part_rows):
                    self._write()
            if self._part:
                self._write()
        except BaseException as error:
            self._error = error

    def _hear(self) -> None:
        """Take in what comes next, if anything does before an old part has to be written."""
        try:
            news = self._inbox.get(timeout=self.part_seconds)
        except queue.Empty:
            return
        if news is None:
            self._ended = True
        elif isinstance(news, _Verdict):
            self._score(news)
        elif isinstance(news, _Row):
            if news.key not in self._prompts:
                asked = Asked(self.tasks, self.executor.entry, remembered=1)
                self._prompts[news.key] = _UnderWay(news.key, asked, news.n)
            self._waiting.append((self._prompts[news.key], news.row))
        elif news.left_out:
            self._take(news.key, [])
        elif prompt := self._prompts.pop(news.key, None):
            prompt.dropped = True

    def _ask(self, prompt: _UnderWay, row: Prediction) -> None:
        """Hand the program of a completion to the executor."""
        if prompt.dropped:
            self._room.release()
            return
        found, job = prompt.asked.about(row)
        self._rows_under_way += 1
        self.executor.submit(job).add_done_callback(partial(self._deliver, prompt, row, found))

    def _deliver(self, prompt: _UnderWay, row: Prediction, found: Extraction, execution: Future) -> None:
        # In the executor's thread, which has other things to do.
        self._inbox.put(_Verdict(prompt, row, found, execution))

    def _score(self, news: _Verdict) -> None:
        self._room.release()
        self._rows_under_way -= 1
        prompt, row = news.prompt, news.row
        if prompt.dropped:
            return
        prompt.rows[row.index] = judged(row, news.found, news.execution.result(), self.tasks[row.task_id])
        prompt.left -= 1
        if not prompt.left:
            del self._prompts[prompt.key]
            self._take(prompt.key, prompt.rows)

    def _take(self, key: PromptKey, rows: list[Prediction]) -> None:
        self.program_seconds += sum(row.seconds or 0.0 for row in rows)
        if self.early_stop is not None:
            rows = self.early_stop.keep(*key, rows)
        self._part += [row for row in rows if row.key not in self.there]

    def _write(self) -> None:
        self.predictions.write_part(self._part, min(row.round for row in self._part), *self.shard)
        self._part, self._written = [], time.monotonic()
