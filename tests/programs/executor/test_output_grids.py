"""What counts as a grid: the reference study's vectors, and exact integers of every kind."""

import json

import numpy as np
import pytest

from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job
from arcnb.programs.sandbox.child import OutputError, output_bytes
from tests.paths import GOLDEN

GOLDEN = json.loads((GOLDEN / "arc25_code.json").read_text())
CASES = [case for case in GOLDEN["cases"] if case["fn"] == "validate_outputs"]
SIDES = 30  # ironbar/arc25 allows 35; no ARC grid has more than 30


def decoded(value):
    """A vector's value with its arrays, tuples and numbers that JSON does not have."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    match value:
        case {"$t": "array", "dtype": kind, "shape": shape, "data": data}:
            return np.array(decoded(data)).astype(kind).reshape(shape)
        case {"$t": "tuple", "items": items}:
            return tuple(decoded(items))
        case {"$t": "nan" | "inf" as number}:
            return float(number)
    return value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_outputs_agree_with_the_golden_vectors(case):
    outputs = decoded(case["args"]["outputs"])
    if "raises" in case["expect"] or "quirk" in case:  # quirks: fractions that are cut, digits as texts
        with pytest.raises(OutputError):
            [output_bytes(output) for output in outputs]
        return
    for output, expected in zip(outputs, case["expect"]["value"], strict=True):
        if max(len(expected), len(expected[0])) > SIDES:
            with pytest.raises(OutputError):
                output_bytes(output)
        else:
            cells = bytes(cell for row in expected for cell in row)
            assert output_bytes(output) == bytes((len(expected), len(expected[0]))) + cells


@pytest.mark.parametrize(
    "returned",
    [
        "grid > 3",
        "[[cell > 3 for cell in row] for row in grid]",
        "[[bool(cell > 3) for cell in row] for row in grid]",
        "(grid > 3).astype(object)",
        "np.ma.masked_array(grid > 3)",
        "[row > 3 for row in grid]",
        "[[1.0 * (cell > 3) for cell in row] for row in grid]",
    ],
)
def test_booleans_are_zero_and_one(returned):
    program = f"import numpy as np\ndef transform(grid):\n    return {returned}"
    with Executor(1) as executor:
        (verdict,) = executor.run([Job(program, [np.array([[1, 5], [3, 9]])])])
    assert verdict.status == "ok", verdict
    assert verdict.outputs[0].tolist() == [[0, 1], [0, 1]]
