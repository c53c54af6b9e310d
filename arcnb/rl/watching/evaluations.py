"""Evaluations of the eval tasks beside each other: of the same tasks, so changes are taken task by task.

said = Evaluations.read(PredictionSet(run.path / "held_out"))
said.change(0, 150)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction import KEY_COLUMNS
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.tables import right_where_known
from arcnb.arc.scores.change import Change, change_over_tasks
from arcnb.arc.seeds import rng

if TYPE_CHECKING:
    import pandas as pd

RIGHT = ("train_is_correct", "test_is_correct")


def last_answers(predictions: PredictionSet, columns: Collection[str] = ()) -> pd.DataFrame:
    """A row an answer, of conversations the last, with these columns and `right`, by `right_where_known`."""
    wanted = dict.fromkeys((*KEY_COLUMNS, *RIGHT, *columns))
    rows = predictions.read(list(wanted)).sort_values("turn", kind="stable")
    rows = rows.drop_duplicates(["round", "task_id", "index"], keep="last")
    return rows.assign(right=right_where_known(rows))


@dataclass(frozen=True)
class Evaluations:
    """counts: (step, task id) -> `right`, samples that solve the task, and `of`, all samples."""

    counts: pd.DataFrame

    @classmethod
    def read(cls, predictions: PredictionSet) -> Evaluations:
        rows = last_answers(predictions)
        keys = [rows["round"].astype(int), rows["task_id"].astype(object)]
        return cls(rows["right"].groupby(keys).agg(right="sum", of="size"))

    def change_from_best(self, step: int) -> Change | None:
        """From the best evaluation before this step, by pass@1 on its tasks; None where there is none."""
        here = self.counts.index.get_level_values(1).isin(self.counts.loc[step].index)
        rates = (self.counts["right"] / self.counts["of"])[here].groupby(level=0).mean()
        before = rates[rates.index < step]
        return None if before.empty else self.change(int(before.idxmax()), step)

    def change(self, before: int, after: int) -> Change | None:
        """From one step's evaluation to another's, on the tasks of both; None where they share none."""
        both = self.counts.loc[before].join(self.counts.loc[after], how="inner", lsuffix="0", rsuffix="1")
        if both.empty:
            return None
        right, of = (both[[f"{name}0", f"{name}1"]].to_numpy(float) for name in ("right", "of"))
        return change_over_tasks(right, of, rng(0, "evaluations", before, after))
