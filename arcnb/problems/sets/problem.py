"""A coding problem: a description, and tests that tell whether a program is right.

    Problem.from_row({"problem_id": "add", "description": "Add two numbers.", "language": "python",
                      "entry_point": "add", "tests": [{"input": [1, 2], "expected": 3}]})

What a program is asked (`TestCase.call`) and what it should answer (`TestCase.expected`) are kept apart: only
the first is ever given to the process that runs the program.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from keyword import iskeyword

from arcnb.errors import ArcnbError
from arcnb.problems.sets import assertions
from arcnb.problems.sets.test_case import TestCase
from arcnb.problems.sets.values import encode

LANGUAGES = ("python", "q")


class InseparableTests(ArcnbError):
    """A problem whose assertions cannot be judged outside of the program's process."""


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
        """SHA-256 (hex) of description, language and tests."""
        parts = [
            self.description,
            self.language,
            self.entry_point,
            *(repr(test.as_row()) for test in self.tests),
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @property
    def has_test_outputs(self) -> bool:
        """What a test expects is always known."""
        return True

    def behind_preamble(self, program: str) -> str:
        """A program as it is run."""
        return f"{self.preamble}\n{program}" if self.preamble else program

    @classmethod
    def from_row(cls, row: Mapping, where: str = "") -> Problem:
        """A problem from its row (docs/how-to/problems.md). Errors name `where`, the problem, the test."""
        name = f"problem {row.get('problem_id', '?')}"
        name = f"{where}: {name}" if where else name
        for field in ("problem_id", "description", "language"):
            if not isinstance(row.get(field), str) or not row[field].strip():
                raise ArcnbError(f"{name}: {field} is missing or no text")
        language, entry = row["language"].lower(), str(row.get("entry_point") or "")
        if language not in LANGUAGES:
            raise ArcnbError(
                f"{name}: language {row['language']!r} is not known; there are {', '.join(LANGUAGES)}"
            )
        pattern = r"[A-Za-z_]\w*" if language == "python" else r"\.?[A-Za-z][\w.]*"
        if entry and (not re.fullmatch(pattern, entry) or (language == "python" and iskeyword(entry))):
            raise ArcnbError(f"{name}: entry_point {entry!r} is no name of {language}")
        tests, left_out = _tests(row.get("tests"), language, entry, name)
        for field in ("solution", "preamble"):
            if not isinstance(row.get(field) or "", str):
                raise ArcnbError(f"{name}: {field} is no text")
        texts = {key: str(row.get(key) or "") for key in ("preamble", "source")}
        texts["difficulty"] = "" if row.get("difficulty") is None else str(row["difficulty"])
        solution = row.get("solution") or None
        return cls(
            row["problem_id"], row["description"], language, tests, entry, solution=solution,
            left_out=left_out, **texts,
        )  # fmt: skip


def _tests(tests, language: str, entry: str, name: str) -> tuple[tuple[TestCase, ...], int]:
    if isinstance(tests, str) and tests.lstrip().startswith("["):  # Parquet and CSV keep lists as text
        with suppress(ValueError):
            tests = json.loads(tests)
    if isinstance(tests, str) and tests.strip():
        read = assertions.python_tests if language == "python" else assertions.q_tests
        try:
            found, left_out = read(tests, entry)
        except ArcnbError as error:
            raise ArcnbError(f"{name}: its tests cannot be parsed: {error}") from None
        if not found:
            raise InseparableTests(
                f"{name}: none of its {left_out} assertions compares a call with a constant, so that "
                "the comparison can be made outside the program"
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
    if isinstance(test, str):
        try:
            test = json.loads(test)
        except ValueError as error:
            raise ArcnbError(f"{name}: it cannot be parsed: {error}") from None
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
    try:
        encode([asked, expected])
    except TypeError as error:
        raise ArcnbError(f"{name}: it holds no plain values: {error}") from None
    arguments = asked if isinstance(asked, list | tuple) else [asked]
    call = f"{entry}({', '.join(map(_literal, arguments))})"
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
