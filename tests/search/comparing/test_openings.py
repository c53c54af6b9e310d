"""The first sentences and the picture of pages about predictions."""

from dataclasses import replace

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Pair
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.search import comparing
from arcnb.search.comparing import evaluation
from arcnb.search.comparing.openings import solved_opening
from tests.search.comparing.test_evaluation import judged, right


@pytest.fixture
def sets(tmp_path, tasks):
    """a solves one task of four, b three, both with one sample a task."""
    for name, n_solved in (("a", 1), ("b", 3)):
        rows = [
            judged(task, 0, right(task) if number < n_solved else task.inputs)
            for number, task in enumerate(tasks)
        ]
        PredictionSet(tmp_path / name).write_part(rows, 0)
    return {name: PredictionSet(tmp_path / name) for name in "ab"}


def test_a_page_says_how_many_tasks_are_solved_and_shows_three_and_a_near_miss(sets, tasks):
    frames = comparing.sets.read_sets(sets)
    said, shown = solved_opening(frames, sets, tasks)
    assert said == (
        "Solved: 1 of 4 tasks (25%, 95% interval 4.6 to 70%) by a, "
        "3 of 4 tasks (75%, 95% interval 30 to 95%) by b; train and test pairs by one program."
    )
    by_arm = dict(zip(("alone", "learn"), frames.values(), strict=True))
    arms, _ = solved_opening(by_arm, dict(zip(by_arm, sets.values(), strict=True)), tasks)
    assert "by search alone, 3 of 4 tasks" in arms
    assert "by search and learn;" in arms
    assert [head.partition(":")[0] for head in shown.heads] == ["Solved"] * 3 + ["Near miss"]
    assert shown._repr_html_().count('class="arcnb-card"') == 4
    programs = [judged(task, 1, right(task), "other" * 3) for task in tasks[2:]]
    sets["b"].write_part(programs, 1)
    first = [one.program for one in solved_opening(frames, sets, tasks)[1].predictions[:2]]
    assert len(set(first)) == 2, "different programs come first"
    alone, _ = solved_opening({"a": frames["a"]}, sets, tasks)
    assert alone.startswith("Solved: 1 of 4 tasks (25%")
    assert alone.endswith("Train pairs that the best program gets right: none in 3 of the 3 others.")
    nearly = frames["a"].assign(train_correct_grids=[1.0, 1.0, 0.5, 0.0], test_is_correct=[1, 0, 0, 0])
    assert (
        "gets right: all in 1, some in 1, none in 1 of the 3 others."
        in solved_opening({"a": nearly}, sets, tasks)[0]
    )


def test_where_nothing_is_solved_or_predicted_the_first_sentence_says_so(sets, tasks, tmp_path):
    frame = comparing.sets.read_sets(sets)["a"]
    missed = frame.assign(train_is_correct=0, test_is_correct=0)
    assert solved_opening({"a": missed}, sets, tasks)[0].startswith(
        "Solved: none of 4 tasks (0%, 95% interval 0 to"
    )
    none = missed.assign(train_correct_grids=0.0)
    assert "none in 4 of the 4 tasks." in solved_opening({"a": none}, sets, tasks)[0]
    unknown = frame.assign(test_is_correct=None, test_correct_grids=None, test_pixel_score=None)
    hidden = TaskSet("h", tuple(replace(t, test=tuple(Pair(p.input) for p in t.test)) for t in tasks))
    assert "; train pairs only; test outputs are unknown." in solved_opening({"a": unknown}, sets, hidden)[0]
    empty = {"a": PredictionSet(tmp_path / "empty")}
    said, shown = solved_opening({"a": frame.head(0)}, empty, tasks)
    assert said == "There are no predictions yet."
    assert "no program with valid outputs" in shown._repr_html_()
    assert not shown, "a notebook opens with something else"


def test_failures_are_shares_of_predictions_most_frequent_first(sets, tasks):
    frames = comparing.sets.read_sets(sets)
    broken = frames["a"].assign(
        status=["ok", "error", "error", "invalid_output"],
        error_type=[None, "NameError", "NameError", "OutputError"],
    )
    table = evaluation.failures({"a": broken, "b": frames["b"]})
    assert table.index[0] == "ran, valid outputs"
    assert table.loc["exception", "a (4)"] == table.loc["exception: NameError", "a (4)"] == "50%"
    assert table.loc["exception", "b (4)"] == ""
    assert "output that is no grid" in table.index
    assert not table.index.str.contains("OutputError").any(), "which is no exception of the program's"
    assert evaluation.pass_rates(frames, tasks.ids).loc["b", "pass@1"].startswith("75% (")
