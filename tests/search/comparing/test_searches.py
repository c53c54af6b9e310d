"""Two searches side by side."""

from pathlib import Path

import numpy as np
import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import write_tasks
from arcnb.lab.plots import score_evolution, solved_against_completions
from arcnb.search.comparing import searches as comparison
from arcnb.search.comparing.sets import read_sets
from arcnb.search.learning.job import arm_predictions, task_file
from arcnb.search.learning.plan import SearchPlan
from arcnb.search.learning.submission_file import SubmissionFile
from tests.search.comparing.test_evaluation import judged
from tests.search.learning_engine import small_tasks

ASKED = {"n_predictions": 6, "first_round": 2, "per_round": 2, "per_prompt": 1}
PLAN = SearchPlan.of(ASKED)
IDS = ["a", "b", "c"]


def rows(solved_at: dict[str, int | None], ended=()):
    """Six completions a task; from number solved_at on they solve it. Tasks in `ended` stop there."""
    made = []
    for task_id in IDS:
        for n in range(6):
            solves = solved_at.get(task_id) is not None and n + 1 >= solved_at[task_id]
            program = f"from dsl import *\n\ndef transform(grid):\n    return crop(grid, {n})"
            scores = {f"{part}_{name}": 1.0 if solves else 0.25 for part in ("train", "test")
                      for name in ("pixel_score", "correct_grids")}  # fmt: skip
            scores |= {f"{part}_is_correct": int(solves) for part in ("train", "test")}
            ok = n != 1
            outputs = [np.array([[n]], np.uint8)] if ok else None
            made.append(
                Prediction(task_id, "f", n, 0, program=program, status="ok" if ok else "error", n_tokens=3,
                           outputs=outputs, fingerprint=f"{n}" if ok else None, **scores)
            )  # fmt: skip
            if task_id in ended and solves:
                break
    return made


@pytest.fixture
def sets(tmp_path):
    alone, learned = PredictionSet(tmp_path / "alone"), PredictionSet(tmp_path / "learn")
    alone.write_part(rows({"a": 6}), 0)
    learned.write_part(rows({"a": 3, "b": 5}, ended=["a"]), 0)
    return {"alone": alone, "learn": learned}


def test_curves_count_what_the_first_completions_of_a_task_found(sets):
    frames = read_sets(sets)
    assert comparison.budgets_to_compare(PLAN, frames) == [2, 4, 6]
    curve = comparison.solved_curve(frames["learn"], IDS, [2, 4, 6])
    assert curve["n_solved"].tolist() == [0, 1, 2]  # a ended early and stays solved
    assert comparison.solved_curve(frames["alone"], IDS, [5, 6])["n_solved"].tolist() == [0, 1]


def test_the_two_are_paired_at_equal_budgets(sets):
    frames = read_sets(sets)
    pairs = comparison.paired_curve(frames["alone"], frames["learn"], IDS, [2, 4, 6])
    assert pairs["learned"].tolist() == pytest.approx([0, 1 / 3, 2 / 3])
    assert pairs["difference"].tolist() == pytest.approx([0, 1 / 3, 1 / 3])
    assert pairs["only_learned"].tolist() == [0, 1, 1]
    assert pairs["only_alone"].tolist() == [0, 0, 0]
    assert (pairs["low"] <= pairs["difference"]).all()
    assert (pairs["high"] >= pairs["difference"]).all()
    assert "svg" in solved_against_completions(pairs)._repr_svg_()


def test_a_search_says_what_learning_added_and_what_the_submission_file_holds(sets):
    frames = read_sets(sets)
    pairs = comparison.paired_curve(frames["alone"], frames["learn"], IDS, [2, 6])
    said = comparison.verdict(pairs, PLAN)
    assert said.startswith("Learning added +33 points (95% interval ")
    assert said.endswith("to search alone: no difference is shown.")
    of_b = [frame[frame["task_id"] == "b"] for frame in (frames["alone"], frames["learn"])]
    apart = comparison.paired_curve(*of_b, ["b"], [6])
    assert comparison.verdict(apart, PLAN).endswith("no difference is shown."), "by one task"
    assert comparison.verdict(apart.assign(tasks=6), PLAN).endswith("to search alone.")
    alike = comparison.paired_curve(frames["alone"], frames["alone"], IDS, [6])
    expected = "Learning added 0 points to search alone: no difference is shown."
    assert comparison.verdict(alike, PLAN) == expected, "an interval without width would look like certainty"
    assert comparison.verdict(None, PLAN) == ""


def test_padding_of_the_submission_file_is_told_from_answers_of_one_black_cell(tmp_path):
    tasks, zero = small_tasks(2), np.zeros((1, 1), np.uint8)
    plan = SearchPlan.of(ASKED | {"submission": True}).settled(tmp_path)
    write_tasks(tasks, task_file(plan))
    black = judged(tasks[0], 0, [*(pair.output for pair in tasks[0].train), *[zero] * len(tasks[0].test)])
    last = arm_predictions(plan, "learn")
    last.write_part([black], 0)
    SubmissionFile(Path(plan.submission_file), tasks, last).refresh(tasks.ids)
    told = "submission.json: 2 tasks, 2 test outputs, 3 attempts padded with [[0]]."
    assert comparison.verdict(None, plan) == told


