"""The other half of sampling: programs are run, scored and written while the engine goes on generating."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from arcnb.arc.predictions import Prediction, PredictionSet
from arcnb.arc.tasks import Task
from arcnb.programs.executor import Executor
from arcnb.programs.judging import judge
from arcnb.search.early_stop import EarlyStop

WAITING_PROMPTS = 1024  # so many may wait to be judged before the engine has to wait, too
BATCH_PROMPTS = 256  # judged together at most


@dataclass(frozen=True)
class Answers:
    """All completions of one prompt, as predictions still to be judged; none for a prompt left out."""

    task_id: str
    round: int
    rows: list[Prediction]


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
        self._queue: queue.Queue[Answers | None] = queue.Queue(WAITING_PROMPTS)
        self._part: list[Prediction] = []
        self._written = time.monotonic()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="judge-and-write", daemon=True)

    def __enter__(self) -> ScoringThread:
        self.executor.warm()  # while the engine makes the first completions
        self._thread.start()
        return self

    def put(self, answers: Answers | None) -> None:
        """Queue the completions of one prompt (None: no more will come); waits while the queue is full."""
        while self._error is None:
            try:
                return self._queue.put(answers, timeout=1.0)
            except queue.Full:
                continue
        raise self._error

    def __exit__(self, kind, error, trace) -> None:
        if self._error is None:
            self.put(None)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _work(self) -> None:
        try:
            for prompts in self._batches():
                made = [row for one in prompts for row in one.rows]
                judged = iter(list(judge(made, self.tasks, self.executor)))
                for one in prompts:
                    self._take(one, list(islice(judged, len(one.rows))))
                due = time.monotonic() - self._written > self.part_seconds
                if self._part and (due or len(self._part) >= self.part_rows):
                    self._write()
            if self._part:
                self._write()
        except BaseException as error:
            self._error = error

    def _take(self, answers: Answers, rows: list[Prediction]) -> None:
        self.program_seconds += sum(row.seconds or 0.0 for row in rows)
        if self.early_stop is None:
            self._part += rows
        else:
            self._part += self.early_stop.keep(answers.task_id, answers.round, rows)

    def _batches(self) -> Iterator[list[Answers]]:
        """What waits, as one list; an empty one now and then, so that an old part gets written."""
        ended = False
        while not ended:
            batch: list[Answers] = []
            try:
                one = self._queue.get(timeout=self.part_seconds)
                while one is not None and len(batch) < BATCH_PROMPTS - 1:
                    batch.append(one)
                    one = self._queue.get_nowait()
                ended = one is None
                batch += [] if ended else [one]
            except queue.Empty:
                pass
            yield batch

    def _write(self) -> None:
        self.predictions.write_part(self._part, min(row.round for row in self._part), *self.shard)
        self._part, self._written = [], time.monotonic()
