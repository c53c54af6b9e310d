"""The other half of sampling: programs are run, scored and written while the engine goes on generating.

Programs go to the executor as soon as their prompt is whole, and each is scored when its own verdict comes.
So a program that takes seconds holds up its own prompt and no other, and workers are idle only when there is
nothing left to run. When a prompt's verdicts come does not change them, nor which rows there are.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from arcnb.arc.predictions import Prediction, PredictionSet
from arcnb.arc.tasks import Task
from arcnb.programs.executor import Executor
from arcnb.programs.extraction import Extraction
from arcnb.programs.judging import Asked, judged
from arcnb.search.early_stop import EarlyStop

WAITING_PROMPTS = 1024  # so many may be put and not yet judged before the engine has to wait, too
JUDGED_ROWS = 4096  # rows in the executor's hands, beyond which the next prompt waits for its turn


@dataclass(frozen=True)
class Answers:
    """All completions of one prompt, as predictions still to be judged; none for a prompt left out."""

    task_id: str
    round: int
    rows: list[Prediction]


@dataclass(eq=False)
class _UnderWay:
    """A prompt whose programs are with the executor. left: rows that still have no verdict."""

    answers: Answers
    found: list[Extraction]
    left: int
    rows: list[Prediction] = field(init=False)  # judged, each in its place

    def __post_init__(self) -> None:
        self.rows = list(self.answers.rows)


class ScoringThread:
    """Judges and stores whole prompts in a thread of its own; what was put is on disk after `with`.

    Leaving the block on an error or an interrupt still judges and writes what was put, because those
    completions are paid for. A part is written every `part_rows` predictions or `part_seconds`.
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
    ):
        self.predictions, self.tasks, self.executor = predictions, tasks, executor
        self.shard, self.part_rows, self.part_seconds = shard, part_rows, part_seconds
        self.early_stop = early_stop
        self.program_seconds = 0.0
        self._asked = Asked(tasks, executor.entry, remembered=1)  # rows of a prompt come together
        self._room = threading.Semaphore(WAITING_PROMPTS)
        # Answers from the engine's thread (None: no more) and verdicts from the executor's.
        self._inbox: queue.SimpleQueue[Answers | tuple[_UnderWay, int, Future] | None] = queue.SimpleQueue()
        self._waiting: deque[Answers] = deque()
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

    def put(self, answers: Answers) -> None:
        """Queue the completions of one prompt; waits while too many are not judged yet."""
        while self._error is None:
            if self._room.acquire(timeout=1.0):
                return self._inbox.put(answers)
        raise self._error

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
                    self._ask(self._waiting.popleft())
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
        elif isinstance(news, Answers):
            self._waiting.append(news)
        else:
            self._score(*news)

    def _ask(self, answers: Answers) -> None:
        """Hand the programs of a prompt to the executor."""
        asked = [self._asked.about(row) for row in answers.rows]
        prompt = _UnderWay(answers, [found for found, _ in asked], len(asked))
        self._rows_under_way += len(asked)
        for place, (_, job) in enumerate(asked):
            self.executor.submit(job).add_done_callback(partial(self._deliver, prompt, place))
        if not asked:
            self._take(answers, [])

    def _deliver(self, prompt: _UnderWay, place: int, verdict: Future) -> None:
        self._inbox.put((prompt, place, verdict))  # in the executor's thread, which has other things to do

    def _score(self, prompt: _UnderWay, place: int, verdict: Future) -> None:
        row = prompt.rows[place]
        prompt.rows[place] = judged(row, prompt.found[place], verdict.result(), self.tasks[row.task_id])
        prompt.left -= 1
        self._rows_under_way -= 1
        if not prompt.left:
            self._take(prompt.answers, prompt.rows)

    def _take(self, answers: Answers, rows: list[Prediction]) -> None:
        self._room.release()
        self.program_seconds += sum(row.seconds or 0.0 for row in rows)
        if self.early_stop is None:
            self._part += rows
        else:
            self._part += self.early_stop.keep(answers.task_id, answers.round, rows)

    def _write(self) -> None:
        self.predictions.write_part(self._part, min(row.round for row in self._part), *self.shard)
        self._part, self._written = [], time.monotonic()
