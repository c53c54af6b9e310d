"""Sampling predictions for a task set: rounds of prompts, programs run while the engine generates.

The work list is the rounds' prompts minus what the prediction set already holds, so a stage that was killed
is finished by starting it again; a part is written only with whole prompts, and an unfinished prompt is
generated anew. Any number of processes, each with its shard, fill one set and need not know of one another.

The caller's thread drives the engine; a second one runs the programs, scores and writes, so the engine
never waits for a program.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from arcnb.arc.predictions import Prediction, PredictionSet
from arcnb.arc.seeds import derive_seed
from arcnb.arc.tasks import Task
from arcnb.arc.views import View
from arcnb.models.chat import count_tokens, prompt_ids
from arcnb.models.generation import Completion, Request, Sampling
from arcnb.models.prompt_format import PromptFormat
from arcnb.programs.executor import Executor
from arcnb.progress import progress
from arcnb.search.conditions import conditions, hold_to_conditions
from arcnb.search.early_stop import EarlyStop
from arcnb.search.inference_report import InferenceReport
from arcnb.search.rounds import PlanError, RoundPlan, shard_tasks
from arcnb.search.scoring_thread import Answers, ScoringThread

__all__ = ["InferenceReport", "PlanError", "RoundPlan", "predict", "shard_of"]

PromptKey = tuple[str, int]  # task id and round


def predict(
    tasks: Sequence[Task],
    backend,
    predictions: PredictionSet,
    executor: Executor,
    plan: RoundPlan,
    prompt_format: PromptFormat,
    sampling: Sampling,
    *,
    model: str = "",
    adapter: str = "",
    part_rows: int = 2048,
    part_seconds: float = 60.0,
) -> InferenceReport:
    """Fill `predictions` up to the plan and say what was done. Raises PlanError before any work is lost."""
    hold_to_conditions(predictions, conditions(tasks, plan, prompt_format, sampling, model, adapter))
    started = time.monotonic()
    mine = shard_of(tasks, plan, prompt_format, sampling, backend)
    stage = _Stage(mine, backend, plan, prompt_format, sampling, {"model": model, "adapter": adapter})
    stage.look_up(predictions)
    report = stage.report
    report.workers = executor.workers
    scoring = ScoringThread(
        predictions, stage.tasks, executor, plan.shard, part_rows, part_seconds, stage.early_stop
    )
    bar = progress(None, "sampling", report.asked, "prediction", done=stage.n_done)
    with scoring, bar:
        requests = stage.requests(scoring)
        for completion in backend.generate(stage.timed(requests), sampling):
            since = time.monotonic()
            if rows := stage.rows_when_whole(completion):
                scoring.put(Answers(*completion.key, rows))
                bar.update(len(rows))
            stage.cancel_stopped()
            report.away_seconds += time.monotonic() - since
    if stage.early_stop:
        report.stopped, report.dropped = len(stage.early_stop.stopped), stage.early_stop.dropped
    report.program_seconds = scoring.program_seconds
    report.seconds = time.monotonic() - started
    return report


def shard_of(
    tasks: Sequence[Task], plan: RoundPlan, prompt_format: PromptFormat, sampling: Sampling, backend
) -> list[Task]:
    """The tasks of the plan's shard; shards are balanced by tokens to read and, at most, to write."""
    if plan.shard[1] == 1:
        return list(tasks)
    prompts = [prompt_format.prompt(View.plain(task).apply(task)) for task in tasks]
    written = plan.n_predictions * sampling.max_tokens
    weights = [
        plan.n_rounds * length + written if length + sampling.max_tokens <= backend.context else 0
        for length in count_tokens(backend.tokenizer, prompts)
    ]
    return shard_tasks(tasks, weights, plan.shard)


