"""Pass rates with their uncertainty: unbiased pass@k, bootstrap intervals over tasks, paired comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.predictions.tables import solving
from arcnb.arc.scores.intervals import (
    mean_and_interval,
    percent,
    points,
    resampled_weights,
    sign_flip_p,
)
from arcnb.arc.scores.tables import LOOSE_COLUMN, TABLE_COLUMNS, Counted, aggregate
from arcnb.arc.seeds import rng
from arcnb.errors import ArcnbError

if TYPE_CHECKING:
    import pandas as pd


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of n predictions, drawn without replacement, hold one of the c right ones.

    The estimator 1 - C(n-c, k) / C(n, k) of Chen et al. 2021, in exact integers. It is unbiased where n does
    not depend on what came out; see arcnb.arc.predictions.stop_rules.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ArcnbError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_at_k_curve(frame: pd.DataFrame, seed: int = 0, task_ids: Counted | None = None) -> pd.DataFrame:
    """Columns k, mean, low, high (95%, bootstrap over tasks), n_tasks and n_short.

    k: powers of two up to the most predictions of a task, and that number. A task with fewer than k
    predictions, counted in n_short, enters with those it has, which is a lower bound. Tasks without known
    test outputs are left out.
    """
    import pandas as pd

    table = aggregate(frame, task_ids)
    table = table[table["is_correct"].notna()]
    n = table["n_preds"].to_numpy(int)
    right = solving(frame).groupby(frame["task_id"].astype(object)).sum()
    c = right.reindex(table.index, fill_value=0).to_numpy(int)
    most = int(n.max(initial=0))
    weights = resampled_weights(len(table), rng(seed, "pass at k"))
    rows = []
    for k in sorted({2**i for i in range(most.bit_length())} | {most} - {0}):
        chances = [
            pass_at_k(a, b, min(k, a)) if a else 0.0 for a, b in zip(n.tolist(), c.tolist(), strict=True)
        ]
        rows.append((k, *mean_and_interval(np.array(chances), weights), len(n), int((n < k).sum())))
    return pd.DataFrame(rows, columns=["k", "mean", "low", "high", "n_tasks", "n_short"])


@dataclass(frozen=True)
class PairedDifference:
    """Two prediction sets on the same tasks: b minus a.

    mean_a, mean_b: means of `column` over the tasks; low, high: 95% interval of the difference, by bootstrap
    over tasks. only_a, only_b: tasks that just one of them solves, in the sense of `column` where it says
    whether a task is solved, else of is_correct; p_value: exact McNemar test on these, two sided. n_preds_a,
    n_preds_b: predictions a task, on average; compare only equal ones.
    """

    column: str
    n_tasks: int
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    only_a: int
    only_b: int
    p_value: float
    n_preds_a: float
    n_preds_b: float

    def __str__(self) -> str:
        budgets = ""
        if self.n_preds_a != self.n_preds_b:
            budgets = f", UNEQUAL predictions a task, {self.n_preds_a:.4g} and {self.n_preds_b:.4g}"
        return (
            f"{self.column} {percent(self.mean_a)} -> {percent(self.mean_b)}: {points(self.difference)} "
            f"points (95% {points(self.low)} to {points(self.high)}) on {self.n_tasks} tasks; "
            f"solved by the first only {self.only_a}, by the second only {self.only_b}, "
            f"McNemar p = {self.p_value:.2g}{budgets}"
        )


def paired_difference(
    frame_a: pd.DataFrame,
    frame_b: pd.DataFrame,
    column: str = "is_correct",
    seed: int = 0,
    task_ids: Counted | None = None,
) -> PairedDifference:
    """Compare two sets of predictions task by task, in a column of `aggregate`.

    task_ids: the tasks that count, where those without predictions are unsolved; default the tasks that both
    frames have. Tasks with unknown values are left out.
    """
    if column not in (*TABLE_COLUMNS, LOOSE_COLUMN):
        raise ArcnbError(
            f"no column {column!r} to compare; there are {', '.join(TABLE_COLUMNS)}, {LOOSE_COLUMN}"
        )
    tasks = None if task_ids is None else list(task_ids)
    a, b = aggregate(frame_a, tasks), aggregate(frame_b, tasks)
    common = a.index[a.index.isin(b.index)]
    a, b = a.loc[common], b.loc[common]
    known = (a[column].notna() & b[column].notna()).to_numpy()
    a, b = a[known], b[known]
    if a.empty:
        raise ArcnbError(f"the two prediction sets have no task in common whose {column} is known")
    solved = column if "is_correct" in column else "is_correct"
    solved_a, solved_b = (table[solved].to_numpy() == 1 for table in (a, b))
    only_a, only_b = int((solved_a & ~solved_b).sum()), int((solved_b & ~solved_a).sum())
    differences = (b[column] - a[column]).to_numpy(float)
    weights = resampled_weights(len(a), rng(seed, "paired difference", column))
    difference, low, high = mean_and_interval(differences, weights)
    return PairedDifference(
        column=column,
        n_tasks=len(a),
        mean_a=float(a[column].mean()),
        mean_b=float(b[column].mean()),
        difference=difference,
        low=low,
        high=high,
        only_a=only_a,
        only_b=only_b,
        p_value=sign_flip_p([1] * only_b + [-1] * only_a),
        n_preds_a=float(a["n_preds"].mean()),
        n_preds_b=float(b["n_preds"].mean()),
    )
