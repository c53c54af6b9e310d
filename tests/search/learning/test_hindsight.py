"""Hindsight tasks: what is relabelled, what is left out, in which order."""

import json

import numpy as np
import pytest

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.tasks.task import Pair, Task
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.models.sft.rows import IGNORED
from arcnb.programs.executor.limits import Execution, Job
from arcnb.programs.judging import judge
from arcnb.search.learning.lessons.hindsight import (
    HindsightSettings,
    dealt,
    learning_rows,
    relabel,
    relabelled,
)
from tests.paths import GOLDEN
from tests.search.learning_engine import program, small_tasks

GOLDEN = GOLDEN / "arc25_learning.json"
CASES = json.loads(GOLDEN.read_text())["cases"]
OWN = HindsightSettings(fresh_views=0, programs_per_task=0)


def cases(function):
    return [pytest.param(case, id=case["id"]) for case in CASES if case["fn"] == function]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("default"))


def judged(executor, bodies, augmentation=Augmentation(), task=None, round_=0, finish="stop"):
    task = task or small_tasks(1)[0]
    colors = augmentation.color_map and list(augmentation.color_map)
    rows = [
        Prediction(
            task.task_id, task.fingerprint, round_, i, hflip=augmentation.hflip, n_rot90=augmentation.n_rot90,
            color_map=colors, completion=program(body), completion_prefix="```python\n", finish_reason=finish,
        )
        for i, body in enumerate(bodies)
    ]  # fmt: skip
    return list(judge(rows, {task.task_id: task}, executor))


def found(executor, tokenizer, bodies, settings=OWN, **more):
    rows = judged(executor, bodies, **more)
    return relabelled_rounds([rows], executor, tokenizer, settings, more.get("task"))


def relabelled_rounds(rounds, executor, tokenizer, settings, task=None):
    (made,) = relabel([(task or small_tasks(1)[0], rounds)], executor, tokenizer, settings, 0)
    return made


def test_a_program_that_ran_is_the_right_answer_to_the_task_it_solved(executor, tokenizer):
    turned = Augmentation(True, 1, (0, 3, 2, 1, 4, 5, 6, 7, 8, 9))
    (made,) = found(executor, tokenizer, ["return grid[::-1]"], augmentation=turned).tasks
    real = small_tasks(1)[0]
    for pair, original in zip((*made.task.train, *made.task.test), real.inputs, strict=True):
        assert np.array_equal(pair.input, turned.apply(original))
        assert np.array_equal(pair.output, pair.input[::-1])
    assert (len(made.task.train), len(made.task.test)) == (2, 1)
    assert made.task.program in made.answer


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        (["return grid"], "identity"),
        (["return np.ones((3, 3), int)"], "constant"),
        (["return grid[::-1]", "x = 1; return np.flipud(grid)"], "duplicate"),
        (["return np.random.randint(0, 9, (2, 2))"], "nondeterministic"),
        (["return grid[::-1] * " + "1 * " * 300 + "1"], "too long"),
        (["return grid + missing"], "failed"),
    ],
)
def test_what_is_not_worth_learning_is_left_out_and_counted(executor, tokenizer, bodies, reason):
    made = found(executor, tokenizer, [*bodies, "return grid.T"])
    assert made.dropped == {reason: 1}
    assert [one.answer for one in made.tasks if one.answer == program("return grid.T")]
    assert len(made.tasks) == len(bodies)  # the transpose, and the first of two that do the same


def test_of_duplicates_the_shortest_is_kept(executor, tokenizer):
    (made,) = found(executor, tokenizer, ["x = 1; return np.flipud(grid)", "return grid[::-1]"]).tasks
    assert made.answer == program("return grid[::-1]")


def test_a_truncated_completion_is_not_learned_from(executor, tokenizer):
    assert found(executor, tokenizer, ["return grid.T"], finish="length").dropped == {"too long": 1}


def test_tasks_come_closest_last_by_train_outputs_alone(executor, tokenizer):
    bodies = [
        "out = grid.copy(); out[:, 0] = 4; return out",
        "return grid[::-1]",
        "return np.hstack([grid] * 3)",
    ]
    task = small_tasks(1)[0]
    made = found(executor, tokenizer, bodies).tasks
    assert [one.closeness for one in made] == sorted(one.closeness for one in made)
    assert made[-1].answer == program(bodies[0])
    assert made[-1].closeness == (1.0, 1.0)
    pairs = (Pair(task.test[0].input, np.array([[6]], np.uint8)),)
    other = Task(task.task_id, task.train, pairs)  # other expected test outputs
    assert [one.closeness for one in found(executor, tokenizer, bodies, task=other).tasks] == [
        one.closeness for one in made
    ]


def test_fresh_views_are_right_by_construction_and_differ_from_the_own_one(executor, tokenizer):
    made = found(executor, tokenizer, ["return grid[::-1]"], HindsightSettings(fresh_views=3)).tasks
    assert len({one.task.fingerprint for one in made}) == 4
    for one in made:
        (answer,) = executor.run([Job(one.task.program, tuple(one.task.inputs))])
        outputs = [pair.output for pair in (*one.task.train, *one.task.test)]
        assert all(np.array_equal(a, b) for a, b in zip(answer.outputs, outputs, strict=True))


