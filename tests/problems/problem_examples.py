"""A problem, and q played by a script."""

import sys
from pathlib import Path

from arcnb.problems.languages.q.process import Interpreter

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


def scripted(**changes) -> Interpreter:
    """The interpreter that is played by a script."""
    readable = (str(SCRIPTED_Q), sys.prefix, sys.base_prefix)
    values = {"readable": readable, "described": "a scripted interpreter"} | changes
    return Interpreter((sys.executable, str(SCRIPTED_Q)), ("-q",), **values)
