"""Which exceptions programs died of, as a run logs them."""

import builtins

import pytest

from arcnb.programs.executor.executor import Executor
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.rewards.metrics import ERRORS, error_classes
from arcnb.rl.rewards.terms import RewardPlan, TermLimits

PROGRAMS = {
    "def transform(grid):\n    return grid + shift": "NameError",
    "def other(grid):\n    return grid": "NameError",
    "def transform(grid):\n    return [[grid[9, 9]]]": "IndexError",
    "def transform(grid):\n    raise type('a/b\\n', (Exception,), {})": "other",
    "def transform(grid):\n    raise KeyboardInterrupt": "other",
    "def transform(grid:\n    return grid": None,  # it does not compile, which is another verdict
    "def transform(grid):\n    raise MemoryError": None,
    "def transform(grid):\n    return grid": None,
}


def test_the_classes_are_exceptions_of_python_and_all_of_them_are_there_each_time():
    assert all(issubclass(getattr(builtins, name), Exception) for name in ERRORS)
    nothing = error_classes([("ok", None)])
    assert set(nothing) == {f"error/{name}" for name in (*ERRORS, "other")}
    assert set(nothing.values()) == {0.0}


def test_shares_are_of_all_completions_and_add_up_to_the_verdict():
    verdicts = [("error", "KeyError"), ("error", "KeyError"), ("error", "Own"), ("error", None)]
    shares = error_classes([*verdicts, ("syntax", "SyntaxError"), ("invalid_output", "ValueError")])
    assert {name: share for name, share in shares.items() if share} == {
        "error/KeyError": 2 / 6,
        "error/other": 2 / 6,
    }


def test_a_step_logs_what_its_programs_raised(tasks):
    view = {"hflip": False, "n_rot90": 0, "color_map": None, "pair_order": [0, 1], "test_index": 0}
    view |= {"task_id": tasks[0].task_id, "prefix": "", "row": 0}
    n, logged = len(PROGRAMS), {}
    with Executor(1) as executor:
        ProgramReward(RewardPlan("arc-v2-no-pixel-score", TermLimits(1000)), tasks, executor)(
            [f"```python\n{program}\n```" for program in PROGRAMS],
            [[1, 2, 3]] * n,
            log_metric=logged.__setitem__,
            **{name: [value] * n for name, value in view.items()},
        )
    expected = dict.fromkeys([*ERRORS, "other"], 0.0)
    for name in filter(None, PROGRAMS.values()):
        expected[name] += 1 / n
    found = {name: share for name, share in logged.items() if name.startswith("error/")}
    assert found == pytest.approx({f"error/{name}": share for name, share in expected.items()})
    assert sum(found.values()) == pytest.approx(logged["status/error"])