def test_later_samples_are_compared_over_tasks_that_both_went_on_with(sets):
    frames = read_sets(sets)
    later = comparison.later_samples(frames["alone"], frames["learn"], PLAN)
    assert later["samples"].tolist() == ["3 to 4", "3 to the end"]
    assert later["alone"].tolist() == pytest.approx([0, (1 / 4 + 0 + 0) / 3])
    assert later["learned"].tolist() == pytest.approx([1 / 3, (1 / 1 + 2 / 4 + 0) / 3])  # a ended: 1 of 1
    assert later["n_more"].tolist() == [1, 2]
    late = SearchPlan.of(ASKED | {"first_round": 6})
    assert comparison.later_samples(frames["alone"], frames["learn"], late).empty
    skipped = [frame[(frame["task_id"] != "b") | (frame["round"] > 0)] for frame in frames.values()]
    assert comparison.later_samples(*skipped, PLAN).equals(later), "its first prompt did not fit"


def test_samples_with_unknown_test_outputs_are_not_counted_as_wrong(sets):
    frames = read_sets(sets)
    learned, known = frames["learn"], comparison.later_samples(frames["alone"], frames["learn"], PLAN)
    hidden = [
        frame.assign(test_is_correct=frame["test_is_correct"].mask(frame["task_id"] == "b"))
        for frame in (frames["alone"], learned)
    ]
    some = comparison.later_samples(*hidden, PLAN)
    assert some["n_tasks"].tolist() == [2, 2]
    assert some["learned"].tolist() == pytest.approx([1 / 2, 1 / 2])
    train = comparison.later_samples(*hidden, PLAN, "train_is_correct")
    assert train["learned"].tolist() == known["learned"].tolist()
    none = [frame.assign(test_is_correct=np.nan) for frame in frames.values()]
    for row in comparison.later_samples(*none, PLAN).to_dict("records"):
        assert (row["n_tasks"], row["alone"], row["learned"], row["p_value"]) == (0, *["unknown"] * 3)


def test_without_test_outputs_the_pairs_are_of_the_train_pairs(tmp_path):
    frames = []
    for name, n_solved in (("alone", 1), ("learn", 8)):
        one = PredictionSet(tmp_path / name)
        scores = [float(n < n_solved) for n in range(9)]
        made = [
            Prediction(f"t{n}", "f", 0, 0, status="ok", train_is_correct=int(score), train_pixel_score=score,
                       train_correct_grids=score, n_tokens=1)
            for n, score in enumerate(scores)
        ]  # fmt: skip
        one.write_part(made, 0)
        frames.append(read_sets({name: one})[name])
    ids = [f"t{n}" for n in range(9)]
    (row,) = comparison.paired_curve(*frames, ids, [1], "train_is_correct").to_dict("records")
    assert (row["only_alone"], row["only_learned"]) == (0, 7)
    assert row["p_value"] == pytest.approx(2 / 2**7)
    assert row["difference"] == pytest.approx(7 / 9)


def test_searches_whose_time_was_up_are_named_with_the_completions_they_had(sets):
    reports = {"alone": {"out_of_time": False}, "learn": {"out_of_time": True}}
    assert comparison.unfinished({"alone": reports["alone"]}) == ""
    assert "The time was up for learn:" in comparison.unfinished(reports)
    frames = read_sets(sets)
    pairs = comparison.paired_curve(frames["alone"], frames["learn"], IDS, [2, 6])
    assert pairs["used_alone"].tolist() == [2, 6]
    assert pairs["used_learned"].tolist() == pytest.approx([2, 5])  # a ended after its third


def test_rounds_samples_best_programs_and_functions_of_a_task(sets):
    frames = read_sets(sets)
    table = comparison.rounds_table(frames["alone"], PLAN)
    assert table["completions"].tolist() == [6, 6, 6]
    assert table["valid"].tolist() == [0.5, 1, 1]
    assert table["train_solved"].tolist() == pytest.approx([0, 0, 1 / 6])
    evolution = comparison.evolution(frames["alone"], PLAN)
    assert evolution[evolution["task_id"] == "b"]["learned"].tolist() == [0, 0, 1, 1, 2, 2]
    assert "svg" in score_evolution(evolution[evolution["task_id"] == "a"], "a")._repr_svg_()
    best = comparison.best_of_rounds(sets["alone"], "a", PLAN)
    assert [row.round for row in best] == [0, 2, 5]
    usage = comparison.usage_by_round(sets["alone"], ["a"], PLAN)
    assert usage.loc["crop"].tolist() == [1, 1, 1]
