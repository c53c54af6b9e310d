"""What validation rejects, removes and keeps."""

from dataclasses import replace

import numpy as np
import pytest

from arcnb.arc.predictions.normal_form import normal_form
from arcnb.arc.tasks.task import Pair, Task
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job, Limits
from arcnb.synth.rules import rule_task
from arcnb.synth.sources import GENERATORS
from arcnb.synth.validation.reduction import removals
from arcnb.synth.validation.reports import TaskReport
from arcnb.synth.validation.validation import approximate_tokens, validated

HEAD = "from dsl import *\n\ndef transform(grid):\n"


@pytest.fixture(scope="module")
def executor():
    with Executor(workers=2) as executor:
        yield executor


def task(program: str, *inputs, outputs=None) -> Task:
    """A task with these inputs; the last pair is the test pair. outputs: what `judge` finds, unless given."""
    grids = inputs or ([[1, 0, 2]], [[0, 3, 3]], [[4, 0, 0]])
    pairs = [
        Pair(np.array(i), None if o is None else np.array(o))
        for i, o in zip(grids, outputs or [None] * len(grids), strict=True)
    ]
    return Task("t", tuple(pairs[:-1]), tuple(pairs[-1:]), source="test", program=program)


def with_outputs(executor, task: Task) -> Task:
    """The task with the outputs that its program gives, where it gives any and they are not known."""
    pairs = [*task.train, *task.test]
    execution = executor.submit(Job(task.program, tuple(task.inputs), Limits(seconds=0.5))).result()
    if execution.outputs is None or pairs[0].output is not None:
        return task
    pairs = [Pair(pair.input, output) for pair, output in zip(pairs, execution.outputs, strict=True)]
    return replace(task, train=tuple(pairs[:-1]), test=tuple(pairs[-1:]))


def judge(executor, *tasks) -> tuple[list[Task], TaskReport]:
    report = TaskReport()
    kept = list(validated([with_outputs(executor, one) for one in tasks], executor, report))
    assert report.seen == len(tasks)
    return kept, report


REJECTED = {
    "hint: syntax": "def transform(grid:\n    return grid",
    "identity": HEAD + "    return grid.copy()\n",
    "constant": HEAD + "    return create_grid(2, 2, 3)\n",
    "error": HEAD + "    return crop(grid, 0, 0, 9, 9)\n",
    "invalid_output": HEAD + "    return grid * 5\n",
    "timeout": HEAD + "    while True:\n        pass\n",
    "hint: randomness": "import random\n" + HEAD + "    return grid * 0 + random.randint(0, 9)\n",
    "hint: io": HEAD + "    open('x')\n    return grid[::-1]\n",
    "too long": HEAD + "    grid = flip_horizontal(grid)\n" * 200 + "    return grid\n",
    "nondeterministic": HEAD + "    words = list({'ant', 'bee', 'cat', 'dog', 'emu', 'fox', 'gnu'})\n"
    "    return grid * 0 + [words.index('ant'), words.index('gnu'), grid[0, 0]]\n",
}


@pytest.mark.parametrize("reason", REJECTED)
def test_rejected_for_its_reason(executor, reason):
    kept, report = judge(executor, task(REJECTED[reason]))
    assert kept == []
    assert report.rejected == {reason: 1}


def test_wrong_recorded_output_is_rejected(executor):
    wrong = task(
        HEAD + "    return flip_horizontal(grid)\n", [[1, 2]], [[3, 4]], outputs=[[[2, 1]], [[3, 4]]]
    )
    assert judge(executor, wrong)[1].rejected == {"wrong output": 1}


def test_same_program_is_a_duplicate_whatever_its_layout(executor):
    plain = HEAD + "    return flip_horizontal(grid)\n"
    spaced = HEAD + "    # turn\n    return   flip_horizontal( grid )\n"
    kept, report = judge(executor, task(plain), task(spaced, [[5, 0]], [[0, 7]]))
    assert len(kept) == 1
    assert report.rejected == {"duplicate program": 1}


