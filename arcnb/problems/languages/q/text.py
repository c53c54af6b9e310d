"""What is said to q and what it says back: the driver script, its answers, error marks, comparing values.

The driver loads the program under protected evaluation and then evaluates one expression a test, writing a
line for each: a mark drawn anew for every process, the test's number, `ok` and the value as `.Q.s1` writes
it, or `err` and the error. Expected values are evaluated by another process and compared as such text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

PROGRAM, DRIVER = "program.q", "driver.q"
_LINE = re.compile(r"^(\S+) (-?\d+) (ok|err) ?(.*)$")
_MARK = re.compile(r"^'(?:\d{4}\.\d\d\.\d\dT[\d:.]+\s+)?(.+)$", re.MULTILINE)
# Values side by side, the last with its type; a number of them; what tells a float from an integer. 0n is the
# null and 0w the infinity of floats.
_TEXT = r'"(?:\\.|[^"\\])*"|`[^`!;,(){}\[\]\s"]*'  # strings and symbols
_PART = re.compile(rf"{_TEXT}|(?P<vector>[\w.:+-]+(?: [\w.:+-]+)*)")
_NUMBER = re.compile(r"0n|-?(?:0w|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)")
_SHOWS_FLOAT = re.compile(r"[.enw]")

SYNTAX = {"parse", "(", ")", "[", "]", "{", "}", '"', "assign", "branch", "char", "constants", "locals"}
MEMORY = {"wsfull", "stack"}
UNSAFE = ("access", "noupdate", "permission denied", "operation not permitted", "os", "conn", "hop", "rb")


def quoted(text: str) -> str:
    """A string literal of q."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def driver(mark: str, expressions: Sequence[str], with_program: bool = True) -> str:
    """The script that loads PROGRAM and evaluates the expressions.

    An empty line goes before each answer, since the program may have printed without a line break.
    """
    lines = [
        f'.arcnb.say:{{[n;s] -1 "";-1 {quoted(mark + " ")},(string n)," ",s;}};',
        # `(),x`: a literal of one letter is an atom, and `value` wants a text.
        '.arcnb.ask:{[n;e] .arcnb.say[n;@[{"ok ",.Q.s1 value (),x};e;{"err ",x}]]};',
    ]
    if with_program:
        lines.append(f'.arcnb.say[-1;@[{{system "l ",x;"ok"}};{quoted(PROGRAM)};{{"err ",x}}]];')
    lines += [f".arcnb.ask[{n};{quoted(text)}];" for n, text in enumerate(expressions)]
    return "\n".join([*lines, "exit 0", ""])


def answers(text: str, mark: str) -> dict[int, tuple[bool, str]]:
    """{test number, -1 for loading: (it is a value, value or error)}; the first line a number counts."""
    found: dict[int, tuple[bool, str]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and match[1] == mark:
            found.setdefault(int(match[2]), (match[3] == "ok", match[4]))
    return found


def error_mark(text: str) -> str | None:
    """The first error that q printed by itself: `'type` gives "type"."""
    match = _MARK.search(text)
    return match[1].strip() if match else None


def status_of(error: str, loading: bool = False) -> str:
    """The executor's word for an error of q."""
    word = error.strip().lstrip("'")
    first = word.split(":")[0].split()[0] if word.split() else ""
    if first in MEMORY:
        return "memory"
    if first in ("stop", "timeout"):
        return "timeout"
    if first.lower() in UNSAFE or any(mark in word.lower() for mark in UNSAFE[2:4]):
        return "unsafe"
    if first in SYNTAX or (loading and word in SYNTAX):
        return "syntax"
    return "error"


def same_value(expected: str, value: str) -> bool:
    """Whether two values are the same as q writes them: types have to agree, floats may differ a little."""
    if expected == value:
        return True
    (a, shape_a), (b, shape_b) = _floats(expected), _floats(value)
    return shape_a == shape_b and all(map(_near, a, b))


def _floats(text: str) -> tuple[list[str], str]:
    """The floats of a value, and the value without them. Texts and symbols stay as they are.

    A vector has one type, written behind it if no number shows it: `1 2.5` and `1 2f` are floats, and so is
    the 2.5 of `(1;2.5)`, but not the 1. Integers, times and all else stay where they are, to be the same.
    """
    found: list[str] = []
    if len(text) > 1 << 16 or '"' in re.sub(_TEXT, "", text):  # a symbol may hold a quote
        return found, text

    def taken(vector: re.Match) -> str:
        if vector["vector"] is None:
            return vector[0]
        suffix = vector[0][-1] if vector[0][-1] in "fe" else ""
        numbers = vector[0].removesuffix(suffix).split(" ")
        shown = suffix or any(_SHOWS_FLOAT.search(number) for number in numbers)
        if not shown or not all(map(_NUMBER.fullmatch, numbers)):
            return vector[0]
        found.extend(numbers)
        return f"#{len(numbers)}{suffix.replace('f', '')}"

    return found, _PART.sub(taken, text)


def _near(a: str, b: str) -> bool:
    if a == b or "0n" in (a, b):
        return a == b
    x, y = (float(number.replace("0w", "inf")) for number in (a, b))
    return x == y or (math.isfinite(x - y) and abs(x - y) <= 1e-6 * max(1.0, min(abs(x), abs(y))))
