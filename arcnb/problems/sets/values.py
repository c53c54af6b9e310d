"""Values that cross from a program's process to ours: as tagged JSON, compared here as plain data.

Whatever a program returns is turned into numbers, texts and containers before it leaves its process; a class
whose `==` is always true arrives as its name and equals nothing.
"""

from __future__ import annotations

import json
import math

from arcnb.programs.syntax import lines_of

MAX_DEPTH = 60
MAX_BYTES = 64_000  # of a program's result, as `encode` writes it
UNREADABLE = object()


def encode(value: object) -> str:
    """The text that `decode` reads, the same in every process: sets are put in order.

    TypeError for what is no plain value.
    """
    return json.dumps(_tagged(value))


def _tagged(value: object) -> object:
    if isinstance(value, dict):
        return ["d", [[_tagged(key), _tagged(item)] for key, item in value.items()]]
    if isinstance(value, complex):
        return ["c", [value.real, value.imag]]
    if isinstance(value, set | frozenset):
        return ["s", sorted(map(_tagged, value), key=json.dumps)]
    if isinstance(value, list | tuple):
        return ["l" if isinstance(value, list) else "t", list(map(_tagged, value))]
    return value


def decode(text: str) -> object:
    """The value that `encode` or `languages.python.WRITER` wrote; UNREADABLE for anything else.

    The text is hostile: a program may have written it.
    """
    try:
        return _plain(json.loads(text), 0)
    except (ValueError, RecursionError, TypeError, KeyError, OverflowError):
        return UNREADABLE


def _plain(value: object, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise ValueError("too deep")
    if not isinstance(value, list):
        if isinstance(value, dict):
            raise ValueError("no value")
        return value
    kind, items = value
    if kind == "?":
        return UNREADABLE
    if kind == "d":
        return {_plain(k, depth + 1): _plain(v, depth + 1) for k, v in items}
    if kind == "c":
        return complex(*items)
    return {"l": list, "t": tuple, "s": frozenset}[kind](_plain(item, depth + 1) for item in items)


def same(expected: object, value: object, tolerance: float = 1e-6, loose: bool = False) -> bool:
    """Whether a value is the expected one: numbers as Python compares them, floats within `tolerance`
    (relative, or absolute below 1 and where an integer is expected). loose: a tuple counts as a list, and a
    dictionary's number keys as text.
    """
    if value is UNREADABLE:
        return False
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected == value
    if isinstance(expected, int | float) and isinstance(value, int | float):
        if isinstance(expected, int):  # no share of it: a rounded count is not the count
            close = isinstance(value, float) and abs(expected) < 2**53 and near(value, expected, tolerance)
            return close or expected == value
        return near(value, expected, tolerance, tolerance) or (expected != expected and value != value)
    if loose and isinstance(expected, list | tuple) and isinstance(value, list | tuple):
        expected, value = list(expected), list(value)
    if isinstance(expected, set | frozenset) or isinstance(value, set | frozenset):
        return expected == value
    if isinstance(expected, dict) and isinstance(value, dict):
        if loose:
            expected, value = ({str(k): v for k, v in one.items()} for one in (expected, value))
        return expected.keys() == value.keys() and all(
            same(expected[key], value[key], tolerance, loose) for key in expected
        )
    if isinstance(expected, list | tuple) and type(expected) is type(value):
        return len(expected) == len(value) and all(
            same(a, b, tolerance, loose) for a, b in zip(expected, value, strict=True)
        )
    return type(expected) is type(value) and expected == value


def near(value: float, expected: float, tolerance: float, relative: float = 0.0) -> bool:
    """Whether they differ by no more than the tolerance, or this share of the larger one."""
    try:
        return math.isclose(value, expected, rel_tol=relative, abs_tol=tolerance)
    except (OverflowError, ValueError):  # an integer beyond floats, a tolerance below zero
        return False


def same_text(expected: str, value: object) -> bool:
    """Whether a program printed the expected lines; blanks at their ends do not count."""
    if not isinstance(value, str):
        return False
    lines = [[line.rstrip() for line in lines_of(text.rstrip())] for text in (expected, value)]
    return lines[0] == lines[1]
