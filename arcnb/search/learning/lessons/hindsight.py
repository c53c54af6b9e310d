"""Hindsight: every program that ran is the right answer to the task it did solve.

A prediction's program, run on the inputs that its prompt showed, made outputs. With these in the place of the
expected ones it is a task with a known program, made by the model itself and close to the real task: what a
model learns from at test time (hindsight relabelling; Andrychowicz et al. 2017, Butt et al. 2024, CodeIt).

    (found,) = relabel([(task, rounds)], executor, tokenizer, HindsightSettings(), seed=0)
    found.tasks        # worst first, closest to the real task last
    found.dropped      # reason -> predictions

Expected test outputs are never looked at: closeness is measured on the train outputs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.grids import Grid, all_equal, same_grids
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.scores.similarity import pixel_similarity
from arcnb.arc.seeds import derive_seed, rng
from arcnb.arc.tasks.task import Pair, Task
from arcnb.arc.views import AUGMENTATIONS, View
from arcnb.models.prompts.chat import answer_ids
from arcnb.models.prompts.format import PromptFormat
from arcnb.plans import option
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Execution, Job
from arcnb.search.learning.lessons.rows import answer_row
from arcnb.values import COUNT, SHARE


@dataclass(frozen=True)
class HindsightSettings:
    """What is learned from. augment: what fresh views may change, see `arcnb.arc.views.AUGMENTATIONS`."""

    programs_per_task: int = option(
        8, "programs of a task to learn from in a round, those whose train outputs come closest; 0 takes all"
    )
    replay: float = option(0.5, "weight of a program last seen n rounds ago is replay ** n", within=SHARE)
    fresh_views: int = option(
        1, "further tasks from each program: its outputs under augmentations it has not seen"
    )
    max_answer_tokens: int = option(256, "longer completions are not learned from", "tokens", within=COUNT)
    augment: str = "all"


@dataclass(frozen=True)
class HindsightTask:
    """task: with outputs as its program made them. answer: the completion that held the program. real: id of
    the task that the program was meant for. closeness: share of its train grids that are right, then their
    mean similarity. age: rounds since the program was last sampled.
    """

    task: Task
    answer: str
    real: str
    closeness: tuple[float, float]
    age: int


@dataclass
class Hindsight:
    """tasks: ordered by closeness, best last. dropped: reason -> predictions, or views, left out."""

    tasks: list[HindsightTask] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def relabel(
    histories: Sequence[tuple[Task, Sequence[Sequence[Prediction]]]],
    executor: Executor,
    tokenizer,
    settings: HindsightSettings,
    seed: int,
) -> list[Hindsight]:
    """Hindsight tasks of each task, from its predictions, which come round by round, the latest last.

    The programs of all tasks run together, on all workers. Left out, by reason: "failed" programs, "identity"
    (nothing changes), "constant" (all outputs equal), "duplicate" (an earlier one, or a shorter one of the
    same round, has the same outputs), "too long", "not replayed", "not among the closest", "nondeterministic"
    (a second run in another process gave other outputs), and "view failed" for augmentations under which the
    program gives nothing new. What no round can change counts in the round that it came in.
    """
    found, kept = [Hindsight() for _ in histories], []
    for made, (task, rounds) in zip(found, histories, strict=True):
        worth = []
        for age, prediction in _distinct(rounds, made.dropped):
            reason = _objection(prediction, task, age, len(rounds), tokenizer, settings, seed)
            if not reason:
                worth.append((age, prediction))
            elif age == 0 or reason == "not replayed":
                made.dropped[reason] += 1
        worth.sort(key=lambda pair: pair[1].closeness)
        if settings.programs_per_task and len(worth) > settings.programs_per_task:
            made.dropped["not among the closest"] += len(worth) - settings.programs_per_task
            worth = worth[-settings.programs_per_task :]
        for age, prediction in worth:
            kept.append((task, prediction, age, _frames(prediction, len(rounds), settings, seed), made))
    once = executor.limits
    twice = replace(once, check_determinism=True)
    executions = executor.run(
        Job(prediction.program, _inputs(task, frame), once if number else twice)
        for task, prediction, _, frames, _ in kept
        for number, frame in enumerate(frames)
    )
    for task, prediction, age, frames, made in kept:
        ran = [next(executions) for _ in frames]
        made.tasks += _tasks_of(task, prediction, age, frames, ran, made.dropped)
    for made in found:
        made.tasks.sort(key=lambda one: one.closeness)
    return found


def relabelled(inputs: Sequence[Grid], outputs: Sequence[Grid], n_train: int, task_id: str, **more) -> Task:
    """The task of these inputs and outputs, train pairs first; `more` fills the other fields of a Task."""
    pairs = tuple(Pair(given, made) for given, made in zip(inputs, outputs, strict=True))
    return Task(task_id, pairs[:n_train], pairs[n_train:], source="hindsight", **more)


def dealt(lists: Sequence[Sequence]) -> list:
    """One list of several that are each ordered best last: dealt in turn, the best of all come last."""
    longest = max(map(len, lists), default=0)
    best_first = [items[-1 - i] for i in range(longest) for items in lists if i < len(items)]
    return best_first[::-1]


def _distinct(
    rounds: Sequence[Sequence[Prediction]], dropped: Counter[str]
) -> Iterator[tuple[int, Prediction]]:
    """(age, prediction) of programs that ran; the newest and shortest of each behaviour."""
    seen: set[str] = set()
    for age, predictions in enumerate(reversed(rounds)):
        left_out = Counter() if age else dropped
        for prediction in sorted(predictions, key=lambda p: (len(p.program or ""), p.key)):
            if prediction.status != "ok" or not prediction.outputs:
                left_out["failed"] += 1
            elif prediction.fingerprint in seen:
                left_out["duplicate"] += 1
            else:
                seen.add(prediction.fingerprint)
                yield age, prediction


def _objection(
    prediction: Prediction,
    task: Task,
    age: int,
    n_rounds: int,
    tokenizer,
    settings: HindsightSettings,
    seed: int,
) -> str | None:
    """Why a program that ran is not learned from, as far as that can be said without running it again."""
    if prediction.finish_reason == "length" or (
        len(answer_ids(tokenizer, prediction.completion)) > settings.max_answer_tokens
    ):
        return "too long"
    if same_grids(prediction.outputs, task.inputs):
        return "identity"
    if all_equal(prediction.outputs):
        return "constant"
    if age and rng(seed, "replay", prediction.id, n_rounds).random() >= settings.replay**age:
        return "not replayed"
    return None


def _tasks_of(
    task: Task,
    prediction: Prediction,
    age: int,
    frames: Sequence[Augmentation],
    executions: Sequence[Execution],
    dropped: Counter[str],
) -> Iterator[HindsightTask]:
    """A task of each frame, the prompt's own first, in which the program gave something to learn from."""
    expected = [frames[0].apply(grid) for grid in prediction.outputs]
    if executions[0].outputs is None or not same_grids(executions[0].outputs, expected):
        dropped["nondeterministic"] += 1
        return
    for number, (frame, execution) in enumerate(zip(frames, executions, strict=True)):
        inputs, outputs = _inputs(task, frame), execution.outputs
        if outputs is None or all_equal(outputs) or same_grids(inputs, outputs):
            dropped["view failed"] += 1
            continue
        meta = {"real": task.task_id, "prediction": prediction.id, "view": number, "age": age}
        name = f"{prediction.id}/{number}"
        made = relabelled(inputs, outputs, len(task.train), name, program=prediction.program, meta=meta)
        closeness = _train_closeness(task, frame, outputs)
        yield HindsightTask(made, prediction.completion, task.task_id, closeness, age)