def test_same_behaviour_is_a_duplicate_under_another_program(executor):
    kept, report = judge(
        executor,
        task(HEAD + "    return rotate_180(grid)\n"),
        task(HEAD + "    return flip_vertical(flip_horizontal(grid))\n", [[5, 0]], [[0, 7]]),
    )
    assert len(kept) == 1
    assert report.rejected == {"duplicate behaviour": 1}


def test_programs_that_probes_cannot_tell_apart_are_compared_on_their_inputs(executor):
    """Both leave every probe alone, because no probe has sides of exactly 1 x 5."""
    one, two = (
        task(
            HEAD
            + f"    if grid.shape == (1, 5):\n        grid = recolor(grid, 1, {color})\n    return grid\n",
            [[1, 0, 0, 0, 0]],
            [[0, 1, 0, 0, 0]],
        )
        for color in (5, 6)
    )
    assert len(judge(executor, one, two)[0]) == 2


def test_generated_tasks_pass_and_come_in_order(executor):
    tasks = [rule_task("composed", 3, index) for index in range(30)]
    kept, report = judge(executor, *tasks)
    ids = [t.task_id for t in kept]
    assert ids == [t.task_id for t in tasks if t.task_id in ids]
    assert set(report.rejected) <= {"duplicate program", "duplicate behaviour"}
    assert report.accepted_by["composed"] == len(kept) > 20


def test_outcome_does_not_depend_on_the_number_of_workers(executor):
    tasks = [rule_task("composed", 4, index) for index in range(20)]
    with Executor(workers=1) as single:
        alone = judge(single, *tasks)[0]
    assert [t.program for t in alone] == [t.program for t in judge(executor, *tasks)[0]]


def test_outcome_of_a_block_is_that_of_its_tasks_one_by_one(executor):
    tasks = [rule_task(name, 4, index) for index in range(12) for name in ("turn_grid", "composed")]
    outcomes = []
    for block_size in (1, 24):
        report = TaskReport()
        kept = list(validated(tasks, executor, report, block_size=block_size))
        outcomes.append(([t.program for t in kept], report.rejected))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1]["duplicate program"] > 0


def test_removals_keep_what_others_need():
    program = "import math\n\ndef transform(grid):\n    n = 2\n    m = n\n    n = 3\n    return f(grid, m)\n"
    texts = list(removals(program))
    assert "import math\n\ndef transform(grid):\n    n = 2\n    m = n\n    n = 3\n    return grid\n" in texts
    assert program.replace("import math\n", "", 1) in texts
    assert program.replace("    n = 3\n", "") in texts
    assert not any("m = n" not in text for text in texts)


def test_every_removal_is_shorter_so_that_reduction_ends():
    programs = [rule_task(name, 1, 0).program for name in GENERATORS]
    programs += ["def transform(grid):\n    if grid.any(): grid = f(grid)\n    return grid\n"]
    programs += ["def transform(grid):\n    if a:\n        b()\n    elif c:\n        d()\n    return grid\n"]
    for program in programs:
        assert all(len(text) < len(program) for text in removals(program))


def test_normal_form_ignores_comments_docstrings_and_layout():
    a = 'def transform(grid):\n    """Doc."""\n    return grid  # same\n'
    assert normal_form(a) == normal_form("def transform(grid): return grid")
    assert normal_form(a) != normal_form("def transform(grid): return grid.T")


@pytest.mark.parametrize("value", ["+".join(["1"] * 1500), "+".join(["1"] * 20000), "0x" + "f" * 6000])
def test_a_program_that_cannot_be_written_again_is_equal_to_itself_alone(value):
    """It may well solve its task, and ends no search and no evaluation."""
    program = f"def transform(grid):\n    x = {value}\n    return grid\n"
    assert normal_form(program) == program


def test_token_estimate_is_near_the_count_of_words_and_symbols():
    assert approximate_tokens("x1 = recolor(grid, 1, 23)\n") == 13
