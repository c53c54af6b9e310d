"""What a lesson becomes for the learner."""

from __future__ import annotations

from arcnb.models.sft.rows import IGNORED


def answer_row(prompt: list[int], answer: list[int]) -> dict:
    """{"input_ids", "labels"} of a prompt and an answer to it; the loss counts the answer alone."""
    return {"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer}