def test_per_task_keeps_the_closest(executor, tokenizer):
    bodies = ["out = grid.copy(); out[:, 0] = 4; return out", "return grid[::-1]", "return grid.T"]
    made = found(executor, tokenizer, bodies, HindsightSettings(programs_per_task=1, fresh_views=0))
    assert [one.answer for one in made.tasks] == [program(bodies[0])]
    assert made.dropped == {"not among the closest": 2}


def test_replay_weighs_earlier_rounds(executor, tokenizer):
    old = judged(executor, [f"return (grid + {n}) % 10" for n in range(1, 9)])
    new = judged(executor, ["return grid.T"], round_=1)
    ages = {}
    for replay in (0.0, 0.5, 1.0):
        settings = HindsightSettings(replay=replay, fresh_views=0, programs_per_task=0)
        made = relabelled_rounds([old, new], executor, tokenizer, settings)
        ages[replay] = sorted(one.age for one in made.tasks)
    assert ages[0.0] == [0]
    assert ages[1.0] == [0] + [1] * 8
    assert 0 < ages[0.5].count(1) < 8


def test_a_program_found_again_counts_as_new(executor, tokenizer):
    old, new = judged(executor, ["return grid.T"]), judged(executor, ["return grid.T"], round_=1)
    made = relabelled_rounds([old, new], executor, tokenizer, HindsightSettings(replay=0, fresh_views=0))
    assert [one.age for one in made.tasks] == [0]
    assert made.dropped == {}, "it was learned from when it was new"


def test_what_is_never_learned_from_counts_in_the_round_that_it_came_in(executor, tokenizer):
    bodies = ["return grid", "return missing", "return grid.T", "return np.transpose(grid)"]
    old = judged(executor, bodies)
    left_out = {"identity": 1, "failed": 1, "duplicate": 1}
    assert relabelled_rounds([old], executor, tokenizer, OWN).dropped == left_out
    always = HindsightSettings(replay=1.0, fresh_views=0)
    assert relabelled_rounds([old, []], executor, tokenizer, always).dropped == {}


def test_a_program_that_answers_otherwise_the_second_time_is_dropped(executor, tokenizer):
    rows = judged(executor, ["return grid.T"])

    class Fickle:
        limits = executor.limits

        def run(self, jobs):
            for _ in jobs:
                yield Execution("ok", tuple(np.full((1, n + 1), 1, np.uint8) for n in range(3)))

    assert relabelled_rounds([rows], Fickle(), tokenizer, OWN).dropped == {"nondeterministic": 1}


def test_a_program_that_depends_on_chance_is_not_learned_from(executor, tokenizer):
    """The same seeds give it the same outputs each time it is judged: only a run with others tells."""
    body = "return (grid + np.random.randint(1, 10, grid.shape)) % 10"
    made = found(executor, tokenizer, [body, "return grid.T"])
    assert made.dropped == {"nondeterministic": 1}
    assert ["grid.T" in one.task.program for one in made.tasks] == [True]


def test_the_row_shows_the_task_that_was_solved_and_counts_the_answer_alone(executor, tokenizer):
    made = found(executor, tokenizer, ["return grid.T"]).tasks
    options = {"seed": 0, "round_": 0, "max_tokens": 2000}
    (row,), too_long = learning_rows(made, tokenizer, prompt_format(), **options)
    assert too_long == 0
    answer = [label for label in row["labels"] if label != IGNORED]
    assert row["input_ids"][-len(answer) :] == answer
    assert tokenizer.decode(answer) == program("return grid.T") + tokenizer.eos_token
    assert "4" not in tokenizer.decode(row["input_ids"]).partition("Find the rule")[2].partition("```")[0], (
        "the real task's outputs are full of 4"
    )
    assert learning_rows(made, tokenizer, prompt_format(), **options | {"max_tokens": 20}) == ([], 1)
    rows, _ = learning_rows(made, tokenizer, prompt_format(), epochs=6, **options)
    assert len({tuple(row["input_ids"]) for row in rows}) == 2  # both orders of the two train pairs


@pytest.mark.parametrize("case", cases("hindsight_relabel"))
def test_golden_relabelling(case):
    n_train = len(case["args"]["task"]["train"])
    records = sorted(
        (record for record in case["args"]["results"] if "output_grids" in record),
        key=lambda record: (record["train_correct_grids"], record["train_pixel_score"]),
    )
    for record, wanted in zip(records, case["expect"]["value"], strict=True):
        grids = (
            [np.array(grid, np.uint8) for grid in record[name]] for name in ("input_grids", "output_grids")
        )
        made = relabelled(*grids, n_train, "t").to_dict()
        assert made == {name: wanted[name] for name in ("train", "test")}
        assert record["text_prediction"] == wanted["text_prediction"]


@pytest.mark.parametrize("case", cases("hindsight_order"))
def test_golden_order_over_tasks(case):
    lists = [
        sorted(
            (record for record in records if "output_grids" in record),
            key=lambda record: (record["train_correct_grids"], record["train_pixel_score"]),
        )
        for records in case["args"]["results"].values()
    ]
    assert [record["text_prediction"] for record in dealt(lists)] == case["expect"]["value"]
