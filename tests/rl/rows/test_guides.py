"""Guided tasks: how many lines, of what, for whom, and what a run says of them."""

from dataclasses import replace

import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import TaskSet, load_tasks
from arcnb.arc.views import View
from arcnb.errors import ArcnbError
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer
from arcnb.rl.rows.guides import guides_of, level
from arcnb.rl.rows.history import Group, SignalHistory
from arcnb.rl.rows.prompt_rows import prompt_rows
from tests.rl.stop_at import StopAt

PROGRAM = "def transform(grid):\n    a = grid\n    b = a[::-1]\n    c = b[:, ::-1]\n    return c"


def groups(*shares_and_lines):
    return [Group("a", True, round(8 * share), 8, lines) for share, lines in shares_and_lines]


@pytest.mark.parametrize(
    ("before", "lines"),
    [
        ([], 0),
        ([(0, 0)], 0),  # one silent group of the two that are wanted
        ([(0, 0), (0.5, 0), (0, 0)], 0),  # not in a row
        ([(0, 0), (0, 0)], 8),  # half of sixteen lines
        ([(0, 0), (0, 0), (0, 8)], 12),  # too hard: a quarter more
        ([(0, 0), (0, 0), (0, 8), (0, 12)], 14),  # steps halve
        ([(0, 0), (0, 0), (1, 8)], 4),
        ([(0, 0), (0, 0), (0.5, 8)], 8),  # half succeed: as it should be
        ([(0, 0), (0, 0), (1, 8), (1, 4), (1, 2)], 1),
        ([(0, 0), (0, 0), (1, 8), (1, 4), (1, 2), (1, 1)], 0),  # free again
        ([(0, 0), (0, 0), (1, 8), (1, 4), (1, 2), (1, 1), (0, 0), (0, 0)], 1),  # silent again: a line
        ([(0, 0), (0, 0), (0, 8), (0, 0)], 12),  # a free group in between that fails says nothing new
        ([(0, 0), (0, 0), (0, 8), (0.25, 0)], 10),  # one that solves lowers it
        ([(0, 0), (0, 0), (0, 8), (0.5, 0)], 0),  # half of one: no guidance any more
        ([(0, 0), (0, 0), *[(0, 8)] * 9], 9),
    ],
)
def test_guidance_settles_where_half_succeed_and_falls_to_nothing(before, lines):
    assert level(groups(*before), 16, after=2) == lines


def test_the_last_line_is_never_shown():
    history = groups((0, 0))
    for _ in range(9):
        lines = level(history, 5, after=1)
        history += groups((0, lines))
    assert lines == 4


@pytest.fixture
def gold(tasks):
    """The three tasks with a program that solves them."""
    return TaskSet("gold", tuple(replace(task, program=PROGRAM) for task in tasks), "1")


def rows_of(plan, tasks, model, history, template="arc_code"):
    guides = guides_of(plan, tasks, longest=1500)
    given = {"seed": 0, "max_prompt_tokens": 1000, "history": history, "guides": guides}
    return prompt_rows(tasks, prompt_format(template), load_tokenizer(model), **given)


@pytest.mark.parametrize(("template", "fence"), [("arc_code", ""), ("barc", "```python\n")])
def test_a_silent_tasks_prompt_ends_with_lines_of_its_program(
    gold, quick, tmp_path, letter_model, template, fence
):
    plan = quick(tmp_path, guide_programs="gold", guide_free=0.0)
    history = SignalHistory(lag=1)
    rows = rows_of(plan, gold, letter_model, history, template)
    free = rows[0]
    assert free["lines"] == 0
    history.record(0, free["task_id"], [0, 0], [False, False])
    guided = next(row for row in map(rows.__getitem__, range(1, 9)) if row["task_id"] == free["task_id"])
    assert guided["lines"] == 2
    beginning = "def transform(grid):\n    a = grid"
    assert guided["prefix"] == free["prefix"] + fence + beginning
    assert guided["prompt"].endswith(beginning)
    task = gold[free["task_id"]]
    shown = View.of(guided).apply(task)
    pairs = {(str(pair.input), str(pair.output)) for pair in task.train}
    assert {(str(pair.input), str(pair.output)) for pair in shown.train} == pairs, "the program's own frame"


