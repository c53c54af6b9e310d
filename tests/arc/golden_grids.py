"""Golden vectors of the reference system, read from tests/golden (each file documents its own format)."""

import gzip
import json
import math

from tests.paths import GOLDEN


def cases(name: str, function: str, quirk: bool = False) -> list[dict]:
    """The cases of one function; those that record a quirk of the reference, or all others."""
    data = (GOLDEN / name).read_bytes()
    content = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    found = [case for case in content["cases"] if case["fn"] == function and ("quirk" in case) == quirk]
    assert found, f"no such cases in {name}: {function}"
    return found


def same_number(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=0, abs_tol=1e-9) or (math.isnan(a) and math.isnan(b))
