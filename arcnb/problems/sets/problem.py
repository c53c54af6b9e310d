"""A coding problem: a description, and tests that tell whether a program is right.

    Problem.from_row({"problem_id": "add", "description": "Add two numbers.", "language": "python",
                      "entry_point": "add", "tests": [{"input": [1, 2], "expected": 3}]})

What a program is asked (`TestCase.call`) and what it should answer (`TestCase.expected`) are kept apart: only
the first is ever given to the process that runs the program.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from keyword import iskeyword

from arcnb.errors import ArcnbError
from arcnb.machine.reading import pairs_of, shown, text_of, unpacked
from arcnb.problems.sets import assertions
from arcnb.problems.sets.test_case import TestCase
from arcnb.problems.sets.values import MAX_BYTES, encode
from arcnb.programs.syntax import ProgramSyntaxError, lines_of, parse_program

LANGUAGES = {"python": "Python", "q": "q (kdb+)"}  # as files say it, and as prompts do


@dataclass(frozen=True, eq=False)
class Problem:
    """One problem. tests: at least one. left_out: assertions that could not be made into tests.

    preamble: code that stands before a solution in the description's file (imports, helpers). solution: of
    reference, if known. difficulty: a word or number as given.
    """

    problem_id: str
    description: str
    language: str
    tests: tuple[TestCase, ...]
    entry_point: str = ""
    difficulty: str = ""
    solution: str | None = None
    preamble: str = ""
    source: str = ""
    left_out: int = 0

    @property
    def task_id(self) -> str:
        """The name under which predictions, logs and tables know it."""
        return self.problem_id

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of description, language, tests and preamble."""
        parts = [
            self.description,
            self.language,
            self.entry_point,
            *(repr(test.as_row()) for test in self.tests),
            *filter(None, [self.preamble]),
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @property
    def has_test_outputs(self) -> bool:
        """What a test expects is always known."""
        return True

    def behind_preamble(self, program: str) -> str:
        """A program as it is run. Imports from __future__ go before the preamble: Python wants them first."""
        if not self.preamble:
            return program
        future, rest = _future_imports(program) if self.language == "python" else ("", program)
        return f"{future}{self.preamble}\n{rest}"

    @classmethod
    def from_row(cls, row: Mapping, where: str = "") -> Problem:
        """A problem from its row (docs/how-to/problems.md). Errors name `where`, the problem, the test."""
        name = f"problem {shown(row.get('problem_id', '?'))}"
        name = f"{where}: {name}" if where else name
        texts = {field: text_of(row, field, name) for field in ("problem_id", "description", "language")}
        for field, text in texts.items():
            if not text.strip():
                raise ArcnbError(f"{name}: {field} is empty")
        language, entry = row["language"].lower(), str(row.get("entry_point") or "")
        if language not in LANGUAGES:
            raise ArcnbError(
                f"{name}: language {row['language']!r} is not known; there are {', '.join(LANGUAGES)}"
            )
        pattern = r"[A-Za-z_]\w*" if language == "python" else r"\.?[A-Za-z][\w.]*"
        if entry and (not re.fullmatch(pattern, entry) or (language == "python" and iskeyword(entry))):
            raise ArcnbError(f"{name}: entry_point {entry!r} is no name of {language}")
        texts |= {field: text_of(row, field, name, optional=True) or "" for field in ("preamble", "source")}
        setup = text_of(row, "setup", name, optional=True) or ""
        tests, left_out = _tests(row.get("tests"), language, entry, setup, name)
        for number, test in enumerate(tests):
            if language == "python" and (size := len(encode(test.expected))) > MAX_BYTES:
                raise ArcnbError(
                    f"{name}, test {number}: it expects {size} bytes as JSON, and a result has at most "
                    f"{MAX_BYTES}"
                )
        level = "" if row.get("difficulty") is None else str(row["difficulty"])
        solution = text_of(row, "solution", name, optional=True) or None
        return cls(
            **texts | {"language": language}, tests=tests, entry_point=entry, difficulty=level,
            solution=solution, left_out=left_out,
        )  # fmt: skip


def _tests(tests, language: str, entry: str, setup: str, name: str) -> tuple[tuple[TestCase, ...], int]:
    if isinstance(tests, str) and tests.lstrip().startswith("["):  # Parquet and CSV keep lists as text
        with suppress(ArcnbError):
            tests = unpacked(tests, name)
    if isinstance(tests, Mapping):
        tests = pairs_of(tests, ("input", "expected"), f"{name}: tests")
    if isinstance(tests, str) and tests.strip():
        try:
            if language == "python":
                found, left_out = assertions.python_tests(tests, entry, setup)
            else:
                found, left_out = assertions.q_tests(tests), 0
        except ArcnbError as error:
            raise ArcnbError(f"{name}: its tests cannot be parsed: {error}") from None
        if not found:
            raise ArcnbError(
                f"{name}: none of its assertions compares a call with a constant, so that the comparison can "
                "be made outside the program"
                if left_out
                else f"{name}: its tests hold no assertion"
            )
        return tuple(found), left_out
    if not tests or isinstance(tests, str):
        raise ArcnbError(f"{name}: it has no tests")
    if not isinstance(tests, list | tuple):
        raise ArcnbError(f"{name}: its tests are neither a list nor assertion code")
    return tuple(_test(test, language, entry, f"{name}, test {i}") for i, test in enumerate(tests)), 0


def _test(test, language: str, entry: str, name: str) -> TestCase:
    test = unpacked(test, name)
    if not isinstance(test, Mapping) or "input" not in test or "expected" not in test:
        raise ArcnbError(f'{name}: it needs "input" and "expected"')
    asked, expected = test["input"], test["expected"]
    if language == "q":
        if not isinstance(asked, str) or not isinstance(expected, str):
            raise ArcnbError(f"{name}: input and expected of a q test are texts of q")
        return TestCase(f"{entry}[{asked}]" if entry else asked, expected)
    if not entry:
        if not isinstance(asked, str) or not isinstance(expected, str):
            raise ArcnbError(f"{name}: without entry_point, input is standard input and expected is output")
        return TestCase("", expected, "text", stdin=asked)
    arguments = asked if isinstance(asked, list | tuple) else [asked]
    try:
        encode([asked, expected])
        call = f"{entry}({', '.join(map(_literal, arguments))})"
    except (TypeError, ValueError, RecursionError) as error:
        raise ArcnbError(f"{name}: it holds no plain values: {error}") from None
    return TestCase(call, expected, loose=True)


def _literal(value: object) -> str:
    """Python source of a JSON value; JSON's readers also take Infinity and NaN."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float('{value}')"
    return repr(value)


def _future_imports(program: str) -> tuple[str, str]:
    """(lines of imports from __future__, the program with empty lines in their places)."""
    try:
        body = parse_program(program).body
    except ProgramSyntaxError:
        return "", program
    lines, future = lines_of(program), []
    for part in body:
        if isinstance(part, ast.ImportFrom) and part.module == "__future__":
            place = slice(part.lineno - 1, part.end_lineno)
            future += lines[place]
            lines[place] = [""] * len(lines[place])
    return "".join(f"{line}\n" for line in future), "\n".join(lines)
