"""Prediction sets side by side: means with intervals, paired tests, pass@k curves, who solved what."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.predictions.stop_rules import early_stops as early_stops  # what `stopped` is below
from arcnb.arc.predictions.tables import solving
from arcnb.arc.scores.intervals import mean_and_interval, percent, rate_text, resampled_weights
from arcnb.arc.scores.pass_rates import paired_difference, pass_at_k_curve
from arcnb.arc.scores.tables import LOOSE_COLUMN, TABLE_COLUMNS, Counted, aggregate, error_types, mean_row
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task_set import TaskSet, load_tasks
from arcnb.errors import ArcnbError, number_of, short_number
from arcnb.search.comparing.changes import GroupChange, changes

if TYPE_CHECKING:
    import pandas as pd

# Means over a task's predictions that are too high where sampling stopped at those that were right.
STOPPED_TOO_HIGH = tuple(
    f"{part}_{score}" for part in ("train", "test") for score in ("pixel_score", "correct_grids", "pass_rate")
)


def comparison_table(
    frames: Mapping[str, pd.DataFrame], tasks: Counted, seed: int = 0, stopped: Container[str] = ()
) -> pd.DataFrame:
    """One row a set, the columns of the aggregate table; "38% (18 to 61%)", 95% by bootstrap over tasks.

    stopped: names of sets whose tasks ended early, as `early_stops` finds them; "-" stands for their scores
    and pass rates.
    """
    import pandas as pd

    rows = {}
    for name, frame in frames.items():
        table = aggregate(frame, tasks)
        rows[name] = {
            column: "-"
            if name in stopped and column in STOPPED_TOO_HIGH
            else _interval(column, table[column].to_numpy(float), seed)
            for column in (*TABLE_COLUMNS, LOOSE_COLUMN)
        }
    return pd.DataFrame(rows).T


def _interval(column: str, values: np.ndarray, seed: int) -> str:
    values = values[~np.isnan(values)]
    if not len(values):
        return "unknown"
    mean, low, high = mean_and_interval(values, resampled_weights(len(values), rng(seed, "table interval")))
    if column != "n_preds":
        return rate_text(mean, low, high)
    return short_number(mean) + (f" ({short_number(low)} to {short_number(high)})" if low < high else "")


def means_table(
    frames: Mapping[str, pd.DataFrame], tasks: Counted, stopped: Container[str] = ()
) -> pd.DataFrame:
    """One column a set: the means of the aggregate table, and how many tasks they are over. stopped: as in
    `comparison_table`."""
    import pandas as pd

    columns = {name: mean_row(aggregate(frame, tasks)) for name, frame in frames.items()}
    for name in columns:
        if name in stopped:
            columns[name] = columns[name].astype(object)
            columns[name][list(STOPPED_TOO_HIGH)] = "-"
    return pd.DataFrame(columns)


def headlines(frames: Mapping[str, pd.DataFrame], tasks: Counted) -> list[str]:
    """What came out of each set, in one plain sentence."""
    sentences = []
    for name, frame in frames.items():
        table, n = aggregate(frame, tasks), len(frame)
        solved, known = (int(column.sum()) for column in (table["is_correct"], table["is_correct"].notna()))
        without, unknown = int((table["n_preds"] == 0).sum()), len(table) - known
        counted = f"; {without} without predictions count as unsolved" if without else ""
        counted += f"; test outputs of {unknown} more are unknown" if unknown else ""
        distinct = frame.groupby("task_id", observed=True)["fingerprint"].nunique().sum() / max(1, n)
        held, ran = ((frame["status"] != "no_code").mean(), (frame["status"] == "ok").mean())
        sentences.append(
            f"{name}: {solved or 'none'} of {number_of(known, 'task')} solved (train and test by one "
            f"program{counted}); "
            f"of {n:,} completions {percent(held)} hold a program, {percent(ran)} ran with valid outputs, "
            f"{percent(distinct)} gave different outputs"
        )
    return sentences


def changed_by_training(
    frames: Mapping[str, pd.DataFrame],
    tasks: TaskSet,
    trained: str,
    seed: int = 0,
    stopped: Container[str] = (),
) -> list[GroupChange]:
    """What made the second of two sets another than the first (`arcnb.search.comparing.changes`), by their
    first turns: refinements are of unsolved tasks alone. trained: a task set; stopped: as in
    `comparison_table`.

    ArcnbError for another number of sets, and for one whose tasks ended early.
    """
    if len(frames) != 2:
        raise ArcnbError(f"trained compares two sets, before and after, but there are {len(frames)}")
    if ended := [name for name in frames if name in stopped]:
        raise ArcnbError(
            f"trained: tasks of {' and '.join(ended)} were ended by stop_after, so the share of their "
            'samples that solve them is too high; fill the set up with stop_after=0, or leave trained ""'
        )
    before, after = map(_first_turns, frames.values())
    return changes(before, after, list(tasks), load_tasks(trained).ids, seed)


# How predictions ended, in the words of the table; other statuses say it themselves.
ENDS = {
    "ok": "ran, valid outputs",
    "no_code": "no program",
    "error": "exception",
    "invalid_output": "output that is no grid",
    "output_limit": "too much output",
    "nondeterministic": "other outputs each time",
}


def failures(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """How predictions ended and their errors, most frequent first: a column a set, shares of its
    predictions."""
    import pandas as pd

    columns = {}
    for name, frame in frames.items():
        ends = frame["status"].replace(ENDS).value_counts()
        kinds = error_types(frame[frame["status"] == "error"], top=5).rename(
            lambda kind: f"exception: {kind}"
        )
        cut = pd.Series({"completion cut off": int((frame["finish_reason"] == "length").sum())})
        shares = pd.concat([ends, kinds, cut]) / max(1, len(frame))
        columns[f"{name} ({len(frame):,})"] = shares[shares > 0]
    table = pd.DataFrame(columns)
    order = table.fillna(0).max(axis=1).sort_values(ascending=False, kind="stable").index
    texts = table.loc[order].map(lambda share: "" if share != share else percent(share))
    return texts.rename_axis(columns="predictions")


def pass_rates(
    frames: Mapping[str, pd.DataFrame], tasks: Counted, seed: int = 0, stopped: Container[str] = ()
) -> pd.DataFrame:
    """pass@1 and pass@k of the most predictions k, with intervals; a row a set that `curves` draws."""
    import pandas as pd

    rows = {}
    for name, frame in frames.items():
        for curve in curves({name: frame}, tasks, seed, stopped).values():
            some = [curve.iloc[0], curve.iloc[-1]] if len(curve) else []
            rows[name] = {f"pass@{row.k:g}": rate_text(row["mean"], row.low, row.high) for row in some}
    return pd.DataFrame.from_dict(rows, orient="index")


def paired_table(frames: Mapping[str, pd.DataFrame], tasks: Counted, seed: int = 0) -> list[str]:
    """Each set against the one before it, in one sentence, which also says where no task's test outputs are
    known to both; empty for a single set."""
    known = {name: aggregate(frame, tasks)["is_correct"].notna() for name, frame in frames.items()}
    sentences = []
    for a, b in pairwise(frames):
        said = "not compared, as there is no task whose test outputs are known to both"
        if (known[a] & known[b]).any():
            said = str(paired_difference(frames[a], frames[b], "is_correct", seed, tasks))
        sentences.append(f"{a} -> {b}: {said}")
    return sentences


def curves(
    frames: Mapping[str, pd.DataFrame], tasks: Counted, seed: int = 0, stopped: Container[str] = ()
) -> dict[str, pd.DataFrame]:
    """{name: pass@k curve} over the same tasks, of first turns by one model alone, which the name then says.

    pass@k draws k of a task's predictions as if they were alike. A refinement was made because of what came
    before it, and what learns from its predictions is another model after each round, so such sets are
    compared at equal budgets instead (`arcnb.search.comparing.fair_comparison`, notebook 07). A first turn
    that stands in for a refinement is left out: only tasks with nothing to refine have such turns. A set
    without first turns of its own has no curve, nor has a set in `stopped` (see `early_stops`).
    """
    drawn = {}
    for name, frame in frames.items():
        if name in stopped:
            continue
        first = _first_turns(frame)
        unlearned = first[_by_first_adapter(first)]
        if len(unlearned):
            name += "" if len(first) == len(frame) else ", first turns"
            name += "" if len(unlearned) == len(first) else ", before learning"
            drawn[name] = pass_at_k_curve(unlearned, seed=seed, task_ids=tasks)
    return drawn


def _first_turns(frame: pd.DataFrame) -> pd.DataFrame:
    """The first turns of a set that are no stand-ins, as far as the frame tells.

    Without `stage` it tells of a set that refines another's first turns: its own begin after these.
    """
    first = frame[(frame["turn"] == 0) & (frame["stage"] == 0 if "stage" in frame else True)]
    return first if (first["round"] == 0).any() else first.iloc[:0]


def _by_first_adapter(frame: pd.DataFrame) -> pd.Series:
    """Of every row, whether its task's earliest prediction has the same adapter (or none, too)."""
    adapters = frame.assign(adapter=frame["adapter"].astype(object).fillna(""))
    earliest = (
        adapters.sort_values(["round", "index"]).drop_duplicates("task_id").set_index("task_id")["adapter"]
    )
    return adapters["adapter"] == adapters["task_id"].astype(object).map(earliest)


def solve_rates(frames: Mapping[str, pd.DataFrame], tasks: Counted) -> pd.DataFrame:
    """Index task_id, one column a set: the share (0..1) of a task's predictions that solve train and test.

    NaN where the test outputs are unknown, and for a task without predictions.
    """
    import pandas as pd

    rates = {}
    for name, frame in frames.items():
        mean = solving(frame).groupby(frame["task_id"].astype(object)).mean()
        known = aggregate(frame, tasks)["is_correct"].notna()
        rates[name] = mean.reindex(known.index).where(known)
    return pd.DataFrame(rates)


def solved_by(frames: Mapping[str, pd.DataFrame], tasks: Counted) -> pd.DataFrame:
    """Index task_id, one column a set: whether one of its programs solves train and test."""
    return solve_rates(frames, tasks) > 0
