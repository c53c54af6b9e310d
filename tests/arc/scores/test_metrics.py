"""Metrics: the reference's tables where it is right, and the documented differences where it is not."""

import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest

from arcnb.arc.grids import as_grid
from arcnb.arc.predictions.prediction import SCORE_COLUMNS, output_fingerprint
from arcnb.arc.scores.pass_rates import paired_difference, pass_at_k, pass_at_k_curve
from arcnb.arc.scores.similarity import score
from arcnb.arc.scores.tables import (
    FAILURES,
    LOOSE_COLUMN,
    METRIC_COLUMNS,
    RATES,
    TABLE_COLUMNS,
    aggregate,
    error_table,
    error_types,
    mean_row,
)
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.errors import ArcnbError
from tests.arc.golden_grids import cases, same_number

GOLDEN = "arc25_metrics.json.gz"
# The reference names failures by exception class, we by status.
STATUS = {
    "ParsingCodeFailed": "no_code",
    "TimeoutException": "timeout",
    "NonDeterministicCode": "nondeterministic",
    "UnsafeCode": "unsafe",
    "MemoryLimitExceeded": "memory",
}


def golden_frame(results: dict) -> pd.DataFrame:
    rows = []
    for task_id, records in results.items():
        for record in records:
            error = record.get("error_type")
            row = {"task_id": task_id, "status": STATUS.get(error, "error") if error else "ok"}
            row |= {"error_type": error, "fingerprint": record.get("fingerprint")}
            rows.append(row | {column: record.get(column) for column in SCORE_COLUMNS})
    return pd.DataFrame(rows, columns=list(METRIC_COLUMNS))


def frame(*rows: tuple) -> pd.DataFrame:
    """Rows (task_id, status, fingerprint, train right, test right); right is 0, 1 or None (unknown)."""
    records = []
    for task_id, status, fingerprint, train, test in rows:
        record = {"task_id": task_id, "status": status, "fingerprint": fingerprint}
        record["error_type"] = None if status in ("ok", None) else status.title()
        for part, right in (("train", train), ("test", test)):
            record |= {f"{part}_{name}": right for name in ("pixel_score", "correct_grids", "is_correct")}
        records.append(record)
    return pd.DataFrame(records, columns=list(METRIC_COLUMNS))


def right_or_wrong(**right: tuple[int, int]) -> pd.DataFrame:
    """For each task (n, c): n predictions of which c solve train and test."""
    return frame(
        *((t, "ok", f"{t}{i}", int(i < c), int(i < c)) for t, (n, c) in right.items() for i in range(n))
    )


def task(task_id: str = "t", known: bool = True) -> Task:
    test = [{"input": [[1]], "output": [[7, 7]]} if known else {"input": [[1]]}]
    pairs = [{"input": [[1]], "output": [[2]]}, {"input": [[3]], "output": [[4, 4]]}]
    return Task.from_dict(task_id, {"train": pairs, "test": test})


# ---------------------------------------------------------------- golden vectors


@pytest.mark.parametrize("case", cases(GOLDEN, "get_metrics"), ids=lambda case: case["id"])
def test_scores_agree_with_the_reference(case):
    outputs = [as_grid(grid) for grid in case["args"]["predictions"]]
    scores = score(outputs, Task.from_dict("t", case["args"]["task"]))
    known = {name: value for name, value in scores.items() if value is not None}
    expected = case["expect"]["value"]  # unknown test scores are absent there, None here
    assert known.keys() == expected.keys()
    assert all(same_number(known[name], expected[name]) for name in expected)


@pytest.mark.parametrize("case", cases(GOLDEN, "get_metrics", quirk=True), ids=lambda case: case["id"])
def test_a_wrong_number_of_outputs_is_refused_where_the_reference_scores_those_that_exist(case):
    outputs = [as_grid(grid) for grid in case["args"]["predictions"]]
    with pytest.raises(ArcnbError, match=r"^task t: \d outputs for \d inputs"):
        score(outputs, Task.from_dict("t", case["args"]["task"]))


@pytest.mark.parametrize("case", cases(GOLDEN, "aggregate_metrics"), ids=lambda case: case["id"])
def test_table_agrees_with_the_reference(case):
    results = case["args"]["results"]
    table = aggregate(golden_frame(results), results)
    rows = {**{i: table.loc[i] for i in table.index}, "MEAN": mean_row(table)}
    for name, expected in case["expect"]["value"]["rows"].items():
        for column, value in expected.items():
            # Its is_correct lets one program solve train and another one test: our second column.
            ours = LOOSE_COLUMN if column == "is_correct" else column
            assert same_number(rows[name][ours], value), (name, column)


UNKNOWN = [c for c in TABLE_COLUMNS if c.startswith("test_")] + ["is_correct", LOOSE_COLUMN]


