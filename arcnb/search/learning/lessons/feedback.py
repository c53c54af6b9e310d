"""Feedback: what each token of a failed answer is worth to the model, once it is told what went wrong.

SDPO (Hübotter et al. 2026, arXiv 2601.20802) on the answers that a search has sampled anyway. The teacher is
the model itself, after the conversation that refinement shows: prompt, answer, feedback. Tokens that it finds
likelier than the model without feedback become likelier, others less likely (`arcnb.search.learning.loss`).

    rows, dropped = feedback_rows([(task, predictions)], executor, tokenizer, prompt_format("arc_code"), ...)

Feedback speaks of train pairs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.models.prompts.chat import answer_ids, prompt_ids
from arcnb.models.prompts.conversations import Conversations
from arcnb.models.prompts.format import PromptFormat
from arcnb.plans import option
from arcnb.programs.executor.executor import Executor
from arcnb.search.learning.lessons.hindsight import recorded_closeness
from arcnb.search.learning.lessons.rows import answer_row


@dataclass(frozen=True)
class FeedbackSettings:
    """Which answers are learned from."""

    answers_per_task: int = option(
        8, "failed answers of a task to learn from in a round, those closest to right; 0 takes all"
    )


def feedback_rows(
    sampled: Sequence[tuple[Task, Sequence[Prediction]]],
    executor: Executor,
    tokenizer,
    prompt_format: PromptFormat,
    settings: FeedbackSettings,
    *,
    seed: int,
    round_: int,
    max_tokens: int,
) -> tuple[list[dict], Counter[str]]:
    """Rows {"input_ids", "labels", "told"} of first answers, the closest to right last, and how many answers
    were left out, by reason.

    sampled: each task with its predictions of this round, which the model of now has drawn. "told" has the
    "input_ids" and "labels" of the same answer after feedback on it. The loss counts the answer alone. Left
    out: "right on the train pairs", of which feedback may not speak, "cut off", "the same answer" to
    the same prompt, "not among the closest" (of equals those that (seed, task, round) draws), and "row too
    long".
    """
    book = Conversations({task.task_id: task for task, _ in sampled}, prompt_format, executor)
    book.look_at(prediction for _, predictions in sampled for prediction in predictions)
    dropped: Counter[str] = Counter()
    chosen: list[Prediction] = []
    for task, predictions in sampled:
        order = rng(seed, "feedback", task.task_id, round_).permutation(len(predictions))
        drawn = sorted((predictions[place] for place in order), key=recorded_closeness)
        failed = list(_failed(drawn, book, dropped))
        if settings.answers_per_task and len(failed) > settings.answers_per_task:
            dropped["not among the closest"] += len(failed) - settings.answers_per_task
            failed = failed[-settings.answers_per_task :]
        chosen += failed
    chosen.sort(key=recorded_closeness)
    rows = []
    for one in chosen:
        answer = answer_ids(tokenizer, one.completion)
        asked, told = (prompt_ids(tokenizer, prompt) for prompt in (book.asked(one, {}), book.told(one)))
        if max(len(asked), len(told)) + len(answer) > max_tokens:
            dropped["row too long"] += 1
            continue
        rows.append(answer_row(asked, answer) | {"told": answer_row(told, answer)})
    return rows, dropped


def _failed(
    predictions: Sequence[Prediction], book: Conversations, dropped: Counter[str]
) -> Iterator[Prediction]:
    """The answers that feedback can be given on, each once."""
    seen: set[tuple] = set()
    for one in predictions:
        key = (one.augmentation, tuple(one.pair_order), one.test_index, one.completion)
        if reason := book.nothing_to_tell(one):
            dropped[reason] += 1
        elif key in seen:
            dropped["the same answer"] += 1
        else:
            seen.add(key)
            yield one
