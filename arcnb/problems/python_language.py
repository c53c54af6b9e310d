"""Python programs in the executor's sandbox, one job a test.

The sandbox knows functions from a grid of digits to a grid of digits. A few lines behind the program make one
of its result: input [[n]] (digits) asks for the n-th piece of the result as tagged JSON, three digits a byte.
The program's process gets the test's call and nothing of what is expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

from arcnb.problems.languages import Answer, Question
from arcnb.problems.problem import Problem, TestCase
from arcnb.problems.values import UNREADABLE, decode, near, same, same_text
from arcnb.programs.executor import Executor
from arcnb.programs.extraction import Extraction, extract_program
from arcnb.programs.limits import Execution, Job
from arcnb.programs.syntax import ProgramSyntaxError, parse_program

PIECE = 300  # bytes of a result in one grid of 30 by 30 digits
PIECES = 4  # asked for at first
MAX_BYTES = 64_000
SHOWN = 200  # characters of a value that are kept for people

WRITER = """
def _arcnb_plain(v, depth=0):
    if depth > 50:
        raise ValueError("the result is nested too deeply")
    if type(v).__module__ == "numpy" and hasattr(v, "tolist"):
        v = v.tolist()
    if v is None or type(v) in (bool, str, int, float):
        return v
    for kind in (str, bool, int, float):
        if isinstance(v, kind):
            return kind(v)
    for kind, tag in ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "s")):
        if isinstance(v, kind):
            return [tag, [_arcnb_plain(x, depth + 1) for x in v]]
    if isinstance(v, dict):
        return ["d", [[_arcnb_plain(k, depth + 1), _arcnb_plain(x, depth + 1)] for k, x in v.items()]]
    if isinstance(v, complex):
        return ["c", [v.real, v.imag]]
    return ["?", type(v).__name__]

_arcnb_kept = []

def transform(grid):
    if not _arcnb_kept:
        import json
        text = json.dumps(_arcnb_plain(_arcnb_result())).encode()
        _arcnb_kept.append(b"%8d" % len(text) + text)
    number = int("".join(str(int(d)) for d in grid[0]))
    piece = _arcnb_kept[0][number * 300 : number * 300 + 300]
    digits = "".join("%03d" % b for b in piece) or "999"
    digits += "9" * (-len(digits) % 30)
    return [[int(d) for d in digits[i : i + 30]] for i in range(0, len(digits), 30)]
"""
CALLING = "\n\n{setup}\ndef _arcnb_result():\n    return ({call})\n"
SCRIPT = """
def _arcnb_result():
    import io, sys
    sys.stdin, sys.stdout = io.StringIO({stdin!r}), io.StringIO()
    try:
        exec(compile({program!r}, "<program>", "exec"), {{"__name__": "__main__"}})
    except SystemExit:
        pass
    return sys.stdout.getvalue()
"""


class PythonLanguage:
    """See arcnb.problems.languages.Language; `executor` is that of ARC programs, limits included."""

    name = "python"
    fence = "python"

    def __init__(self, executor: Executor):
        if executor.entry != "transform":
            raise ValueError(f"problems need an executor with entry 'transform', not {executor.entry!r}")
        self.executor = executor
        self.described = f"Python in the sandbox, {executor.limits.seconds:g} s a test"

    def extract(self, text: str, problem: Problem, truncated: bool) -> Extraction:
        """The last block that defines the entry point; without an entry point the last that parses."""
        if problem.entry_point:
            found = extract_program(text, problem.entry_point, truncated)
            return _with_preamble(found, problem)
        return last_block(text, truncated, _parses)

    def run(self, questions: Iterable[Question]) -> Iterator[list[Answer]]:
        """One job a test: a loop that does not end on one input costs that test alone."""
        asked: list[Question] = []

        def jobs() -> Iterator[Job]:
            for question in questions:
                asked.append(question)
                for test in question.tests:
                    yield Job(_source(question.program, test), _pieces(PIECES))

        executions = self.executor.run(jobs(), ordered=True)
        for first in executions:
            question = asked.pop(0)
            rest = [next(executions) for _ in question.tests[1:]]
            yield [
                self._answer(question.program, test, execution)
                for test, execution in zip(question.tests, [first, *rest], strict=True)
            ]

    def close(self) -> None:
        """The executor is its owner's."""

    def _answer(self, program: str | None, test: TestCase, execution: Execution) -> Answer:
        found = result_text(execution.outputs) if execution.status == "ok" else None
        if found and len(found[1]) < found[0] <= MAX_BYTES:
            pieces = _pieces(-(-(found[0] + 8) // PIECE))
            execution = self.executor.submit(Job(_source(program, test), pieces)).result()
            found = result_text(execution.outputs) if execution.status == "ok" else None
        seconds = execution.seconds
        if execution.status != "ok":
            kind, message = execution.error_type, execution.error_message
            return Answer(execution.status, False, "", kind, message, execution.error_line, seconds)
        if found is None:
            return Answer("invalid_output", False, "", "OutputError", "its result cannot be read")
        length, text = found
        if len(text) < length:
            much = f"a result of {length} bytes, more than {MAX_BYTES}"
            return Answer("output_limit", False, "", "OutputLimit", much, None, seconds)
        value = decode(text.decode("utf-8", "replace"))
        if value is UNREADABLE:
            return Answer("invalid_output", False, "", "OutputError", "its result is no plain value")
        return Answer("ok", passes(test, value), repr(value)[:SHOWN], seconds=seconds)


def passes(test: TestCase, value: object) -> bool:
    """Whether a value is what the test expects."""
    if test.compare in ("true", "false"):
        return bool(value) is (test.compare == "true")
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


def last_block(text: str, truncated: bool, good) -> Extraction:
    """The last fenced block that is `good`; the whole text where there is no fence."""
    parts = text.split("```")
    if len(parts) == 1:
        return Extraction(text, "plain") if good(text) else Extraction(None, "no_code", "no code block")
    blocks = parts[1::2]
    closed = len(parts) % 2 == 1
    for i in range(len(blocks) - 1, -1, -1):
        head, _, body = blocks[i].partition("\n")
        code = body if not head.strip() or head.strip().isalnum() else blocks[i]
        last = i == len(blocks) - 1
        if code.strip() and good(code) and not (last and not closed and truncated):
            return Extraction(code.strip("\n"), "fenced" if closed or not last else "unclosed")
    return Extraction(None, "no_code", "no code block holds a program")


def _parses(code: str) -> bool:
    try:
        parse_program(code)
    except ProgramSyntaxError:
        return False
    return bool(code.strip())


def _with_preamble(found: Extraction, problem: Problem) -> Extraction:
    """The program behind what stood before it in the description (HumanEval's helpers and imports)."""
    if found.program is None or not problem.preamble:
        return found
    return Extraction(f"{problem.preamble}\n{found.program}", found.how, found.reason)


def _source(program: str | None, test: TestCase) -> str | None:
    if program is None or not program.strip():
        return None
    if not test.call:
        return SCRIPT.format(stdin=test.stdin, program=program) + WRITER
    return program + CALLING.format(setup=test.setup, call=test.call) + WRITER


@lru_cache(8)
def _pieces(n: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([[int(d) for d in str(i)]], np.uint8) for i in range(n))
