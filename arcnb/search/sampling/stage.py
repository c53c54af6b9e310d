"""Asking an engine, running what it wrote, and writing the rows: one stage, whatever is asked.

The work list is the slots of the questions minus what the prediction set already holds, so a stage that
was killed is finished by starting it again; a part is written only with whole prompts, and an unfinished
prompt is generated anew. The caller's thread drives the engine; a second one runs the programs,
scores and writes, so the engine never waits for a program; a third makes the next prompts.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from arcnb.arc.predictions.prediction import Prediction, PredictionKey
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task
from arcnb.machine.pools import prefetched
from arcnb.machine.progress import progress
from arcnb.models.prompts.chat import prompts_ids
from arcnb.models.sampling.backends import Completion, Request
from arcnb.programs.executor.executor import Executor
from arcnb.search.sampling.early_stop import EarlyStop
from arcnb.search.sampling.questions import Question, Questions
from arcnb.search.sampling.report import InferenceReport
from arcnb.search.sampling.sampled_set import SampledSet
from arcnb.search.sampling.scoring import PromptKey, ScoringThread

PROMPTS_AHEAD = 32  # tokenizing takes milliseconds, in which the engine's thread can do something else
PROMPTS_TOGETHER = 16  # tokenized at once: less work than one by one, and other threads go on


def sample(
    made: SampledSet,
    questions: Questions,
    backend,
    executor: Executor,
    early_stop: EarlyStop | None = None,
    title: str = "sampling",
) -> InferenceReport:
    """Ask what is not yet in the set, judge the answers, write them, and say what was done."""
    started, programs_before = time.monotonic(), executor.program_seconds
    stage = _Stage(made, questions, backend, early_stop)
    stage.look_up(made.predictions)
    report = stage.report
    report.workers = executor.workers
    shard = (questions.plan.shard, questions.plan.n_shards)
    scoring = ScoringThread(made, executor, shard, early_stop, stage.there)
    bar = progress(None, title, report.asked, "prediction", done=stage.n_done)
    with scoring, bar:
        requests = stage.requests(scoring)
        for completion in backend.generate(stage.timed(requests), made.sampling):
            since = time.monotonic()
            n = questions.completions_in(completion.key[1])
            scoring.put(completion.key, n, stage.row(completion))
            if stage.is_whole(completion):
                bar.update(n)
            stage.cancel_stopped(scoring)
            report.away_seconds += time.monotonic() - since
        generated = time.monotonic()
    report.tail_seconds = time.monotonic() - generated
    if early_stop:
        report.stopped, report.dropped = len(early_stop.stopped), early_stop.dropped
    report.program_seconds = executor.program_seconds - programs_before
    report.seconds = time.monotonic() - started
    return report


class _Stage:
    """The state of one call of `sample`: what is done, what is under way, and the report."""

    def __init__(self, made: SampledSet, questions: Questions, backend, early_stop: EarlyStop | None):
        self.tasks: dict[str, Task] = {task.task_id: task for task in made.tasks}
        self.fingerprints = {task.task_id: task.fingerprint for task in made.tasks}
        self.questions, self.backend, self.early_stop = questions, backend, early_stop
        self.max_tokens = made.sampling.max_tokens
        self.names = {"model": made.model, "adapter": made.adapter}
        slots = [slot for task_id in self.tasks for slot in range(questions.slots(task_id))]
        self.report = InferenceReport(asked=sum(map(questions.completions_in, slots)))
        self.shown: dict[PromptKey, Question] = {}  # the prompts under way
        self.partial: dict[PromptKey, list[Completion]] = {}
        self.n_stopped = 0
        self.there: set[PredictionKey] = set()

    def look_up(self, predictions: PredictionSet) -> None:
        """What is on disk already: complete prompts, and how many of their predictions solve train.

        there: rows of a prompt of which more completions are wanted now, and which is asked anew.
        """
        names = ["task_id", "turn", "round", "parent", "index", "train_is_correct"]
        frame = predictions.read(columns=names, task_ids=self.tasks)
        frame["parent"] = frame["parent"].astype(object).where(frame["parent"].notna(), None)
        found: dict[PromptKey, set[PredictionKey]] = defaultdict(set)
        n_solving = Counter()
        for task_id, turn, round_, parent, index, solving in zip(
            *(frame[name] for name in names), strict=True
        ):
            slot = self.questions.slot_of(task_id, turn, round_, parent)
            if slot is not None and index < self.questions.completions_in(slot):
                found[task_id, slot].add((task_id, round_, index, turn))
                n_solving[task_id, slot] += solving == 1
        self.n_done = sum(map(len, found.values()))
        self.done = {key for key in found if len(found[key]) == self.questions.completions_in(key[1])}
        self.there = {row for key in found.keys() - self.done for row in found[key]}
        if self.early_stop:
            for key in sorted(self.done):
                self.early_stop.found(*key, n_solving[key])

    def requests(self, scoring: ScoringThread) -> Iterator[Request]:
        """The prompts to do, slot by slot; made little sooner than the engine has room for them."""
        for key, (question, ids) in prefetched(self.keys(), self.made, PROMPTS_AHEAD, PROMPTS_TOGETHER):
            if self.has_ended(key[0]):
                continue
            if len(ids) + self.max_tokens > self.backend.context:
                self.report.too_long[key[0]] = max(self.report.too_long.get(key[0], 0), len(ids))
                self.report.prompts_skipped += 1
                scoring.leave_out(key)
                continue
            self.shown[key] = question
            yield Request(ids, self.questions.completions_in(key[1]), question.seed, key)

    def keys(self) -> Iterator[PromptKey]:
        """What is not done, and not of a task that has ended early."""
        slots = {task_id: self.questions.slots(task_id) for task_id in self.tasks}
        for slot in range(max(slots.values(), default=0)):
            for task_id, n_slots in slots.items():
                if slot >= n_slots:
                    continue
                if (task_id, slot) in self.done:
                    self.report.found += self.questions.completions_in(slot)
                elif not self.has_ended(task_id):
                    yield task_id, slot

    def made(self, keys: list[PromptKey]) -> list[tuple[Question, list[int]]]:
        """The questions of some keys, and their prompts' token ids."""
        questions = [self.questions.question(self.tasks[task_id], slot) for task_id, slot in keys]
        ids = prompts_ids(self.backend.tokenizer, [question.prompt for question in questions])
        return list(zip(questions, ids, strict=True))

    def has_ended(self, task_id: str) -> bool:
        return self.early_stop is not None and task_id in self.early_stop.stopped

    def timed(self, requests: Iterable[Request]) -> Iterator[Request]:
        """The requests; the time that it takes to make them goes into the report."""
        since = time.monotonic()
        for request in requests:
            self.report.away_seconds += time.monotonic() - since
            yield request
            since = time.monotonic()

    def is_whole(self, completion: Completion) -> bool:
        """Whether the completion is the last one missing of its prompt, which then goes into the report."""
        together = self.partial.setdefault(completion.key, [])
        together.append(completion)
        if len(together) < self.questions.completions_in(completion.key[1]):
            return False
        del self.partial[completion.key], self.shown[completion.key]
        self.report.made += len(together)
        self.report.prompt_tokens += together[0].n_prompt_tokens
        self.report.completion_tokens += sum(len(made.token_ids) for made in together)
        self.report.truncated += sum(made.finish_reason == "length" for made in together)
        return True

    def cancel_stopped(self, scoring: ScoringThread) -> None:
        """Takes back what the engine was asked for tasks that have ended early."""
        if self.early_stop is None or self.n_stopped == len(self.early_stop.stopped):
            return
        stopped = set(self.early_stop.stopped)
        self.n_stopped = len(stopped)
        for key in [key for key in self.shown if key[0] in stopped]:
            self.backend.cancel(key)
            scoring.drop(key)
            del self.shown[key]
            self.partial.pop(key, None)

    def row(self, completion: Completion) -> Prediction:
        """The completion as a prediction that is still to be judged."""
        question = self.shown[completion.key]
        task_id = completion.key[0]
        return Prediction(
            task_id=task_id,
            task_fingerprint=self.fingerprints[task_id],
            round=question.round,
            turn=question.turn,
            parent=question.parent,
            seed=self.questions.plan.seed,
            **question.view.columns(),
            **completion.columns,
            completion_prefix=question.prompt.prefix,
            **self.names,
        )