@pytest.mark.parametrize("case", cases(GOLDEN, "aggregate_metrics", quirk=True), ids=lambda case: case["id"])
def test_table_differs_from_the_reference_only_as_documented(case):
    results = case["args"]["results"]
    table = aggregate(golden_frame(results), results)
    if "raises" in case["expect"]:  # a task without predictions: it divides by zero, we count it as unsolved
        empty = [task_id for task_id, records in results.items() if not records]
        assert (table.loc[empty].drop(columns=list(RATES)) == 0).all(axis=None)
        assert table.loc[empty, list(RATES)].isna().all(axis=None), "rates of no completions"
        assert mean_row(table)["n_tasks_without_predictions"] == len(empty)
        return
    # Without test outputs it reads 0, we NaN; all other columns agree.
    assert table[UNKNOWN].isna().all(axis=None)
    for name, expected in case["expect"]["value"]["rows"].items():
        row = mean_row(table) if name == "MEAN" else table.loc[name]
        assert all(same_number(row[c], v) for c, v in expected.items() if c not in UNKNOWN)


@pytest.mark.parametrize("case", cases(GOLDEN, "error_analysis"), ids=lambda case: case["id"])
def test_error_table_agrees_with_the_reference(case):
    results = case["args"]["results"]
    table = error_table(golden_frame(results), results)
    rows = {**{i: table.loc[i] for i in table.index}, "MEAN": table.mean()}
    for name, expected in case["expect"]["value"]["rows"].items():
        for column, value in expected.items():
            assert same_number(rows[name][STATUS.get(column, column)], value), (name, column)


@pytest.mark.parametrize("case", cases(GOLDEN, "same_fingerprint"), ids=lambda case: case["id"])
def test_fingerprints_agree_with_the_reference(case):
    a, b = ([as_grid(grid) for grid in case["args"][side]] for side in "ab")
    assert (output_fingerprint(a) == output_fingerprint(b)) == case["expect"]["value"]


# ---------------------------------------------------------------- score


def test_expected_outputs_score_full_marks():
    scores = score([as_grid(g) for g in ([[2]], [[4, 4]], [[7, 7]])], task())
    assert scores == dict.fromkeys(SCORE_COLUMNS, 1)
    assert isinstance(scores["train_is_correct"], int)


def test_unknown_test_outputs_score_none_not_zero():
    scores = score([as_grid(g) for g in ([[2]], [[4, 4]], [[7, 7]])], task(known=False))
    assert [scores[f"test_{name}"] for name in ("pixel_score", "correct_grids", "is_correct")] == [None] * 3
    assert scores["train_is_correct"] == 1


def test_no_outputs_score_zero_where_the_answer_is_known():
    assert score(None, task()) == dict.fromkeys(SCORE_COLUMNS, 0)
    assert score(None, task(known=False))["test_is_correct"] is None


def test_a_missing_grid_counts_as_wrong():
    scores = score([as_grid([[2]]), None, as_grid([[7, 7]])], task())
    assert (scores["train_pixel_score"], scores["train_correct_grids"], scores["train_is_correct"]) == (
        0.5,
        0.5,
        0,
    )
    assert scores["test_is_correct"] == 1


# ---------------------------------------------------------------- the table


def test_the_columns_are_the_published_ones_then_the_looser_definition():
    assert ", ".join(aggregate(right_or_wrong(a=(1, 1))).columns) == (
        "n_preds, valid code, valid outputs, unique outputs, train_pixel_score, train_correct_grids, "
        "train_pass_rate, train_is_correct, test_pixel_score, test_correct_grids, test_pass_rate, "
        "test_is_correct, is_correct, is_correct_any"
    )


def test_solved_means_that_one_program_does_both():
    table = aggregate(frame(("a", "ok", "x", 1, 0), ("a", "ok", "y", 0, 1), ("b", "ok", "x", 1, 1)))
    assert table["is_correct"].tolist() == [0, 1]
    assert table[LOOSE_COLUMN].tolist() == [1, 1]


def test_rates_are_over_all_predictions_failures_included():
    rows = [
        ("a", "ok", "x", 1, 1),
        ("a", "ok", "x", 1, 1),
        ("a", "error", None, 0, 0),
        ("a", "no_code", None, 0, 0),
    ]
    row = aggregate(frame(*rows)).loc["a"]
    assert (row["n_preds"], row["valid code"], row["valid outputs"], row["unique outputs"]) == (
        4,
        0.75,
        0.5,
        0.25,
    )
    assert (row["train_pass_rate"], row["test_pass_rate"]) == (0.5, 0.5)


def test_failures_count_as_zero_whether_their_scores_say_so_or_are_missing():
    for missing in (0, None):
        row = aggregate(frame(("a", "ok", "x", 1, 1), ("a", "timeout", None, missing, missing))).loc["a"]
        assert (row["train_pixel_score"], row["test_pass_rate"], row["is_correct"]) == (0.5, 0.5, 1)


