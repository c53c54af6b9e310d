"""Hostile programs harm neither their neighbours nor the caller; each test's id states the promise.

pytest tests/programs/attacks/test_attacks.py -k "pipe"
"""

from dataclasses import replace

import numpy as np
import pytest

from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job, Limits
from tests.programs.attacks.escapes import ESCAPES
from tests.programs.attacks.hostile_programs import ATTACKS

ATTACKS = ATTACKS | ESCAPES
GRIDS = tuple(np.arange(n * n, dtype=np.uint8).reshape(n, n) % 10 for n in (1, 2, 3))
TIGHT = Limits(seconds=1.0, seconds_per_input=0.6, memory_mb=256)
ROOMY = Limits(seconds=20, seconds_per_input=20)
NEIGHBOUR = """
import numpy as np
from common import *
def transform(grid):
    print(grid)
    return np.rot90(grid) * int(np.sum(np.ones(1))) * (Color.RED == 2)
# {}
"""


@pytest.fixture(scope="module")
def executor():
    with Executor(workers=2, limits=TIGHT) as executor:
        yield executor


@pytest.fixture(scope="module")
def verdicts(executor):
    """Every attack with an honest neighbour before and after it, all in one stream."""
    jobs = []
    for number, (name, (source, expected)) in enumerate(ATTACKS.items()):
        # One that ends by itself must not look late on a busy machine.
        limits = TIGHT if "timeout" in expected else replace(TIGHT, seconds=20, seconds_per_input=20)
        jobs += [
            Job(NEIGHBOUR.format(number), GRIDS, ROOMY, key=("neighbour", name)),
            Job(source, GRIDS, limits, key=name),
        ]
    return {execution.key: execution for execution in executor.run(jobs)}


def test_there_are_at_least_sixty_attacks():
    assert len(ATTACKS) >= 60


@pytest.mark.parametrize("promise", ATTACKS)
def test_promise(verdicts, promise):
    execution = verdicts[promise]
    assert execution.status in ATTACKS[promise][1], execution
    assert execution.cpu_seconds < 4
    assert execution.seconds < 30  # by the clock; the rest is for a machine that is busy elsewhere
    for output in execution.outputs or ():
        assert output.tolist() != [[7]], "the attack got what it wanted"
    assert len(execution.error_message or "") <= 300
    neighbour = verdicts["neighbour", promise]
    assert neighbour.status == "ok", neighbour
    assert [output.tolist() for output in neighbour.outputs] == [np.rot90(grid).tolist() for grid in GRIDS]


def test_every_job_is_answered_once(verdicts):
    assert len(verdicts) == 2 * len(ATTACKS)


def test_after_all_attacks_an_honest_program_takes_no_longer_than_a_second(executor, verdicts):
    assert executor.submit(Job(NEIGHBOUR.format("after"), GRIDS)).result().status == "ok", (
        "TIGHT allows a second"
    )
