"""The list of deliberate breaks fits the code: its texts occur once, its tests exist. Breaking is
`tests.breaks`."""

import ast

import pytest

from tests.breaks import BREAKS
from tests.paths import ROOT


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.promise)
def test_a_break_is_where_it_says(broken):
    assert (ROOT / broken.file).read_text().count(broken.old) == 1
    for test in broken.tests:
        path, *names = test.split("[")[0].split("::")
        tree = ast.parse((ROOT / path).read_text())
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert set(names) <= functions, f"{path} has no {names}"