def test_tasks_without_predictions_are_in_the_denominator():
    table = aggregate(right_or_wrong(b=(2, 2)), ["a", "b", "c"])
    assert table.index.tolist() == ["a", "b", "c"]
    assert table["is_correct"].tolist() == [0, 1, 0]
    mean = mean_row(table)
    assert mean["is_correct"] == pytest.approx(1 / 3)
    assert (mean["n_tasks"], mean["n_tasks_without_predictions"]) == (3, 2)
    assert "MEAN" not in table.index


def test_no_predictions_at_all_still_make_a_table():
    table = aggregate(frame(), ["a", "b"])
    assert (table.drop(columns=list(RATES)) == 0).all(axis=None)
    assert mean_row(table)["n_tasks_without_predictions"] == 2
    assert aggregate(frame()).empty


def test_unknown_test_outputs_are_unknown_in_the_table():
    rows = [("a", "ok", "x", 1, None), ("b", "ok", "x", 1, 1), ("c", "error", None, 0, None)]
    table = aggregate(frame(*rows))
    assert table[UNKNOWN].isna().all(axis=1).tolist() == [True, False, False]
    mean = mean_row(table)
    assert mean["is_correct"] == 0.5
    assert mean["n_tasks_with_unknown_test"] == 1


def test_a_task_set_says_which_test_outputs_are_known():
    tasks = TaskSet("x", (task("a", known=False), task("b"), task("c", known=False)))
    table = aggregate(frame(("a", "error", None, 0, None), ("b", "error", None, 0, None)), tasks)
    assert table["is_correct"].isna().tolist() == [True, False, True]
    assert table["train_is_correct"].tolist() == [0, 0, 0]
    assert aggregate(right_or_wrong(a=(1, 1), b=(1, 1)), tasks)["is_correct"].isna().tolist() == [
        True,
        False,
        True,
    ]


def test_predictions_that_were_not_judged_or_belong_elsewhere_are_refused():
    with pytest.raises(ArcnbError, match="1 predictions were never judged, the first of task b"):
        aggregate(frame(("a", "ok", "x", 1, 1), ("b", None, None, None, None)))
    with pytest.raises(ArcnbError, match="task b, which is not in the task set: `tasks` is to be the"):
        aggregate(right_or_wrong(a=(1, 1), b=(1, 1)), ["a"])


def test_error_types_and_statuses_are_counted():
    rows = [
        ("a", "timeout", None, 0, 0),
        ("a", "ok", "x", 0, 0),
        ("b", "timeout", None, 0, 0),
        ("b", "memory", None, 0, 0),
    ]
    table = error_table(frame(*rows), ["a", "b", "c"])
    assert list(table.columns) == ["n_preds", "error_rate", *FAILURES]
    assert table["error_rate"].tolist() == [0.5, 1, 0]
    assert table["timeout"].tolist() == [0.5, 0.5, 0]
    assert error_types(frame(*rows)).to_dict() == {"Timeout": 2, "Memory": 1}
    with pytest.raises(ArcnbError, match="unknown status 'strange'"):
        error_table(frame(("a", "strange", None, 0, 0)))


# ---------------------------------------------------------------- pass@k


def test_pass_at_k_is_the_share_of_k_subsets_with_a_right_one():
    for n in range(1, 7):
        for c in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(itertools.combinations(range(n), k))
                lucky = sum(min(subset) < c for subset in subsets)
                assert pass_at_k(n, c, k) == pytest.approx(lucky / len(subsets), abs=1e-12)


def test_pass_at_k_at_sizes_where_floats_would_overflow():
    assert pass_at_k(5000, 1, 2500) == pytest.approx(0.5)
    assert pass_at_k(5000, 0, 5000) == 0
    assert pass_at_k(5000, 5000, 1) == 1


@pytest.mark.parametrize(("n", "c", "k"), [(2, 3, 1), (2, -1, 1), (2, 1, 0), (2, 1, 3)])
def test_pass_at_k_refuses_impossible_numbers(n, c, k):
    with pytest.raises(ArcnbError, match=f"not n={n}, c={c}, k={k}"):
        pass_at_k(n, c, k)


def test_the_curve_is_the_mean_over_tasks_with_an_interval_around_it():
    right = {f"t{i}": (8, i % 4) for i in range(60)}
    curve = pass_at_k_curve(right_or_wrong(**right), seed=1)
    assert curve["k"].tolist() == [1, 2, 4, 8]
    for row in curve.itertuples():
        assert row.mean == pytest.approx(np.mean([pass_at_k(n, c, row.k) for n, c in right.values()]))
        assert row.low < row.mean < row.high
    # The normal approximation of the interval of a mean over 60 tasks.
    chances = [pass_at_k(8, i % 4, 8) for i in range(60)]
    half = 1.96 * np.std(chances) / math.sqrt(60)
    assert curve["high"].iloc[-1] - curve["low"].iloc[-1] == pytest.approx(2 * half, rel=0.15)
    assert curve.equals(pass_at_k_curve(right_or_wrong(**right), seed=1))
    assert not curve.equals(pass_at_k_curve(right_or_wrong(**right), seed=2))


