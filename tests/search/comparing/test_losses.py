"""Where points are lost: drawn, selected, lost in selection; over seeds; pooled; by cause."""

from dataclasses import replace

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.attempts import RULES
from arcnb.arc.scores.submission import score_submission
from arcnb.arc.tasks.task import Pair
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.search import comparing
from arcnb.search.comparing.losses import losses
from tests.search.comparing.test_evaluation import judged, right


def wrong(task, mark):
    """Outputs that are right on the train pairs and wrong on the test pairs, each mark in its own way."""
    return [pair.output for pair in task.train] + [(pair.output + mark) % 10 for pair in task.test]


@pytest.fixture
def sets(tmp_path, tasks):
    """a: selects task 0, loses task 1 (three outputs fit the train pairs, and the right one is the longest).
    b: selects task 2. Nobody runs a program on task 3."""
    first, second, third, _ = tasks
    rows = {
        "a": [
            judged(first, 0, right(first), "a program"),
            judged(second, 0, right(second), "a long program"),
            judged(second, 1, wrong(second, 1), "short"),
            judged(second, 2, wrong(second, 2), "short too"),
        ],
        "b": [judged(third, 0, right(third), "b program"), judged(first, 0, first.inputs, "the same grid")],
    }
    for name, predictions in rows.items():
        PredictionSet(tmp_path / name).write_part(predictions, 0)
    return {name: PredictionSet(tmp_path / name) for name in rows}


def test_right_outputs_are_drawn_selected_or_lost_in_selection_and_pooling_adds(sets, tasks):
    found = losses(sets, tasks)
    table = found.table()
    assert list(table.index) == ["a", "b", "a + b"]
    assert [text.partition(" (")[0] for text in table["a right one drawn"]] == ["2 of 4", "1 of 4", "3 of 4"]
    selected = [text.partition(" (")[0] for text in table["selected (official score)"]]
    assert selected == ["1 of 4", "1 of 4", "2 of 4"]
    assert table["lost in selection"].tolist() == ["25 points", "0 points", "25 points"]
    score = score_submission(comparing.sets.set_submission(sets["a"], tasks), tasks)
    assert score.output_mean == 1 / 4, "selected is the official score"
    assert str(found).startswith("A right output was drawn by b for 1 of 4 test outputs (25%, 95% interval")


def test_each_test_output_has_its_cause_and_the_choice_its_certainty(sets, tasks):
    found = losses(sets, tasks)
    causes = found.causes()
    assert causes.loc["a right output was there, but not selected"].tolist() == [1, 0, 1]
    assert causes.loc["no program gave valid outputs"].tolist() == [2, 2, 1]
    assert causes.sum().tolist() == [4, 4, 4]
    own = found.rows[found.rows["set"] == "a"].set_index("task_id")
    assert own.loc[tasks.ids[0], "certainty"] == 1
    assert own.loc[tasks.ids[1], "certainty"] == pytest.approx(1 / 3), "three programs fit, each its own way"
    calibration = found.calibration()
    assert calibration.loc["certainty 100%", "a"] == "1 of 1 (100%)"
    assert calibration.loc["certainty under 50%", "a"] == "0 of 1 (0%)"
    groups = found.groups()
    titles = [table.columns.name for table in (causes, calibration, groups)]
    assert titles == ["test outputs", "right, by certainty", "right, by task"], "four tables stand in a row"
    assert groups.loc["program, characters 1 to 100", "b"] == "1 of 2 (50%)", "the others have no program"
    for some in ([tasks.ids[2]], [tasks.ids[3]]):
        groups = losses(sets, tasks.subset(some)).groups()
        assert list(groups.columns) == ["a", "b", "a + b"]
        assert "".join(groups.loc[groups.index.str.startswith("program"), "a"]) == "", (
            "a has no program there"
        )


def test_certainty_is_of_the_choice_that_is_scored(tmp_path, tasks):
    task = tasks[0]
    many = [judged(task, n, task.inputs, f"copy {n}") for n in range(3)]
    PredictionSet(tmp_path / "p").write_part([judged(task, 3, right(task), "solves"), *many], 0)
    found = {rule: losses({"p": PredictionSet(tmp_path / "p")}, tasks[:1], rule) for rule in RULES}
    sure = {rule: one.rows["certainty"].tolist() for rule, one in found.items()}
    assert sure == {"train-score": [1], "majority": [0], "legacy": [1]}, "copies fit no train pair"


def test_random_halves_say_what_other_seeds_would_give(sets, tasks):
    table = losses(sets, tasks).table()
    assert table.loc["b", "random halves of the samples"] == "0% to 25%", (
        "its only right sample is in half of them"
    )
    for name, one in sets.items():
        rows = [judged(task, 7, right(task), f"{name} {task.task_id}") for task in tasks]
        one.write_part(rows, 1)
    low, high = (int(text.rstrip("%")) for text in losses(sets, tasks).table().iloc[-1, -1].split(" to "))
    assert low >= 25
    assert high > 50, "halves hold right samples of several tasks"


def test_unknown_test_outputs_are_left_out_and_counted(sets, tasks):
    hidden = [replace(task, test=tuple(Pair(pair.input) for pair in task.test)) for task in tasks[:2]]
    found = losses(sets, TaskSet("some", (*hidden, *tasks.tasks[2:])))
    assert found.n_unknown == 2
    assert len(found.rows) == 2 * 3
    assert "2 more are unknown and not scored" in str(found)
    assert (
        str(losses(sets, TaskSet("all", tuple(hidden))))
        == "All 2 test outputs are unknown: nothing is scored."
    )
