"""Feedback: what each token of a failed answer is worth to the model, once it is told what went wrong.

SDPO (Hübotter et al. 2026, arXiv 2601.20802) on the answers that a search has sampled anyway. The teacher is
the model itself where the prompt ends with the feedback that refinement gives. The model comes to write what
it would write there (`arcnb.search.learning.learner.loss`).

    made = feedback_rows([(task, predictions)], executor, tokenizer, prompt_format("arc_code"), ...)
    made.rows, made.probes, made.dropped

Feedback speaks of train pairs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.models.prompts.chat import answer_ids, prompt_ids
from arcnb.models.prompts.conversations import Conversations
from arcnb.models.prompts.format import PromptFormat
from arcnb.plans import option
from arcnb.programs.executor.executor import Executor
from arcnb.search.learning.lessons.rows import PROBES, taught_row


@dataclass(frozen=True)
class FeedbackSettings:
    """Which answers are learned from."""

    answers_per_task: int = option(
        8, "failed answers of a task to learn from in a round, those closest to right; 0 takes all"
    )


@dataclass
class Taught:
    """Rows {"input_ids", "labels", "told"}, the best last: an answer to a prompt, and in "told" the same
    answer after what a teacher reads. probes: such rows of right answers, on which the teacher can be tried.
    dropped: how many were left out, by reason.
    """

    rows: list[dict] = field(default_factory=list)
    probes: list[dict] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


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
) -> Taught:
    """First answers that failed, the closest to right last; the probes are right answers to the same prompts.

    sampled: each task with its predictions of this round, which the model of now has drawn. "told" is the
    answer after feedback on it, of a probe after feedback on a failed one. Left
    out: "right on the train pairs", of which feedback may not speak, "cut off", "the same answer" to
    the same prompt, "not among the closest" (of equals those that (seed, task, round) draws), and "row too
    long".
    """
    book = Conversations({task.task_id: task for task, _ in sampled}, prompt_format, executor)
    book.look_at(prediction for _, predictions in sampled for prediction in predictions)
    made, chosen, right = Taught(), [], {}
    for task, predictions in sampled:
        order = rng(seed, "feedback", task.task_id, round_).permutation(len(predictions))
        drawn = sorted((predictions[place] for place in order), key=lambda one: one.closeness)
        failed = list(_failed(drawn, book, made.dropped))
        if settings.answers_per_task and len(failed) > settings.answers_per_task:
            made.dropped["not among the closest"] += len(failed) - settings.answers_per_task
            failed = failed[-settings.answers_per_task :]
        chosen += failed
        right |= {(one.task_id, one.view): one for one in drawn if one.train_is_correct}
    chosen.sort(key=lambda one: one.closeness)
    for one in chosen:
        asked, told = (prompt_ids(tokenizer, prompt) for prompt in (book.asked(one, {}), book.told(one)))
        answer = answer_ids(tokenizer, one.completion)
        if max(len(asked), len(told)) + len(answer) > max_tokens:
            made.dropped["row too long"] += 1
            continue
        made.rows.append(taught_row(asked, told, answer))
        if solved := right.get((one.task_id, one.view)):
            answer = answer_ids(tokenizer, solved.completion)
            if max(len(asked), len(told)) + len(answer) <= max_tokens:
                made.probes.append(taught_row(asked, told, answer))
    made.probes = made.probes[-PROBES:]
    return made


def _failed(
    predictions: Sequence[Prediction], book: Conversations, dropped: Counter[str]
) -> Iterator[Prediction]:
    """The answers that feedback can be given on, each once."""
    seen: set[tuple] = set()
    for one in predictions:
        key = (one.task_id, one.view, one.completion)
        if reason := book.nothing_to_tell(one):
            dropped[reason] += 1
        elif key in seen:
            dropped["the same answer"] += 1
        else:
            seen.add(key)
            yield one
