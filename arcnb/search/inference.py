"""Sampling predictions for a task set: rounds of prompts, programs run while the engine generates.

A round shows every task once, through a view drawn from (seed, task, round), and takes `per_prompt`
completions of that prompt. The work list is the rounds' prompts minus what the prediction set already
holds, so a stage that was killed is finished by starting it again; a part is written only with whole
prompts, and an unfinished prompt is generated anew.

The caller's thread drives the engine; a second one runs the programs, scores and writes, so the engine
never waits for a program.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from arcnb.arc.predictions import Prediction, PredictionSet
from arcnb.arc.seeds import derive_seed
from arcnb.arc.tasks import Task
from arcnb.arc.views import View
from arcnb.models.chat import prompt_ids
from arcnb.models.generation import Completion, Request, Sampling
from arcnb.models.prompt_format import PromptFormat
from arcnb.programs.executor import Executor
from arcnb.programs.judging import judge
from arcnb.progress import progress


class PlanError(ValueError):
    """The stage cannot run as asked: a parameter, or rows of other tasks in the prediction set."""


@dataclass(frozen=True)
class RoundPlan:
    """What to sample: n_predictions a task, in rounds of per_prompt completions of one prompt."""

    n_predictions: int
    per_prompt: int = 8
    seed: int = 0
    augment: str = "all"
    shuffle: bool = True
    shard: tuple[int, int] = (0, 1)  # this process does shard[0] of shard[1]

    def __post_init__(self):
        for name in ("n_predictions", "per_prompt"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be positive, not {getattr(self, name)}")
        index, count = self.shard
        if not 0 <= index < count:
            raise PlanError(f"shard must be (i, n) with 0 <= i < n, not {self.shard}")

    @property
    def n_rounds(self) -> int:
        return math.ceil(self.n_predictions / self.per_prompt)

    def completions_in(self, round_: int) -> int:
        """Completions a prompt of that round: the last round takes the remainder."""
        return min(self.per_prompt, self.n_predictions - round_ * self.per_prompt)

    def view(self, task: Task, round_: int) -> View:
        return View.sample(task, self.seed, round_, augment=self.augment, shuffle=self.shuffle)


@dataclass
class InferenceReport:
    """What a stage did. Seconds are wall time; tokens count this call's completions only."""

    asked: int = 0
    found: int = 0
    made: int = 0
    too_long: dict[str, int] = field(
        default_factory=dict
    )  # task id -> prompt tokens of its longest skipped prompt
    prompts_skipped: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.completion_tokens / self.seconds if self.seconds else 0.0

    @property
    def predictions_per_hour(self) -> float:
        return 3600 * self.made / self.seconds if self.seconds else 0.0

    def outcome(self) -> dict:
        """Plain values for the run's manifest."""
        rates = {
            "tokens_per_second": self.tokens_per_second,
            "predictions_per_hour": self.predictions_per_hour,
        }
        return {f"inference_{name}": value for name, value in (vars(self) | rates).items()}

    def __str__(self) -> str:
        skipped = "".join(f"\n  {id_}: {n:,} tokens" for id_, n in sorted(self.too_long.items()))
        return (
            f"{self.made:,} predictions made, {self.found:,} found from before, of {self.asked:,} asked; "
            f"{self.seconds:.0f} s, {self.tokens_per_second:,.0f} tokens/s, "
            f"{self.predictions_per_hour:,.0f} predictions an hour"
            + (
                f"\n{self.prompts_skipped} prompts skipped, too long for the context:{skipped}"
                if skipped
                else ""
            )
        )