def test_the_curve_counts_tasks_without_or_with_few_predictions():
    curve = pass_at_k_curve(right_or_wrong(a=(4, 4), b=(2, 2)), task_ids=["a", "b", "c", "d"])
    assert curve[["k", "mean", "n_tasks", "n_short"]].iloc[-1].tolist() == [4, 0.5, 4, 3]
    assert pass_at_k_curve(frame(), task_ids=["a"]).empty


def test_the_curve_leaves_tasks_with_unknown_outputs_out():
    rows = frame(("a", "ok", "x", 1, None), ("b", "ok", "x", 1, 0))
    assert pass_at_k_curve(rows)[["mean", "n_tasks"]].iloc[0].tolist() == [0, 1]


# ---------------------------------------------------------------- comparison


def test_a_difference_is_paired_by_task():
    random = rng(0, "paired")
    easy = random.random(100) < 0.5
    a = right_or_wrong(**{f"t{i}": (2, 2 * int(e)) for i, e in enumerate(easy)})
    b = right_or_wrong(**{f"t{i}": (2, 2 * int(e or i % 20 == 0)) for i, e in enumerate(easy)})
    result = paired_difference(a, b, "is_correct", seed=0)
    gained = int(sum(not e for e in easy[::20]))
    assert (result.only_a, result.only_b, result.n_tasks) == (0, gained, 100)
    assert result.difference == pytest.approx(gained / 100)
    assert 0 <= result.low <= result.difference <= result.high
    # Unpaired, two rates near 50% of 100 tasks would differ by +-14 points; paired, only five tasks can.
    assert result.high - result.low < 0.1
    assert result.p_value == pytest.approx(min(1, 2 * 0.5**gained))
    assert paired_difference(b, a).difference == -result.difference


def test_as_many_tasks_but_other_ones_are_no_certain_tie():
    a = right_or_wrong(**{f"t{i}": (1, int(i < 50)) for i in range(100)})
    b = right_or_wrong(**{f"t{i}": (1, int(i >= 50)) for i in range(100)})
    result = paired_difference(a, b)
    assert (result.difference, result.only_a, result.only_b) == (0, 50, 50)
    assert result.low < -0.15, "a hundred differences of one task each leave 0.1 as the standard error"
    assert result.high > 0.15


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"), [(0, 0, 1), (5, 5, 1), (1, 9, 0.021484375), (10, 30, 0.00221)]
)
def test_mcnemar_is_the_exact_binomial_test(only_a, only_b, p):
    a = right_or_wrong(**{f"t{i}": (1, int(i < only_a)) for i in range(60)})
    b = right_or_wrong(**{f"t{i}": (1, int(30 <= i < 30 + only_b)) for i in range(60)})
    assert paired_difference(a, b).p_value == pytest.approx(p, rel=0.01)


def test_tasks_of_one_set_only_are_left_out_unless_asked_for():
    a, b = right_or_wrong(x=(1, 1), y=(1, 1)), right_or_wrong(y=(1, 1), z=(1, 0))
    assert paired_difference(a, b).n_tasks == 1
    everything = paired_difference(a, b, task_ids=["x", "y", "z"])
    assert (everything.n_tasks, everything.only_a) == (3, 1)
    with pytest.raises(ArcnbError, match="no task in common"):
        paired_difference(right_or_wrong(x=(1, 1)), right_or_wrong(z=(1, 0)))
    with pytest.raises(ArcnbError, match="no column 'nothing'"):
        paired_difference(a, b, "nothing")


def test_a_comparison_speaks_of_percent_and_points_as_the_table_beside_it():
    a = right_or_wrong(**{f"t{i}": (1, int(i < 10)) for i in range(19)})
    b = right_or_wrong(**{f"t{i}": (1, int(i < 8)) for i in range(19)})
    said = str(paired_difference(a, b))
    assert re.match(
        r"is_correct 53% -> 42%: -11 points \(95% -\d\d to 0\) on 19 tasks; solved by the first only 2,", said
    )


def test_a_comparison_of_unequal_budgets_says_so():
    assert "UNEQUAL predictions a task, 1 and 4" in str(
        paired_difference(right_or_wrong(x=(1, 1)), right_or_wrong(x=(4, 1)))
    )
    assert "UNEQUAL" not in str(paired_difference(right_or_wrong(x=(1, 1)), right_or_wrong(x=(1, 0))))
