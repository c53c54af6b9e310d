"""Python programs in the executor's sandbox, one job a test.

The sandbox knows functions from a grid of digits to a grid of digits. A few lines, which run the program's
text in a module of its own, make one of its result: input [[n]] (digits) asks for the n-th piece of
the result as tagged JSON, three digits a byte.
The program's process gets the test's call and nothing of what is expected.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

from arcnb.problems.languages import script
from arcnb.problems.languages.language import TestResult, Trial, last_block
from arcnb.problems.sets.problem import Problem
from arcnb.problems.sets.test_case import TestCase
from arcnb.problems.sets.values import MAX_BYTES, UNREADABLE, decode, near, same, same_text
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Execution, Job
from arcnb.programs.extraction import Extraction, extract_program
from arcnb.programs.syntax import ProgramSyntaxError, lines_of, parse_program

PIECE = 300  # bytes of a result in one grid of 30 by 30 digits
PIECES = 4  # asked for at first

_PYTHON = re.compile(r"(?:python|py)[\d.]*")
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
_LINE_SAID = re.compile(r"\(<program>, line (\d+)\)$")

# `result` is the function to be asked, of the lines before.
WRITER = """
import json

def plain(v, depth=0):
    if depth > 50:
        raise ValueError("the result is nested too deeply")
    if type(v).__module__ == "numpy" and hasattr(v, "tolist"):
        v = v.tolist()
    if v is None or type(v) in (bool, str, int, float):
        return v
    for kind, own in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if isinstance(v, kind):
            return own(v)  # a member of an Enum of texts calls itself otherwise
    for kind, tag in ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "s")):
        if isinstance(v, kind):
            return [tag, [plain(x, depth + 1) for x in v]]
    if isinstance(v, dict):
        return ["d", [[plain(k, depth + 1), plain(x, depth + 1)] for k, x in v.items()]]
    if isinstance(v, complex):
        return ["c", [v.real, v.imag]]
    return ["?", type(v).__name__]

kept = []

def transform(grid):
    if not kept:
        text = json.dumps(plain(result())).encode()
        kept.append(b"%8d" % len(text) + text)
    number = int("".join(str(int(d)) for d in grid[0]))
    piece = kept[0][number * 300 : number * 300 + 300]
    digits = "".join("%03d" % b for b in piece) or "999"
    digits += "9" * (-len(digits) % 30)
    return [[int(d) for d in digits[i : i + 30]] for i in range(0, len(digits), 30)]
"""
# A module of the program's own, as Python would make one: it has none of the names that ARC programs find.
MODULE = """
import sys, types
module = sys.modules["program"] = types.ModuleType("program")
exec(compile({code!r}, "<program>", "exec"), module.__dict__)
result = module._arcnb_result
"""
CALLING = "\n\n{setup}\ndef _arcnb_result():\n    return ({call})\n"
SCRIPT_TEXT = inspect.getsource(script)
SCRIPT = """
space = {{}}
exec({script!r}, space)
def result():
    return space["run_script"]({program!r}, {typed!r})
