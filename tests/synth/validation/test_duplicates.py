"""Duplicates found together are those found one by one."""

from types import SimpleNamespace

import numpy as np
import pytest

from arcnb.arc.tasks.task import Pair, Task
from arcnb.programs.executor.limits import Limits
from arcnb.synth.validation.duplicates import MAX_ALIKE, Duplicates


class Sandbox:
    """Stands for the executor: program `p<i>` solves task `t` when 3 divides i + t."""

    def __init__(self):
        self.calls = 0

    def run(self, jobs):
        self.calls += 1
        for job in jobs:
            solved = (number(job.program) + int(job.inputs[0][0, 0])) % 3 == 0
            yield SimpleNamespace(outputs=(np.array([[int(solved)]]),) * 2)


def number(program: str) -> int:
    return int(program.strip().removeprefix("p"))


def judged(n: int, seed: int) -> list[tuple[Task, str | None]]:
    """Tasks of 25 programs in two layouts; the program decides the behaviour, of which there are three."""
    random = np.random.default_rng(seed)
    tasks = []
    for index in range(n):
        i, layout = int(random.integers(25)), " " * int(random.integers(2))
        pair = Pair(np.array([[int(random.integers(9))]]), np.array([[1]]))
        task = Task(f"t{index}", (pair,), (pair,), source="test", program=f"p{i}{layout}\n")
        tasks.append((task, None if i == 0 else f"behaviour {i % 3}"))
    return tasks


@pytest.mark.parametrize("seed", range(10))
def test_found_together_or_one_by_one(seed):
    tasks = judged(80, seed)
    alone, together = Duplicates(), Duplicates()
    expected = [alone.reasons([one], Sandbox(), Limits())[0] for one in tasks]
    assert set(expected) == {None, "duplicate program", "duplicate behaviour"}
    cut = seed * 6
    first, second = (together.reasons(part, Sandbox(), Limits()) for part in (tasks[:cut], tasks[cut:]))
    assert first + second == expected


def test_comparisons_are_run_together():
    sandbox = Sandbox()
    Duplicates().reasons(judged(200, 0), sandbox, Limits())
    assert sandbox.calls <= MAX_ALIKE + 1


def test_an_accepted_program_is_known_by_its_text_and_by_its_layout():
    duplicates = Duplicates()
    ((task, behaviour),) = judged(1, 0)
    assert not duplicates.has(task.program)
    duplicates.reasons([(task, behaviour)], Sandbox(), Limits())
    assert duplicates.has_text(task.program)
    other = f"# the same\n{task.program}"
    assert not duplicates.has_text(other)
    assert duplicates.has(other)
    assert duplicates.has_text(other)