def check_same_tasks(predictions: PredictionSet, tasks: Sequence[Task]) -> None:
    """Refuse to mix predictions of another version of a task into a set. PlanError names the tasks."""
    frame = predictions.read(columns=["task_id", "task_fingerprint"]).drop_duplicates()
    fingerprints = {task.task_id: task.fingerprint for task in tasks}
    rows = zip(frame["task_id"], frame["task_fingerprint"], strict=True)
    changed = sorted({id_ for id_, fingerprint in rows if fingerprints.get(id_, fingerprint) != fingerprint})
    if changed:
        raise PlanError(
            f"{predictions.folder} holds predictions of another version of {', '.join(changed[:5])}"
            f"{' ...' if len(changed) > 5 else ''}; use a new run for the changed tasks"
        )


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
    check_same_tasks(predictions, tasks)
    tasks = list(tasks)[plan.shard[0] :: plan.shard[1]]
    by_id = {task.task_id: task for task in tasks}
    done = {(task_id, round_, index) for task_id, round_, index, turn in predictions.done_keys() if turn == 0}
    report = InferenceReport(asked=len(tasks) * plan.n_predictions)
    shown: dict[tuple[str, int], tuple[View, str]] = {}  # view and prefix of the prompts under way

    def requests() -> Iterator[Request]:
        for round_ in range(plan.n_rounds):
            for task in tasks:
                n = plan.completions_in(round_)
                if all((task.task_id, round_, index) in done for index in range(n)):
                    report.found += n
                    continue
                view = plan.view(task, round_)
                prompt = prompt_format.prompt(view.apply(task))
                ids = prompt_ids(backend.tokenizer, prompt)
                if len(ids) + sampling.max_tokens > backend.context:
                    longest = report.too_long.get(task.task_id, 0)
                    report.too_long[task.task_id] = max(longest, len(ids))
                    report.prompts_skipped += 1
                    continue
                key = (task.task_id, round_)
                shown[key] = (view, prompt.prefix)
                seed = derive_seed(plan.seed, "sampling", task.task_id, round_)
                yield Request(prompt_ids=ids, n=n, seed=seed, key=key)

    def row(completion: Completion) -> Prediction:
        task_id, round_ = completion.key
        view, prefix = shown[completion.key]
        augmentation = view.augmentation
        return Prediction(
            task_id=task_id,
            task_fingerprint=by_id[task_id].fingerprint,
            round=round_,
            index=completion.index,
            seed=plan.seed,
            hflip=augmentation.hflip,
            n_rot90=augmentation.n_rot90,
            color_map=list(augmentation.color_map) if augmentation.color_map else None,
            pair_order=list(view.pair_order),
            test_index=view.test_index,
            model=model,
            adapter=adapter,
            completion=completion.text,
            completion_prefix=prefix,
            n_prompt_tokens=completion.n_prompt_tokens,
            n_tokens=len(completion.token_ids),
            finish_reason=completion.finish_reason,
            logprob=completion.logprob,
        )

    done_here = sum(id_ in by_id for id_, _, _ in done)
    started = time.monotonic()
    writer = _Writer(predictions, by_id, executor, plan.shard, part_rows, part_seconds)
    with writer, progress(None, "sampling", report.asked, "prediction", done=done_here) as bar:
        waiting: dict[tuple[str, int], list[Completion]] = {}
        for completion in backend.generate(requests(), sampling):
            together = waiting.setdefault(completion.key, [])
            together.append(completion)
            if len(together) == plan.completions_in(completion.key[1]):
                together.sort(key=lambda made: made.index)
                writer.put([row(made) for made in waiting.pop(completion.key)])
                report.made += len(together)
                report.prompt_tokens += together[0].n_prompt_tokens
                report.completion_tokens += sum(len(made.token_ids) for made in together)
                del shown[completion.key]
                bar.update(len(together))
    report.seconds = time.monotonic() - started
    return report


class _Writer:
    """Judges and stores whole prompts in a thread of its own; what was put is on disk after `with`.

    Leaving the block on an error or an interrupt still judges and writes what was put, because those
    completions are paid for.
    """

    def __init__(self, predictions, tasks, executor, shard, part_rows, part_seconds):
        self.predictions, self.tasks, self.executor = predictions, tasks, executor
        self.shard, self.part_rows, self.part_seconds = shard, part_rows, part_seconds
        self.queue: queue.Queue[list[Prediction] | None] = queue.Queue(maxsize=4096)
        self.part: list[Prediction] = []
        self.written = time.monotonic()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, name="judge-and-write", daemon=True)

    def __enter__(self) -> _Writer:
        self.thread.start()
        return self

    def put(self, rows: list[Prediction] | None) -> None:
        """Queue the completions of one prompt (None: no more will come); waits while the queue is full."""
        while self.error is None:
            try:
                return self.queue.put(rows, timeout=1.0)
            except queue.Full:
                continue
        raise self.error

    def __exit__(self, kind, error, trace) -> None:
        if self.error is None:
            self.put(None)
        self.thread.join()
        if self.error is not None and error is None:
            raise self.error

    def _work(self) -> None:
        try:
            for waiting in self._batches():
                self.part += judge(waiting, self.tasks, self.executor)
                due = time.monotonic() - self.written > self.part_seconds
                if self.part and (due or len(self.part) >= self.part_rows):
                    self._write()
            if self.part:
                self._write()
        except BaseException as error:
            self.error = error

    def _batches(self) -> Iterator[list[Prediction]]:
        """Everything that waits, as one list; an empty one now and then, so that an old part gets written."""
        while True:
            try:
                prompts = [self.queue.get(timeout=self.part_seconds)]
                while not self.queue.empty():
                    prompts.append(self.queue.get())
            except queue.Empty:
                prompts = [[]]
            ended = None in prompts
            yield [row for prompt in prompts if prompt for row in prompt]
            if ended:
                return

    def _write(self) -> None:
        rounds = [row.round for row in self.part]
        self.predictions.write_part(self.part, min(rounds), *self.shard)
        self.part, self.written = [], time.monotonic()
