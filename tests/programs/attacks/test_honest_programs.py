"""Honest programs pass through the executor unharmed: same answers as plain Python, in both lanes."""

import sys

import numpy as np
import pytest

from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job, Limits
from arcnb.programs.libraries import barc
from arcnb.programs.sandbox import child
from tests.programs.attacks.honest_programs import PROGRAMS

GRIDS = tuple(
    np.random.default_rng(seed).integers(0, 10, size=shape).astype(np.uint8)
    for seed, shape in enumerate([(1, 1), (3, 3), (5, 8), (12, 4), (30, 30)])
)
ROOMY = Limits(seconds=20, seconds_per_input=10)


@pytest.fixture(scope="module")
def executor():
    with Executor(workers=2, limits=ROOMY) as executor:
        yield executor


def plain_python(program: str) -> list[np.ndarray]:
    """What the program answers without any executor, each grid in the order given."""
    library = {name: value for name, value in vars(barc).items() if not name.startswith("_")}
    sys.modules["common"] = barc
    shared, limit = list(barc.Color.NOT_BLACK), sys.getrecursionlimit()
    namespace = child.new_namespace(library | {"np": np, "numpy": np, "List": list, "Tuple": tuple})
    try:
        exec(compile(program, "<program>", "exec"), namespace)
        outputs = [namespace["transform"](grid.astype(np.int64)) for grid in GRIDS]
    finally:
        sys.setrecursionlimit(limit)
        barc.Color.NOT_BLACK[:] = shared
        del sys.modules["common"], sys.modules["program"]
    return [np.array([list(row) for row in np.asarray(output)]).astype(int) for output in outputs]


def check(execution, program: str) -> None:
    assert execution.status == "ok", execution
    expected = plain_python(program)
    assert [grid.tolist() for grid in execution.outputs] == [grid.tolist() for grid in expected]


def test_there_are_at_least_fifty_honest_programs():
    assert len(PROGRAMS) >= 50


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_honest_program_gets_its_answer(executor, name):
    check(executor.submit(Job(PROGRAMS[name], GRIDS)).result(), PROGRAMS[name])


def test_honest_programs_do_not_disturb_each_other_in_any_order(executor):
    names = sorted(PROGRAMS) + sorted(PROGRAMS, reverse=True)
    jobs = [Job(PROGRAMS[name] + f"\n# {n}", GRIDS, key=name) for n, name in enumerate(names)]
    for job, execution in zip(jobs, executor.run(jobs), strict=True):
        assert execution.key == job.key
        check(execution, PROGRAMS[job.key])


def test_honest_programs_answer_the_same_twice(executor):
    stateful = {"common_shared_lists"}  # counts down a shared list: its calls differ by design
    limits = Limits(seconds=60, seconds_per_input=20, check_determinism=True)
    names = sorted(set(PROGRAMS) - stateful)
    for name, execution in zip(
        names, executor.run(Job(PROGRAMS[name], GRIDS, limits) for name in names), strict=True
    ):
        assert execution.status == "ok", (name, execution)
        check(execution, PROGRAMS[name])
