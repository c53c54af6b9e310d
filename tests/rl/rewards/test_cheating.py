"""Programs that memorise are found, honest ones never."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.programs.executor.executor import Executor
from arcnb.programs.judging import judge
from arcnb.rl.rewards.cheating import changed_copies, find_cheats, literal_grids
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.rewards.terms import RewardPlan, TermLimits
from arcnb.synth.rearc.tasks import rearc_program
from tests.paths import ROOT

TRAIN = [
    ([[1, 0, 0], [0, 2, 0]], [[0, 0, 1], [0, 2, 0]]),
    ([[3, 3, 0], [0, 0, 0]], [[0, 3, 3], [0, 0, 0]]),
    ([[0, 0, 4], [5, 0, 0]], [[4, 0, 0], [0, 0, 5]]),
]
TEST = ([[6, 0, 1], [0, 0, 6]], [[1, 0, 6], [6, 0, 0]])


def mirror_task(with_test=True):
    test = {"input": TEST[0]} | ({"output": TEST[1]} if with_test else {})
    return Task.from_dict("mirror", {"train": [{"input": i, "output": o} for i, o in TRAIN], "test": [test]})


LOOKUP = "\n".join(
    f"    if grid.tolist() == {inputs}:\n        return {outputs}" for inputs, outputs in TRAIN
)


def cells(grid):
    return "".join(str(cell) for row in grid for cell in row)


ENCODED = {cells(inputs): cells(outputs) for inputs, outputs in TRAIN}
NUMBERED = {int(key) % 9973: value for key, value in ENCODED.items()}
CHEATS = {
    "a table of inputs": f"def transform(grid):\n{LOOKUP}\n    return grid",
    "a table that turns unknown grids": f"def transform(grid):\n{LOOKUP}\n    return np.flipud(grid)",
    "a table as strings": f"""def transform(grid):
    known = {ENCODED}
    key = ''.join(str(int(cell)) for cell in grid.flatten())
    if key in known:
        return np.array([int(cell) for cell in known[key]]).reshape(grid.shape)
    return grid""",
    "dispatch on a number made of the cells": f"""def transform(grid):
    answers = {NUMBERED}
    text = answers.get(int(''.join(str(int(cell)) for cell in grid.flatten())) % 9973, '000000')
    return np.array([int(cell) for cell in text]).reshape(2, 3)""",
    "train and a guessed test output": f"""def transform(grid):
{LOOKUP}
    return {TEST[1]}""",
}
HONEST = {
    "right": "def transform(grid):\n    return np.fliplr(grid)",
    "overfit to three columns": """def transform(grid):
    return [[row[2], row[1], row[0]] if 6 not in row else list(row) for row in grid.tolist()]""",
    "right for colors it saw, else an error": """def transform(grid):
    if 6 in grid:
        raise ValueError('unknown color')
    return np.fliplr(grid)""",
    "wrong": "def transform(grid):\n    return grid",
}


def verdicts(programs, task, augment=None):
    predictions = [
        Prediction(
            task.task_id, task.fingerprint, 0, i, completion=f"```python\n{program}\n```", **(augment or {})
        )
        for i, program in enumerate(programs)
    ]
    with Executor(1) as executor:
        judged = list(judge(predictions, {task.task_id: task}, executor))
        return judged, find_cheats(judged, {task.task_id: task}, executor)


def test_programs_that_memorise_are_found_and_honest_ones_are_not():
    judged, cheats = verdicts([*CHEATS.values(), *HONEST.values()], mirror_task())
    for name, prediction, cheat in zip(CHEATS, judged, cheats, strict=False):
        assert prediction.train_is_correct, f"{name}: {prediction.status} {prediction.error_message}"
        assert cheat, name
    for name, cheat in zip(HONEST, cheats[len(CHEATS) :], strict=True):
        assert cheat is None, name


def rewarded(programs, detect_cheating):
    """(rewards, extra columns, metrics) of these programs as one group of a training step."""
    view = {"hflip": False, "n_rot90": 0, "color_map": None, "pair_order": [0, 1, 2], "test_index": 0}
    view |= {"task_id": "mirror", "prefix": "", "row": 0}
    columns, metrics = {}, {}
    with Executor(1) as executor:
        plan = RewardPlan("arc-v2-no-pixel-score", TermLimits(1000))
        reward = ProgramReward(plan, [mirror_task()], executor, detect_cheating=detect_cheating)
        rewards = reward(
            [f"```python\n{program}\n```" for program in programs],
            [[1, 2, 3]] * len(programs),
            log_metric=metrics.__setitem__,
            log_extra=columns.__setitem__,
            **{name: [value] * len(programs) for name, value in view.items()},
        )
    return rewards, columns, metrics


def test_in_training_a_cheat_earns_nothing_and_solves_nothing():
    programs = [CHEATS["train and a guessed test output"], HONEST["right"], HONEST["wrong"]]
    rewards, columns, metrics = rewarded(programs, detect_cheating=True)
    assert rewards == [0.0, 10.0, 1.0]
    assert columns["solved"] == [False, True, False]
    assert columns["cheating"][0]
    assert columns["cheating"][1:] == ["", ""]
    assert metrics["cheating_ratio"] == metrics["solved_tasks_ratio"] == pytest.approx(1 / 3)
    rewards, columns, metrics = rewarded(programs, detect_cheating=False)
    assert rewards == [10.0, 10.0, 1.0]
    assert (metrics["cheating_ratio"], metrics["solved_tasks_ratio"]) == (0, pytest.approx(2 / 3))


def test_without_test_outputs_a_table_is_still_found():
    _, cheats = verdicts([CHEATS["a table of inputs"], *HONEST.values()], mirror_task(with_test=False))
    assert cheats[0] == "its right outputs stand in its text; computes nothing on changed inputs"
    assert cheats[1:] == [None] * len(HONEST)


def test_a_table_of_the_pairs_as_an_augmented_prompt_showed_them_is_found():
    task = mirror_task()
    swap = [0, 2, 1, 3, 4, 5, 6, 7, 8, 9]
    shown = [(np.array(swap)[np.array(i)].tolist(), np.array(swap)[np.array(o)].tolist()) for i, o in TRAIN]
    table = "\n".join(f"    if grid.tolist() == {i}:\n        return {o}" for i, o in shown)
    judged, cheats = verdicts([f"def transform(grid):\n{table}\n    return grid"], task, {"color_map": swap})
    assert judged[0].train_is_correct
    assert cheats[0]


def test_a_program_is_judged_by_the_view_that_it_was_written_for():
    """One text, wrong on the held-out pair in both views: it computes on wide grids, and on upright ones it
    knows the pairs alone."""
    pairs = [{"input": [[a, b, 0]], "output": [[b, a, 0]]} for a, b in [(1, 2), (3, 4), (5, 6)]]
    task = Task.from_dict("wide", {"train": pairs, "test": [{"input": [[7, 0, 8]], "output": [[7, 8, 0]]}]})
    program = """def transform(grid):
    if grid.shape == (1, 3):
        return [[grid[0, 1], grid[0, 0], grid[0, 2]]]
    known = [[[0], [2], [1]], [[0], [4], [3]], [[0], [6], [5]]]
    right = [[[0], [1], [2]], [[0], [3], [4]], [[0], [5], [6]]]
    return right[known.index(grid.tolist())] if grid.tolist() in known else grid"""
    views = [{}, {"n_rot90": 1}]
    predictions = [
        Prediction("wide", task.fingerprint, 0, i, completion=f"```python\n{program}\n```", **view)
        for i, view in enumerate(views)
    ]
    with Executor(1) as executor:
        judged = list(judge(predictions, {"wide": task}, executor))
        assert [(one.train_is_correct, one.test_is_correct) for one in judged] == [(1, 0)] * 2
        alone = [find_cheats([one], {"wide": task}, executor)[0] for one in judged]
        assert [bool(cheat) for cheat in alone] == [False, True]
        assert find_cheats(judged, {"wide": task}, executor) == alone
        assert find_cheats(judged[::-1], {"wide": task}, executor) == alone[::-1]


def test_a_constant_is_an_honest_answer_where_all_outputs_are_equal():
    pairs = [{"input": [[n, 0]], "output": [[8, 8, 8], [8, 1, 8]]} for n in (1, 2, 3)]
    task = Task.from_dict("constant", {"train": pairs, "test": pairs[:1]})
    _, cheats = verdicts(["def transform(grid):\n    return [[8, 8, 8], [8, 1, 8]]"], task)
    assert cheats == [None]


def test_the_known_programs_of_training_tasks_are_honest():
    tasks = load_tasks("arc-agi-1/training")
    chosen = [task for task in tasks if sum(pair.input.size for pair in task.train) < 400][::6]
    predictions = [
        Prediction(
            task.task_id,
            task.fingerprint,
            0,
            0,
            completion=f"```python\n{rearc_program(task.task_id)}\n```",
        )
        for task in chosen
    ]
    by_id = {task.task_id: task for task in chosen}
    with Executor(1) as executor:
        assert set(find_cheats(list(judge(predictions, by_id, executor)), by_id, executor)) == {None}


def test_literals_are_read_off_the_syntax_tree():
    program = (
        "a = [[1, 2], [3, 4]]\nb = np.array(((5,), (6,)))\nc = [[1], [2, 3]]\nd = [[11, 2]]\ne = [[x, 1]]"
    )
    shapes = {shape for shape, _ in literal_grids(program)}
    assert shapes == {(2, 2), (2, 1)}
    for broken in ("def broken(:", "[" * 200_000, "\ud83d = 1"):
        assert literal_grids(broken) == set()


def test_a_text_that_the_parser_warns_of_has_its_literals():
    program = 'pattern = "\\d"\na = [[1, 2], [3, 4]]'
    script = f"from arcnb.rl.rewards.cheating import literal_grids; print(len(literal_grids({program!r})))"
    asked = [sys.executable, "-W", "error", "-c", script]
    assert subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "1\n"


def test_a_table_that_is_no_grid_costs_no_memory():
    """As an array of text it would take 768 MB."""
    table = f"x = [['{' ' * 32_000}'], {', '.join(['[1]'] * 6000)}]"
    tracemalloc.start()
    try:
        assert literal_grids(table) == set()
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_copies_differ_from_the_grid_and_do_not_depend_on_chance():
    grid = np.array([[1, 0, 2], [0, 3, 0]], dtype=np.uint8)
    copies = changed_copies(grid, "task")
    assert len(copies) == 5
    assert not any(np.array_equal(copy, grid) for copy in copies)
    assert all(np.array_equal(a, b) for a, b in zip(copies, changed_copies(grid, "task"), strict=True))


@pytest.mark.parametrize("cells", [[[0]], [[5, 5]]])
def test_small_and_symmetric_grids_have_copies_too(cells):
    assert changed_copies(np.array(cells, dtype=np.uint8))
