"""Tables over tasks: one row a task, rates over all its predictions, and their mean.

Frames come from `PredictionSet.read`; only `METRIC_COLUMNS` of them are used, so read no more than these.
A task counts as solved (`is_correct`) when one and the same program gets all train pairs and all test outputs
right. Unknown test outputs give NaN, never 0. Tasks without predictions count as unsolved, with scores of 0;
rates of completions (`RATES`) are NaN there, and their means are over the tasks that have some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.predictions.prediction import SCORE_COLUMNS
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError

if TYPE_CHECKING:
    import pandas as pd

# The tasks that count: tasks, or ids alone, which leave it to the scores whether test outputs are known.
# Where these are known of some tasks only, a task without scores then counts as unsolved.
Counted = Sequence[str] | Sequence[Task]

METRIC_COLUMNS = ("task_id", "status", "error_type", "fingerprint", *SCORE_COLUMNS)

TABLE_COLUMNS = (
    "n_preds", "valid code", "valid outputs", "unique outputs",
    "train_pixel_score", "train_correct_grids", "train_pass_rate", "train_is_correct",
    "test_pixel_score", "test_correct_grids", "test_pass_rate", "test_is_correct",
    "is_correct",
)  # fmt: skip

# Rates of a task's completions, which are no scores.
RATES = ("valid code", "valid outputs", "unique outputs")

# Solved in the older, looser sense: some program solves train and some program, perhaps another, solves test.
LOOSE_COLUMN = "is_correct_any"

# What can become of a prediction, other than "ok".
FAILURES = (
    "no_code", "unsafe", "syntax", "error", "timeout", "memory", "output_limit", "invalid_output",
    "nondeterministic", "crashed",
)  # fmt: skip


def ids_of(tasks: Counted) -> list[str]:
    return [one.task_id if isinstance(one, Task) else one for one in tasks]


def aggregate(frame: pd.DataFrame, task_ids: Counted | None = None) -> pd.DataFrame:
    """The table: index task_id, columns `TABLE_COLUMNS` in this order and then `is_correct_any`.

    task_ids: the tasks that count, in the order of the rows (ids, or the task set); default the tasks of the
    frame. Scores and rates are over all predictions of a task, failures as 0; "unique outputs" is distinct
    outputs per prediction. `mean_row` gives the last line. Raises `ArcnbError` for predictions never
    judged, or of a task that is not among `task_ids`.
    """
    import pandas as pd

    ids = _index(frame, task_ids)
    values = pd.DataFrame({"task_id": frame["task_id"].astype(object)})
    values["valid code"] = (frame["status"] != "no_code").astype(float)
    values["valid outputs"] = (frame["status"] == "ok").astype(float)
    for column in SCORE_COLUMNS:
        values[column] = frame[column].astype(float).fillna(0)
    values["is_correct"] = values["train_is_correct"] * values["test_is_correct"]
    groups = values.groupby("task_id", sort=False)
    means, best = groups.mean().reindex(ids).fillna(0.0), groups.max().reindex(ids).fillna(0.0)
    n_preds = groups.size().reindex(ids, fill_value=0)
    distinct = frame.groupby("task_id")["fingerprint"].nunique().reindex(ids, fill_value=0)
    table = means.assign(
        n_preds=n_preds,
        **{"unique outputs": distinct / n_preds.clip(lower=1)},
        **{f"{part}_pass_rate": means[f"{part}_is_correct"] for part in ("train", "test")},
        **{name: best[name] for name in ("train_is_correct", "test_is_correct", "is_correct")},
        **{LOOSE_COLUMN: best["train_is_correct"] * best["test_is_correct"]},
    )[[*TABLE_COLUMNS, LOOSE_COLUMN]]
    needs_test = [name for name in table if name.startswith("test_") or name.startswith("is_correct")]
    table.loc[~_test_known(frame, ids, task_ids), needs_test] = np.nan
    table.loc[n_preds == 0, list(RATES)] = np.nan
    return table


def mean_row(table: pd.DataFrame) -> pd.Series:
    """Means over the tasks of `aggregate`'s table, column by column, NaN left out.

    How many tasks they are follows: n_tasks, n_tasks_without_predictions and n_tasks_with_unknown_test.
    """
    means = table.mean()
    means["n_tasks"] = len(table)
    means["n_tasks_without_predictions"] = (table["n_preds"] == 0).sum()
    means["n_tasks_with_unknown_test"] = table["is_correct"].isna().sum()
    return means.rename("MEAN")


def error_table(frame: pd.DataFrame, task_ids: Counted | None = None) -> pd.DataFrame:
    """Failure rates: index task_id, columns n_preds, error_rate (any failure), then each of `FAILURES`.

    Denominators as in `aggregate`: all predictions of the task; 0 for a task without any, as the reference
    has it: leave such tasks out of means.
    """
    import pandas as pd

    ids = _index(frame, task_ids)
    counts = pd.crosstab(frame["task_id"].astype(object), frame["status"].astype(object))
    counts = counts.reindex(index=ids, fill_value=0)
    n_preds = counts.sum(axis=1).astype(int)
    unknown = set(counts.columns) - {"ok", *FAILURES}
    if unknown:
        raise ArcnbError(f"unknown status {sorted(unknown)[0]!r} in the predictions")
    rates = counts.reindex(columns=list(FAILURES), fill_value=0).div(n_preds.clip(lower=1), axis=0)
    rates.columns.name = None
    rates.insert(0, "error_rate", rates.sum(axis=1))
    rates.insert(0, "n_preds", n_preds)
    return rates


def error_types(frame: pd.DataFrame, top: int = 20) -> pd.Series:
    """The most frequent `error_type` values over all predictions, with their counts, most frequent first."""
    return frame["error_type"].dropna().value_counts().head(top)


def _index(frame: pd.DataFrame, task_ids: Counted | None) -> pd.Index:
    """The ids of the tasks that count, after a check that the frame fits them."""
    import pandas as pd

    unjudged = frame["status"].isna()
    if unjudged.any():
        first = frame.loc[unjudged, "task_id"].iloc[0]
        raise ArcnbError(f"{unjudged.sum()} predictions were never judged, the first of task {first}")
    present = list(dict.fromkeys(frame["task_id"]))
    ids = present if task_ids is None else ids_of(task_ids)
    strangers = set(present) - set(ids)
    if strangers:
        raise ArcnbError(
            f"there are predictions of task {min(strangers)}, which is not in the task set: `tasks` is to be "
            "the set that was sampled"
        )
    return pd.Index(ids, name="task_id", dtype=object)


def _test_known(frame: pd.DataFrame, ids: pd.Index, tasks: Counted | None) -> np.ndarray:
    """For each task, whether its test outputs are known: from the task itself, else from its scores.

    A task of which nothing valid came says nothing about it and goes with the rest of the frame.
    """
    scored = frame["test_is_correct"].notna()
    telling = scored | (frame["status"] == "ok")
    otherwise = bool(scored.any() or not telling.any())
    by_task = scored[telling].groupby(frame.loc[telling, "task_id"].astype(object)).any()
    known = (
        by_task.reindex(ids, fill_value=otherwise).to_numpy(bool).copy()
    )  # pandas may hand out its own memory
    for i, task in enumerate(tasks or ()):
        if isinstance(task, Task):
            known[i] = task.has_test_outputs
    return known
