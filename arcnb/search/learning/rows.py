"""Hindsight tasks as rows to learn from: the task's prompt, then the completion that held its program."""

from __future__ import annotations

from collections.abc import Sequence

from arcnb.arc.seeds import derive_seed
from arcnb.arc.views import View
from arcnb.models.prompts.chat import answer_ids
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.sft.rows import IGNORED
from arcnb.search.learning.hindsight import HindsightTask


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

    Every row shows its task through a view of its own: the train pairs in another order, one of the test
    inputs. Grids are as the program saw them, so nothing else may change. The loss counts the answer alone.
    """
    rows, n_too_long = [], 0
    answers = [answer_ids(tokenizer, one.answer) for one in tasks]
    for epoch in range(epochs):
        for one, answer in zip(tasks, answers, strict=True):
            view = View.sample(one.task, derive_seed(seed, "learning", round_, epoch), augment="none")
            prompt = prompt_format.prompt_ids(tokenizer, view.apply(one.task))
            if len(prompt) + len(answer) > max_tokens:
                n_too_long += 1
                continue
            rows.append({"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer})
    return rows, n_too_long
