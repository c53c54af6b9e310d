"""Metrics: the scores of one prediction here; tables over tasks and rates with intervals from next door.

`aggregate`, `mean_row`, `error_table`, `error_types` are in metric_tables; `pass_at_k`, `pass_at_k_curve` and
`paired_difference` in pass_rates. All of them can be imported from here.
"""

from __future__ import annotations

from collections.abc import Sequence

from arcnb.arc.grids import Grid
from arcnb.arc.scores.pass_rates import PairedDifference, paired_difference, pass_at_k, pass_at_k_curve
from arcnb.arc.scores.similarity import pixel_similarity
from arcnb.arc.scores.tables import (
    FAILURES,
    LOOSE_COLUMN,
    METRIC_COLUMNS,
    TABLE_COLUMNS,
    aggregate,
    error_table,
    error_types,
    mean_row,
)
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError

__all__ = [
    "FAILURES",
    "LOOSE_COLUMN",
    "METRIC_COLUMNS",
    "TABLE_COLUMNS",
    "ArcnbError",
    "PairedDifference",
    "aggregate",
    "error_table",
    "error_types",
    "mean_row",
    "paired_difference",
    "pass_at_k",
    "pass_at_k_curve",
    "score",
]


def score(outputs: Sequence[Grid | None] | None, task: Task) -> dict[str, float | int | None]:
    """The six scores of one prediction: train_ and test_ pixel_score, correct_grids, is_correct.

    outputs: grids in the original frame, train then test, None for one that is missing; or None when the
    program gave no valid outputs, which scores 0. Scores of a partition whose expected outputs are unknown
    are None. A wrong number of outputs raises `ArcnbError`: it is no answer to this task.
    """
    expected = [pair.output for pair in (*task.train, *task.test)]
    outputs = [None] * len(expected) if outputs is None else list(outputs)
    if len(outputs) != len(expected):
        raise ArcnbError(f"task {task.task_id}: {len(outputs)} outputs for {len(expected)} inputs")
    n_train = len(task.train)
    return {
        **_partition("train", outputs[:n_train], expected[:n_train]),
        **_partition("test", outputs[n_train:], expected[n_train:]),
    }


def _partition(part: str, outputs: list[Grid | None], expected: list[Grid | None]) -> dict:
    names = (f"{part}_pixel_score", f"{part}_correct_grids", f"{part}_is_correct")
    if any(grid is None for grid in expected):
        return dict.fromkeys(names)
    pairs = zip(outputs, expected, strict=True)
    similar = [0.0 if output is None else pixel_similarity(output, grid) for output, grid in pairs]
    right = [similarity == 1 for similarity in similar]
    values = (sum(similar) / len(similar), sum(right) / len(right), int(all(right)))
    return dict(zip(names, values, strict=True))