class _Stage:
    """The state of one call of `predict`: what is done, what is under way, and the report."""

    def __init__(self, tasks, backend, plan, prompt_format, sampling, names: dict[str, str]):
        self.tasks: dict[str, Task] = {task.task_id: task for task in tasks}
        self.fingerprints = {task.task_id: task.fingerprint for task in tasks}
        self.backend, self.plan, self.prompt_format = backend, plan, prompt_format
        self.sampling, self.names = sampling, names
        self.report = InferenceReport(asked=len(tasks) * plan.n_predictions)
        self.early_stop = EarlyStop(plan.early_stop) if plan.early_stop else None
        self.shown: dict[PromptKey, tuple[View, str]] = {}  # view and prefix of the prompts under way
        self.partial: dict[PromptKey, list[Completion]] = {}
        self.n_stopped = 0

    def look_up(self, predictions: PredictionSet) -> None:
        """What is on disk already: complete prompts, and how many of their predictions solve train."""
        names = ["task_id", "round", "index", "turn", *(["train_is_correct"] if self.early_stop else [])]
        frame = predictions.read(columns=names)
        n_done, n_solving = Counter(), Counter()
        for task_id, round_, index, turn, *solving in zip(*(frame[name] for name in names), strict=True):
            wanted = task_id in self.tasks and turn == 0 and 0 <= round_ < self.plan.n_rounds
            if wanted and index < self.plan.completions_in(round_):
                n_done[task_id, round_] += 1
                n_solving[task_id, round_] += sum(map(bool, solving))
        self.n_done = n_done.total()
        self.done = {key for key, n in n_done.items() if n == self.plan.completions_in(key[1])}
        if self.early_stop:
            for key in sorted(self.done):
                self.early_stop.found(*key, n_solving[key])

    def requests(self, scoring: ScoringThread) -> Iterator[Request]:
        """The prompts to do, round by round; made only when the engine has room for them."""
        for round_ in range(self.plan.n_rounds):
            for task in self.tasks.values():
                key = (task.task_id, round_)
                if key in self.done:
                    self.report.found += self.plan.completions_in(round_)
                elif self.early_stop is None or task.task_id not in self.early_stop.stopped:
                    view = self.plan.view(task, round_)
                    prompt = self.prompt_format.prompt(view.apply(task))
                    ids = prompt_ids(self.backend.tokenizer, prompt)
                    if len(ids) + self.sampling.max_tokens > self.backend.context:
                        self._skip(key, len(ids))
                        scoring.put(Answers(*key, []))
                        continue
                    self.shown[key] = (view, prompt.prefix)
                    seed = derive_seed(self.plan.seed, "sampling", *key)
                    yield Request(ids, self.plan.completions_in(round_), seed, key)

    def timed(self, requests: Iterable[Request]) -> Iterator[Request]:
        """The requests; the time that it takes to make them goes into the report."""
        since = time.monotonic()
        for request in requests:
            self.report.away_seconds += time.monotonic() - since
            yield request
            since = time.monotonic()

    def rows_when_whole(self, completion: Completion) -> list[Prediction]:
        """The rows of the completion's prompt if it was the last one missing, else none."""
        together = self.partial.setdefault(completion.key, [])
        together.append(completion)
        if len(together) < self.plan.completions_in(completion.key[1]):
            return []
        del self.partial[completion.key]
        together.sort(key=lambda made: made.index)
        self.report.made += len(together)
        self.report.prompt_tokens += together[0].n_prompt_tokens
        self.report.completion_tokens += sum(len(made.token_ids) for made in together)
        self.report.truncated += sum(made.finish_reason == "length" for made in together)
        view, prefix = self.shown.pop(completion.key)
        return [self._row(made, view, prefix) for made in together]

    def cancel_stopped(self) -> None:
        """Takes back what the engine was asked for tasks that have ended early."""
        if self.early_stop is None or self.n_stopped == len(self.early_stop.stopped):
            return
        stopped = set(self.early_stop.stopped)
        self.n_stopped = len(stopped)
        for key in [key for key in self.shown if key[0] in stopped]:
            self.backend.cancel(key)
            del self.shown[key]
            self.partial.pop(key, None)

    def _skip(self, key: PromptKey, n_tokens: int) -> None:
        self.report.too_long[key[0]] = max(self.report.too_long.get(key[0], 0), n_tokens)
        self.report.prompts_skipped += 1

    def _row(self, completion: Completion, view: View, prefix: str) -> Prediction:
        task_id, round_ = completion.key
        augmentation = view.augmentation
        return Prediction(
            task_id=task_id,
            task_fingerprint=self.fingerprints[task_id],
            round=round_,
            index=completion.index,
            seed=self.plan.seed,
            hflip=augmentation.hflip,
            n_rot90=augmentation.n_rot90,
            color_map=list(augmentation.color_map) if augmentation.color_map else None,
            pair_order=list(view.pair_order),
            test_index=view.test_index,
            completion=_valid_text(completion.text),
            completion_prefix=prefix,
            n_prompt_tokens=completion.n_prompt_tokens,
            n_tokens=len(completion.token_ids),
            finish_reason=completion.finish_reason,
            logprob=completion.logprob,
            **self.names,
        )


def _valid_text(text: str) -> str:
    """Text that every file takes: half a character (a lone surrogate, say of a server) becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