def _frames(
    prediction: Prediction, n_rounds: int, settings: HindsightSettings, seed: int
) -> list[Augmentation]:
    """The prompt's own frame, then fresh ones: others in every round that the program is learned from."""
    kept_part = AUGMENTATIONS[settings.augment]
    fresh = range(settings.fresh_views)
    draws = [rng(seed, "fresh view", prediction.id, n_rounds, number) for number in fresh]
    return [prediction.augmentation, *(kept_part(Augmentation.sample(draw)) for draw in draws)]


def _inputs(task: Task, frame: Augmentation) -> tuple[Grid, ...]:
    return tuple(map(frame.apply, task.inputs))


def _train_closeness(task: Task, frame: Augmentation, outputs: Sequence[Grid]) -> tuple[float, float]:
    similar = [
        pixel_similarity(output, frame.apply(pair.output))
        for output, pair in zip(outputs, task.train, strict=False)
    ]
    return sum(s == 1 for s in similar) / len(similar), sum(similar) / len(similar)


def learning_rows(
    tasks: Sequence[HindsightTask],
    tokenizer,
    prompt_format: PromptFormat,
    *,
    seed: int,
    round_: int,
    epochs: int = 1,
    max_tokens: int,
) -> tuple[list[dict], int]:
    """Rows {"input_ids", "labels"} in the order of the tasks, epoch after epoch, and how many were too long.

    Every row shows its task through a view of its own. The loss counts the answer alone.
    """
    rows, n_too_long = [], 0
    answers = [answer_ids(tokenizer, one.answer) for one in tasks]
    for epoch in range(epochs):
        for one, answer in zip(tasks, answers, strict=True):
            view = learning_view(one.task, seed, round_, epoch)
            prompt = prompt_format.prompt_ids(tokenizer, view.apply(one.task))
            if len(prompt) + len(answer) > max_tokens:
                n_too_long += 1
                continue
            rows.append(answer_row(prompt, answer))
    return rows, n_too_long


def learning_view(task: Task, seed: int, round_: int, epoch: int = 0) -> View:
    """How a row shows a hindsight task: the train pairs in an order of its own, one of the test inputs. Grids
    are as the program saw them, so nothing else may change."""
    return View.sample(task, derive_seed(seed, "learning", round_, epoch), augment="none")
