"""What a lesson becomes for the learner."""

from __future__ import annotations

from arcnb.models.sft.rows import IGNORED

PROBES = 64  # right answers that are enough to try a teacher on


def answer_row(prompt: list[int], answer: list[int]) -> dict:
    """{"input_ids", "labels"} of a prompt and an answer to it; the loss counts the answer alone."""
    return {"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer}


def taught_row(asked: list[int], told: list[int], answer: list[int]) -> dict:
    """The row of an answer to the prompt `asked`, with "told"."""
    return answer_row(asked, answer) | {"told": answer_row(told, answer)}
