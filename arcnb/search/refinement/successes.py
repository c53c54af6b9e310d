"""Refinements that succeeded, as conversations for supervised fine-tuning (notebook 02 reads `sft.parquet`).

Two sources. "children": a prediction of a later turn that solves its task where its parent did not. Rare with
a model that was never trained to refine, hence "siblings": of the completions of one prompt, one that missed
and one that solved the task show the same task in the same frame, so the second answers the request to
correct the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.models.prompts.conversations import Conversations
from arcnb.models.prompts.format import PromptFormat, answer_with
from arcnb.programs.executor.executor import Executor
from arcnb.search.refinement.rows import Gathered, gather
from arcnb.search.turns.selection import choose
from arcnb.synth.splits import is_held_out

PARTNERS = ("children", "siblings", "both")


def check_successes(partners: str, per_task: int) -> None:
    """ArcnbError for what `successful_rows` does not know, for a stage to ask before its work."""
    if partners not in PARTNERS:
        raise ArcnbError(f"successes come from {', '.join(PARTNERS)}, not from {partners!r}")
    if per_task < 1:
        raise ArcnbError(f"the successes of a task, at most, must be at least 1, not {per_task}")


def successful_rows(
    sets: Sequence[PredictionSet],
    tasks: Sequence[Task],
    prompt_format: PromptFormat,
    executor: Executor,
    *,
    partners: str = "both",
    per_task: int = 8,
    seed: int = 0,
) -> list[dict]:
    """At most `per_task` conversations a task, `{task_id, reserved, turn, parent, prediction, source,
    messages, prefix, answer}`: what the model reads, how its answer begins, and the rest of it; reserved:
    whether training leaves the task out. Empty when nothing succeeded.

    Solved means right on every pair whose output is known; distinct answers first come, first kept.
    ArcnbError as `refinement_rows`.
    """
    check_successes(partners, per_task)
    by_id = {task.task_id: task for task in tasks}
    book = Conversations(by_id, prompt_format, executor)
    rows = []
    for task_id, found in gather(sets, tasks):
        pairs = [*(_children(found) if partners != "siblings" else ())]
        if partners != "children":
            pairs += _siblings(found, rng(seed, "siblings", task_id))
        kept: dict[tuple, dict] = {}
        for number, parent, better, source in pairs:
            key = (parent.program or (number, parent.id), better.program)  # ids are a set's own
            if (
                len(kept) == per_task
                or key in kept
                or (parent.status != "ok" and book.right_on_train(parent))
            ):
                continue
            prompt = book.refining(parent, found.ancestors(number))
            kept[key] = {
                "task_id": task_id,
                "task_fingerprint": by_id[task_id].fingerprint,
                "reserved": is_held_out(by_id[task_id]),
                "turn": parent.turn + 1,
                "parent": parent.id,
                "prediction": better.id,
                "source": source,
                "messages": list(prompt.messages),
                "prefix": prompt.prefix,
                "answer": _answer(better, prompt.prefix),
            }
        rows += kept.values()
    return rows


def _answer(better: Prediction, prefix: str) -> str:
    """Its own words; where these followed another beginning than `prefix`, as a first answer's may, its
    program."""
    return better.completion if better.completion_prefix == prefix else answer_with(better.program, prefix)


def _whole(prediction: Prediction) -> bool:
    """Whether the completion ended by itself: a cut one would teach not to end."""
    return prediction.finish_reason == "stop"


Pair = tuple[int, Prediction, Prediction, str]  # set number, what missed, what solved, source


def _children(found: Gathered) -> Iterator[Pair]:
    for number, prediction in found.rows:
        if prediction.parent and prediction.solved and _whole(prediction):
            parent = found.ancestors(number).get(prediction.parent)
            if parent is not None and not parent.solved:
                yield number, parent, prediction, "children"


def _siblings(found: Gathered, random) -> Iterator[Pair]:
    prompts: dict[tuple, list[Prediction]] = {}
    for number, prediction in found.rows:
        # Rollouts of a training step may show one task through several views: those are several prompts.
        prompt = (number, prediction.turn, prediction.round, prediction.parent, prediction.view)
        prompts.setdefault(prompt, []).append(prediction)
    for (number, *_), answers in prompts.items():
        right = list({p.program: p for p in answers if p.solved and _whole(p)}.values())
        if not right:
            continue
        for i, parent in enumerate(choose("diverse", answers, 2 * len(right), random)):
            yield number, parent, right[i % len(right)], "siblings"
