"""Tasks chosen by how often earlier predictions solve them."""

from dataclasses import replace

import pytest

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.stop_rules import record_rule
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import write_tasks
from arcnb.errors import ArcnbError
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.rows.choice import tasks_solved_at_most, training_tasks
from arcnb.rl.rows.history import SignalHistory


def sample(task, index, train, test, turn=0, fingerprint=None):
    return Prediction(
        task.task_id,
        fingerprint or task.fingerprint,
        0,
        index,
        turn=turn,
        train_is_correct=int(train),
        test_is_correct=None if test is None else int(test),
    )


@pytest.fixture
def predictions(tasks, tmp_path):
    """Four samples a task: solved by none (by two only on the train pairs), one and all of them; the first
    task's second turns, which all solve it, do not count."""
    never, once, always = tasks
    rows = [sample(never, i, i < 2, False) for i in range(4)]
    rows += [sample(never, i, True, True, turn=1) for i in range(4)]
    rows += [sample(once, i, True, i == 3) for i in range(4)]
    rows += [sample(always, i, True, None) for i in range(4)]
    found = PredictionSet(tmp_path / "predictions")
    found.write_part(rows, round=0)
    return found


@pytest.mark.parametrize(
    ("most", "ids"), [(0, ["swap0"]), (1, ["swap1", "swap2"]), (0.25, ["swap1"]), (0.9, ["swap1"])]
)
def test_a_task_counts_if_one_program_is_right_on_all_pairs(tasks, predictions, most, ids):
    chosen = tasks_solved_at_most(most, tasks, predictions)
    assert chosen.ids == ids
    assert chosen.version == tasks.version


def test_a_task_without_predictions_is_left_out(tasks, predictions):
    only = tasks.subset(["swap2"])
    part = PredictionSet(predictions.folder.parent / "part")
    part.write_part([sample(only[0], 0, True, True)], round=0)
    assert tasks_solved_at_most(1, tasks, part).ids == ["swap2"]


def test_nothing_to_choose_from_is_said(tasks, predictions, tmp_path):
    with pytest.raises(ArcnbError, match="holds no first turns of the tasks of swaps"):
        tasks_solved_at_most(1, tasks, PredictionSet(tmp_path / "empty"))
    with pytest.raises(ArcnbError, match=r"by some and at most 0\.1 of its samples; .* shares are 0 to 1"):
        tasks_solved_at_most(0.1, tasks, predictions)


def test_another_version_of_a_task_is_named(tasks, tmp_path):
    other = PredictionSet(tmp_path / "other")
    other.write_part([sample(tasks[1], 0, True, True, fingerprint="0" * 16)], round=0)
    with pytest.raises(ArcnbError, match="another version of swap1"):
        tasks_solved_at_most(1, tasks, other)


def test_shares_that_early_stop_made_too_high_are_refused(tasks, predictions):
    record_rule(predictions, early_stop=4, n_predictions=8)  # by which the last two tasks ended after 4 of 8
    with pytest.raises(
        ArcnbError, match=r"^learn_from .*: tasks of swaps were stopped by stop_after, so the"
    ):
        tasks_solved_at_most(1, tasks, predictions)
    with pytest.raises(ArcnbError, match="no task is solved"):  # the first one went to its end
        tasks_solved_at_most(1, tasks.subset(["swap0"]), predictions)
    predictions.write_part([sample(task, i, False, False) for task in tasks for i in range(4, 8)], round=1)
    assert tasks_solved_at_most(1, tasks, predictions).ids == ["swap1", "swap2"], "it was filled up"


def test_early_stop_does_not_hide_which_tasks_no_sample_solves(tasks, predictions):
    record_rule(predictions, early_stop=4, n_predictions=8)
    assert tasks_solved_at_most(0, tasks, predictions).ids == ["swap0"]
    # By this rule the first task, too, ended after 4 of 8: two of them are right on the train pairs alone.
    record_rule(predictions, early_stop=2, n_predictions=8)
    said = "no task is solved by none of its samples; the shares are 0 to 1, and 3 tasks ended early"
    with pytest.raises(ArcnbError, match=said):
        tasks_solved_at_most(0, tasks, predictions)