"""


class PythonLanguage:
    """See arcnb.problems.languages.language.Language; `executor` runs ARC programs, too, with its limits."""

    def __init__(self, executor: Executor):
        self.executor = executor
        self.described = f"Python in the sandbox, {executor.limits.seconds:g} s a test"

    def extract(self, text: str, problem: Problem, truncated: bool) -> Extraction:
        """The last block that defines the entry point.

        Without an entry point it is the last that does anything, of those tagged as Python before all others.
        """
        if not problem.entry_point:
            return last_block(text, truncated, _is_program, _PYTHON)
        return extract_program(text, problem.entry_point, truncated)

    def run(self, trials: Iterable[Trial]) -> Iterator[list[TestResult]]:
        """One job a test: a loop that does not end on one input costs that test alone."""
        trials = list(trials)
        jobs = (
            Job(_source(trial.program, test), _pieces(PIECES)) for trial in trials for test in trial.tests
        )
        executions = self.executor.run(jobs, ordered=True)
        for trial in trials:
            yield [self._result(trial.program, test, next(executions)) for test in trial.tests]

    def close(self) -> None:
        """The executor is its owner's."""

    def _result(self, program: str | None, test: TestCase, execution: Execution) -> TestResult:
        found = result_text(execution.outputs) if execution.status == "ok" else None
        if found and len(found[1]) < found[0] <= MAX_BYTES:
            pieces = _pieces(-(-(found[0] + 8) // PIECE))
            execution = self.executor.submit(Job(_source(program, test), pieces)).result()
            found = result_text(execution.outputs) if execution.status == "ok" else None
        seconds = execution.seconds
        if execution.status != "ok":
            status, kind, message = execution.status, execution.error_type, execution.error_message
            line, last = execution.error_line, _lines(program or "")
            if line and line > last:  # of what is ours
                line = None
                if status == "error" and kind in _SYNTAX_ERRORS:
                    status = "syntax"  # the program itself, which is compiled by a line of ours
                    said = _LINE_SAID.search(message or "")
                    line = int(said[1]) if said and int(said[1]) <= last else None
            return TestResult(status, False, "", kind, message, line, seconds)
        if found is None:
            return TestResult("invalid_output", False, "", "OutputError", "its result cannot be read")
        length, text = found
        if len(text) < length:
            much = f"a result of {length} bytes, more than {MAX_BYTES}"
            return TestResult("output_limit", False, "", "OutputLimit", much, None, seconds)
        value = decode(text.decode("utf-8", "replace"))
        if value is UNREADABLE:
            return TestResult("invalid_output", False, "", "OutputError", "its result is no plain value")
        return TestResult("ok", passes(test, value), repr(value), seconds=seconds)


def passes(test: TestCase, value: object) -> bool:
    """Whether a value is what the test expects."""
    if test.compare in ("true", "false"):
        return bool(value) is (test.compare == "true")
    if test.compare == "is" and type(value) is not type(test.expected):
        return False
    if test.compare == "text":
        return same_text(test.expected, value)
    if test.compare == "close":
        return isinstance(value, int | float) and near(value, test.expected, test.tolerance, test.relative)
    return same(test.expected, value, loose=test.loose)


def result_text(outputs: tuple[np.ndarray, ...]) -> tuple[int, bytes] | None:
    """(length of the whole result, as many of its bytes as the pieces hold); None where they are not what
    WRITER writes: a program may have put anything there."""
    rows = ["".join(map(str, grid.ravel().tolist())) for grid in outputs]
    codes = [int(row[i : i + 3]) for row in rows for i in range(0, len(row) - 2, 3)]
    data = bytes(code for code in codes if code < 256)
    head = data[:8].strip()
    if not head.isdigit():
        return None
    length = int(head)
    return length, data[8 : 8 + length]


def _is_program(code: str) -> bool:
    """Whether it parses and does anything: the `7` or `[1, 2]` of a sample output parses as well."""
    try:
        tree = parse_program(code)
    except ProgramSyntaxError:
        return False
    return any(map(_does_something, tree.body))


def _does_something(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.AnnAssign):
        return statement.value is not None  # `Result: 5` is an annotation
    return not isinstance(statement, ast.Expr) or any(isinstance(n, ast.Call) for n in ast.walk(statement))


def _source(program: str | None, test: TestCase) -> str | None:
    if program is None or not program.strip():
        return None
    if test.call:
        call = test.call
        if test.compare in ("true", "false"):  # asked there: what is no plain value is true or false as well
            call = f"True if ({call}) else False"
        asking = MODULE.format(code=program + CALLING.format(setup=test.setup, call=call))
    else:
        typed = test.stdin.encode("utf-8", "surrogatepass")
        asking = SCRIPT.format(script=SCRIPT_TEXT, program=program, typed=typed)
    return "\n" * _lines(program) + asking + WRITER


def _lines(program: str) -> int:
    """How many lines Python counts in it. What is ours stands behind them: a line tells whose it is."""
    return len(lines_of(program))


@lru_cache(8)
def _pieces(n: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([[int(d) for d in str(i)]], np.uint8) for i in range(n))
