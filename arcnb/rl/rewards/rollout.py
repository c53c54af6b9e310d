"""What rewards are made of: one judged completion.

A completion is truncated when its last token is none that ends an answer, as TRL has it (`clipped_ratio`,
`mask_truncated_completions`). An answer that ends exactly at max_completion_length is whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.tasks.task import Task


@dataclass(frozen=True)
class Scores:
    """What a scheme may look at. Means over a partition's grids, in [0, 1]; None where unknown."""

    has_program: bool
    has_outputs: bool
    train_correct: float
    test_correct: float | None
    train_pixel: float
    test_pixel: float | None
    n_train: int
    n_test: int

    @classmethod
    def of(cls, prediction: Prediction, n_train: int, n_test: int) -> Scores:
        """The scores of a judged prediction of a task with n_train and n_test pairs."""
        return cls(
            has_program=prediction.program is not None,
            has_outputs=prediction.status == "ok",
            train_correct=prediction.train_correct_grids or 0.0,
            test_correct=prediction.test_correct_grids,
            train_pixel=prediction.train_pixel_score or 0.0,
            test_pixel=prediction.test_pixel_score,
            n_train=n_train,
            n_test=n_test,
        )

    @property
    def correct(self) -> float:
        """Share of all grids that are right; a test partition without known outputs counts 0."""
        right = self.train_correct * self.n_train + (self.test_correct or 0.0) * self.n_test
        return right / (self.n_train + self.n_test)

    @property
    def pixel(self) -> float:
        """Mean pixel similarity over all grids; a test partition without known outputs counts 0."""
        score = self.train_pixel * self.n_train + (self.test_pixel or 0.0) * self.n_test
        return score / (self.n_train + self.n_test)

    @property
    def known_correct(self) -> float:
        """Share of right grids among those whose expected output is known."""
        return self.correct if self.test_correct is not None else self.train_correct


@dataclass(frozen=True)
class Rollout:
    """solved: right on every grid whose expected output is known. cheating: why the program was found to have
    memorised the task's pairs instead of computing them; None for an honest one. parent: scores of the
    program that this one was asked to improve, if it was."""

    scores: Scores
    tokens: Sequence[int]
    solved: bool
    cheating: str | None = None
    parent: Scores | None = None
    truncated: bool = False


def answer_columns(task: Task, ids: Sequence[int], ends: Collection[int]) -> dict[str, Any]:
    """What the record of a completion says of its task and tokens. ends: the tokens that end an answer, the
    trainer's `eos_token_ids`."""
    finish = "stop" if ids and ids[-1] in ends else "length"
    names = {"task_id": task.task_id, "task_fingerprint": task.fingerprint}
    return names | {"n_tokens": len(ids), "finish_reason": finish}
