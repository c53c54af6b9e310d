"""Hints on the syntax tree."""

import json
import time

import pytest

from arcnb.programs.checks import RULES, Hint, static_checks
from tests.paths import GOLDEN

GOLDEN = json.loads((GOLDEN / "arc25_code.json").read_text())
CHECK_CASES = {case["id"]: case for case in GOLDEN["cases"] if case["fn"] == "check_code"}


def rules(program: str) -> set[str]:
    return {hint.rule for hint in static_checks(program)}


@pytest.mark.parametrize("case", CHECK_CASES.values(), ids=CHECK_CASES.keys())
def test_golden_vectors(case):
    """What the reference refuses for a reason gets a hint, what it refuses by mistake gets none."""
    found = rules(case["args"]["code"]) - {"entry"}
    quirk = case.get("quirk", "")
    if case["id"] in ("code-0093", "code-0110"):  # a bare except cannot swallow a deadline kept by the parent
        assert not found
    elif quirk.startswith("false positive"):
        assert found <= {"undefined"}  # code-0103, code-0105 use names that nothing defines
    elif quirk.startswith("false negative") or "raises" in case["expect"]:
        assert found
    else:
        assert not found


@pytest.mark.parametrize(
    ("line", "rule", "message"),
    [
        ("import pandas as pd", "import", "module pandas is not available to programs"),
        ("from .common import x", "import", "a program has no package to import from"),
        ("import os", "system", "imports os"),
        ("x = os.environ", "system", "uses os.environ"),
        ("from os import system", "system", "imports os.system"),
        ("import numpy.random as r; r.choice([1])", "randomness", "uses numpy.random.choice"),
        ("np.random.seed(0)", "randomness", "uses numpy.random.seed"),
        ("from common import *; random.choice([1])", "randomness", "uses random.choice"),
        ("x = random.choice([1])", "randomness", "uses random.choice"),
        ("from numpy import random", "randomness", "imports numpy.random"),
        ("x = sorted('ab', key=hash)", "randomness", "hash differs from run to run for some values"),
        ("x = hash('a')", "randomness", "hash() differs from run to run for some values"),
        ("f = open('a')", "io", "calls open"),
        ("np.save('a', 1)", "io", "calls .save"),
        ("exec('x = 1')", "dynamic_code", "calls exec"),
        ("x = undefined_name", "undefined", "name undefined_name is not defined"),
    ],
)
def test_each_rule_names_its_line(line, rule, message):
    program = f"# a comment\n{line}\ndef transform(grid):\n    return grid"
    assert Hint(rule, 2, message) in static_checks(program)


@pytest.mark.parametrize(
    "program",
    [
        "# random shift, open( os.system\ndef transform(g):\n    'eval( time. import os'\n    return g",
        "from common import *\nimport numpy as np\nfrom typing import *\n\ndef transform(grid: List[int]):\n"
        "    out = crop(grid)\n    return blit_sprite(np.full(grid.shape, Color.BLACK), out, 0, 0)",
        "import itertools, collections, math, re, copy, heapq, string, operator, functools, dataclasses\n"
        "from scipy.ndimage import label\ndef transform(g, k=1, *rest):\n    return re.compile('a') and g",
        "def transform(g):\n    return blit(g, crop(g), 0, 0, Color.BLACK)",
        "def random(g):\n    return g\ndef transform(g):\n    return random(g)",
        "import sys\nsys.setrecursionlimit(5000)\ndef transform(g): return [x for x in g]",
        "def transform(*grids):\n    try:\n        return grids\n    except Exception as e:\n        raise e",
        "def transform(g):\n    match g:\n        case [a, *b]: return a, b\n        case {**c}: return c",
        "def transform(g):\n    open = g\n    print(__name__)\n    return open(1)",
    ],
)
def test_harmless_programs_get_no_hint(program):
    assert static_checks(program) == []


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("def transform():", "transform takes no arguments, it is called with one grid"),
        ("def transform(a, b):", "transform takes 2 arguments, it is called with one grid"),
        ("def transform(a, *, b):", "transform needs the keyword argument b"),
    ],
)
def test_wrong_arity(signature, message):
    assert static_checks(f"x = 1\n{signature}\n    return 1") == [Hint("arity", 2, message)]


def test_a_missing_entry_concerns_the_whole_program():
    assert static_checks("def solve(g):\n    return g") == [
        Hint("entry", 0, "no function transform at module level")
    ]


@pytest.mark.parametrize(
    "program",
    ["x = ", "x = 1\0", "(" * 5_000, "-" * 50_000 + "1", "a" + "()" * 45_000, "x" * 10**6, "x='\ud800'"],
)
def test_a_program_that_does_not_parse_gets_one_hint(program):
    assert [hint.rule for hint in static_checks(program)] == ["syntax"]


def test_chains_of_attributes_cost_little():
    began = time.process_time()
    assert "syntax" not in {hint.rule for hint in static_checks(("x = a" + ".b" * 900 + "\n") * 54)}
    assert time.process_time() - began < 4


def test_every_rule_is_exercised_above():
    assert set(RULES) == {
        *("entry", "arity", "import", "system", "randomness", "io", "dynamic_code", "undefined")
    }
