"""The toy ladders."""

import numpy as np
import pytest

from arcnb.errors import ArcnbError
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job
from arcnb.synth.ladder import LADDERS, ladder_task, ladder_tasks
from arcnb.synth.sources import SourceSettings, build_tasks


@pytest.mark.parametrize("ladder", LADDERS)
def test_every_rung_is_solved_by_its_program_which_grows_by_equal_steps(ladder):
    tasks = ladder_tasks(ladder)
    with Executor(1) as executor:
        answers = list(executor.run(Job(task.program, tuple(task.inputs)) for task in tasks))
    for rung, (task, answer) in enumerate(zip(tasks, answers, strict=True), start=1):
        expected = [pair.output for pair in (*task.train, *task.test)]
        assert all(np.array_equal(a, b) for a, b in zip(answer.outputs, expected, strict=True))
        steps = task.program.count("    grid = draw_")
        assert steps == task.meta["steps"] == {"lines": rung, "squares": rung**2}[ladder]
        assert len({output.tobytes() for output in expected}) > 1, "a constant is no task"


def test_a_rung_leaves_nothing_out_lines_have_colors_of_their_own():
    task = ladder_task("lines", 9, seed=4)
    for pair in task.train:
        full = [column for column in pair.output.T if len(set(column.tolist())) == 1 and column[0]]
        assert len({int(column[0]) for column in full}) == 9


def test_tasks_are_a_function_of_ladder_rung_and_seed():
    assert ladder_task("squares", 2, 1).fingerprint == ladder_task("squares", 2, 1).fingerprint
    assert ladder_task("squares", 2, 1).fingerprint != ladder_task("squares", 2, 2).fingerprint
    assert ladder_task("lines", 2, 1).fingerprint != ladder_task("lines", 3, 1).fingerprint


def test_ladders_are_a_task_source():
    tasks = list(build_tasks("ladder/lines", 3, SourceSettings(seed=5)))
    assert [task.fingerprint for task in tasks] == [task.fingerprint for task in ladder_tasks("lines", 3, 5)]


def test_rungs_and_ladders_that_do_not_exist_are_named():
    with pytest.raises(ArcnbError, match="rungs 1 to 9, not 10"):
        ladder_task("lines", 10)
    with pytest.raises(ArcnbError, match="'stairs'"):
        ladder_task("stairs", 1)