def test_a_plan_names_the_tasks_of_a_run(tasks, predictions, tmp_path):
    line = {"input": [[1, 2, 2]], "output": [[2, 1, 1]]}
    line = Task.from_dict("line", {"train": [line, line], "test": [line]})
    write_tasks([*tasks, Augmentation(n_rot90=1).apply_task(line)], tmp_path / "tasks.parquet")
    write_tasks([replace(line, task_id="evaluated")], tmp_path / "eval.parquet")
    named = {"tasks": str(tmp_path / "tasks.parquet"), "eval_tasks": str(tmp_path / "eval.parquet")}
    chosen, evaluated = training_tasks(GrpoPlan.of(named | {"train_on_held_out": True}))
    assert (chosen.ids, evaluated.ids) == (tasks.ids, ["evaluated"]), "the line is evaluated on"
    assert training_tasks(GrpoPlan.of(named | {"eval_steps": 0}))[0].ids == [*tasks.ids, "line"]
    named |= {"learn_from": str(predictions.folder)}
    assert training_tasks(GrpoPlan.of(named))[0].ids == ["swap1"]
    without = named | {"eval_tasks": ""}
    assert [len(part) for part in training_tasks(GrpoPlan.of(without | {"eval_steps": 0}))] == [1, 0]
    with pytest.raises(ArcnbError, match='eval_tasks "" names no task set; eval_steps 0 evaluates nothing'):
        training_tasks(GrpoPlan.of(without))
    assert training_tasks(GrpoPlan.of(named | {"max_solved": 1.0}))[0].ids == ["swap1", "swap2"]


def test_eval_tasks_can_be_kept_from_the_tasks_themselves(tmp_path):
    lines = []
    for n in range(2, 6):
        pair = {"input": [[1] * n + [0]], "output": [[1] * n + [2]]}
        lines.append(Task.from_dict(f"line{n}", {"train": [pair, pair], "test": [pair]}))
    turned = replace(Augmentation(n_rot90=1).apply_task(lines[0]), task_id="turned")
    write_tasks([*lines, turned], tmp_path / "tasks.parquet")
    named = {"tasks": str(tmp_path / "tasks.parquet"), "eval_tasks": "kept", "n_eval_tasks": 2}
    found = {}
    for seed in range(8):
        chosen, kept = training_tasks(GrpoPlan.of(named | {"seed": seed}))
        assert training_tasks(GrpoPlan.of(named | {"seed": seed}))[1].ids == kept.ids
        found[tuple(kept.ids)] = chosen.ids
        alike = {"line2", "turned"} if {"line2", "turned"} & {*kept.ids} else set()
        assert {*chosen.ids} == {*(task.task_id for task in lines), "turned"} - {*kept.ids} - alike
    assert len(found) > 1
    with pytest.raises(ArcnbError, match=r"n_eval_tasks=5 of the 5 tasks of .* leaves none to train on"):
        training_tasks(GrpoPlan.of(named | {"n_eval_tasks": 5}))
    with pytest.raises(ArcnbError, match="eval_tasks 'kept' needs n_eval_tasks"):
        training_tasks(GrpoPlan.of(named | {"n_eval_tasks": 0}))


def test_a_silent_task_gives_its_rows_to_others():
    history = SignalHistory(visits=2, weight=0.0, lag=1)
    for row, (task, rewards, solved) in enumerate(
        [("a", [0, 0], [0, 0]), ("b", [0, 1], [0, 0]), ("a", [0, 0], [0, 0]), ("c", [10, 10], [1, 1])]
    ):
        history.record(row, task, rewards, solved)
    assert history.silent(2) == set()
    assert history.silent(4) == {"a"}, "c was seen only once"
    assert {history.choose(row, "a", ["a", "b", "c"], 0) for row in range(4, 30)} == {"b", "c"}
    assert history.choose(9, "b", ["a", "b", "c"], 0) == "b"
    assert history.choose(2, "a", ["a", "b", "c"], 0) == "a", "a row knows only what came before it"
    again = SignalHistory(visits=2, weight=0.0, lag=1)
    again.restore(history.as_dict())
    assert again.groups == history.groups
    softly = replace(history, weight=0.5)
    kept = sum(softly.choose(row, "a", ["a", "b", "c"], 0) == "a" for row in range(4, 404))
    assert 150 < kept < 250


def test_spread_among_wrong_programs_is_signal_and_equal_half_right_ones_are_too():
    history = SignalHistory(visits=1)
    history.record(0, "spread", [0.0, 1.0], [False, False])
    history.record(1, "same but mixed", [1.0, 1.0], [True, False])
    history.record(2, "all wrong", [1.0, 1.0], [False, False])
    assert history.silent(3) == {"all wrong"}


@pytest.mark.parametrize(("visits", "weight"), [(-1, 0.0), (1, 1.5)])
def test_impossible_choices_of_prompts_are_refused(said, visits, weight):
    with pytest.raises(ArcnbError, match=r"parameter 'signal_(visits|weight)' must be at least 0"):
        said(signal_visits=visits, signal_weight=weight)