def test_an_earlier_success_guides_in_the_view_in_which_it_is_right(tasks, quick, tmp_path, letter_model):
    task = tasks[1]
    view = View.sample(task, 5, "any")
    wrong, right = (
        Prediction(
            task.task_id,
            task.fingerprint,
            0,
            i,
            program=program,
            train_is_correct=i,
            test_is_correct=i,
            **view.columns(),
        )
        for i, program in enumerate(["def transform(grid):\n    return grid", PROGRAM])
    )
    found = PredictionSet(tmp_path / "predictions")
    found.write_part([wrong, right], round=0)
    history = SignalHistory(lag=1)
    rows = rows_of(quick(tmp_path, guide_programs=f"gold, {found.folder}"), tasks, letter_model, history)
    assert set(rows.guides.by_task) == {task.task_id}
    for row in range(3):
        history.record(row, rows[row]["task_id"], [0, 0], [False, False])
    guided = [row for row in map(rows.__getitem__, range(3, 40)) if row["lines"]]
    assert {row["task_id"] for row in guided} == {task.task_id}
    assert all(View.of(row) == view for row in guided)
    free = [row for row in map(rows.__getitem__, range(3, 40)) if row["task_id"] == task.task_id]
    assert 0 < len(free) - len(guided) < len(guided), "a quarter of its turns stay free"


def test_guides_are_listed_as_other_folders_are_and_one_that_is_none_is_named(
    quick, gold, tmp_path, monkeypatch
):
    folder = tmp_path / "a, b"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.parquet").touch()  # of the folder that one works in

    def guided(programs):
        return set(guides_of(quick(tmp_path, guide_programs=programs), gold, 100).by_task)

    assert guided("gold,") == guided(f'"{folder}", gold') == set(gold.ids)
    with pytest.raises(ArcnbError, match="guide_programs: mising is no folder of predictions, and not gold"):
        guided("gold, mising")


def test_held_out_and_evaluation_tasks_are_never_guided(quick, said, gold, tmp_path):
    held = load_tasks("arc-agi-1/evaluation")[:1]
    plan = quick(tmp_path, guide_programs="gold")
    with pytest.raises(ArcnbError, match=f"shows solutions, and {held[0].task_id} is reserved"):
        guides_of(plan, [replace(held[0], program=PROGRAM)], 100)
    with pytest.raises(ArcnbError, match="has no program for any of 1 tasks"):
        guides_of(plan, [replace(gold[0], program=None)], 100)
    guided = {"guide_programs": "gold", "tasks": gold}
    assert said(**guided, train_on_held_out=True) == [
        "guide_programs does not go with train_on_held_out=True: it shows solutions"
    ]
    assert said(**guided, eval_tasks=gold[:1], eval_steps=2, n_eval_tasks=1) == [
        "guide_programs does not go with evaluation tasks among the trained ones"
    ]
    assert said(**guided, signal_visits=1) == [
        "guide_programs does not go with signal_visits=1, which must be above guide_after=1"
    ]
    assert said(**guided, turns=2) == ["guide_programs does not go with turns above 1"]


def test_a_guided_run_tells_guided_from_free_and_goes_on_as_if_unbroken(train, gold, tmp_path):
    """Nothing that a random model writes is right: guidance only rises, and only where it is asked for."""

    def shown(folder):
        found = {}
        for name in ("rollouts", "guided"):
            for one in PredictionSet(folder / name).iter_predictions():
                found[one.round] = (one.task_id, one.completion_prefix.count("\n"), name)
        return [found[step] for step in sorted(found)]

    options = {"max_steps": 8, "guide_programs": "gold", "guide_free": 0.3, "tasks": gold}
    report = train(tmp_path / "unbroken", **options)
    unbroken = shown(tmp_path / "unbroken")
    assert {name for *_, name in unbroken[:3]} == {"rollouts"}
    assert {name for *_, name in unbroken[3:]} == {"rollouts", "guided"}
    assert all((lines > 1) is (name == "guided") for _, lines, name in unbroken)
    logged = [row for row in report.history if "guided/ratio" in row]
    assert [row["guided/ratio"] for row in logged] == [float(name == "guided") for *_, name in unbroken]
    assert "0% of the guided completions and 0% of the free completions solved" in report.headline
    train(tmp_path / "broken", **options, callbacks=[StopAt(5)])
    assert train(tmp_path / "broken", **options).status == "done"
    assert shown(tmp_path / "broken") == unbroken
