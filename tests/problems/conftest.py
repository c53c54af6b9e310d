"""What tests of problems share: an executor, and q played by a script."""

import sys
from pathlib import Path

import pytest

from arcnb.problems.languages import Languages
from arcnb.problems.problem import Problem
from arcnb.problems.q_language import QLanguage
from arcnb.problems.q_process import Interpreter
from arcnb.programs.executor import Executor
from arcnb.programs.limits import Limits

SCRIPTED_Q = Path(__file__).with_name("scripted_q.py")
ADD = {
    "problem_id": "add",
    "description": "Add two numbers.",
    "language": "python",
    "entry_point": "add",
    "tests": [
        {"input": [1, 2], "expected": 3},
        {"input": [5, 5], "expected": 10},
        {"input": [0, 0], "expected": 0},
        {"input": [-1, 1], "expected": 0},
    ],
    "solution": "def add(a, b):\n    return a + b\n",
}


@pytest.fixture(scope="session")
def executor():
    with Executor(2, Limits(seconds=2.0, seconds_per_input=2.0, memory_mb=256)) as executor:
        yield executor


@pytest.fixture(scope="session")
def languages(executor):
    with Languages(executor) as languages:
        yield languages


@pytest.fixture
def add():
    return Problem.from_row(ADD)


def scripted(**changes) -> Interpreter:
    """The interpreter that is played by a script."""
    readable = (str(SCRIPTED_Q), sys.prefix, sys.base_prefix)
    values = {"readable": readable, "described": "a scripted interpreter"} | changes
    return Interpreter((sys.executable, str(SCRIPTED_Q)), ("-q",), **values)


@pytest.fixture(scope="session")
def q():
    language = QLanguage(scripted(), Limits(seconds=3.0, memory_mb=256, output_mb=0.5), workers=2)
    yield language
    language.close()


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[2]
