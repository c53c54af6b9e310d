"""Evaluations of the eval tasks beside each other: of the same tasks, so changes are taken task by task.

said = Evaluations.read(PredictionSet(run.path / "held_out"))
said.change(0, 150)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.change import around_tasks
from arcnb.arc.scores.intervals import points
from arcnb.arc.seeds import rng

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("task_id", "round", "index", "turn", "train_is_correct", "test_is_correct")


@dataclass(frozen=True)
class EvalChange:
    """Of pass@1: its mean over tasks, and the ends of its 95% interval, by bootstrap over tasks; shares."""

    difference: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        ends = f"{points(self.low)} to {points(self.high)}"
        return f"{points(self.difference)} points (95% interval {ends})"


@dataclass(frozen=True)
class Evaluations:
    """counts: (step, task id) -> `right`, samples that solve the task, and `of`, all samples."""

    counts: pd.DataFrame

    @classmethod
    def read(cls, predictions: PredictionSet) -> Evaluations:
        """Of conversations the last answers count."""
        rows = predictions.read(COLUMNS).sort_values("turn", kind="stable")
        rows = rows.drop_duplicates(["round", "task_id", "index"], keep="last")
        known = rows["test_is_correct"].isna() | (rows["test_is_correct"] == 1)
        right = (rows["train_is_correct"] == 1) & known
        keys = [rows["round"].astype(int), rows["task_id"].astype(object)]
        return cls(right.groupby(keys).agg(right="sum", of="size"))

    def change(self, before: int, after: int) -> EvalChange | None:
        """From one step's evaluation to another's, on the tasks of both; None where they share none."""
        both = self.counts.loc[before].join(self.counts.loc[after], how="inner", lsuffix="0", rsuffix="1")
        if both.empty:
            return None
        right, of = (both[[f"{name}0", f"{name}1"]].to_numpy(float) for name in ("right", "of"))
        difference = float(np.subtract(*(right / of).T[::-1]).mean())
        below, above, _ = around_tasks(right, of, rng(0, "evaluations", before, after))
        return EvalChange(difference, max(-1.0, difference + below), min(1.0, difference + above))
