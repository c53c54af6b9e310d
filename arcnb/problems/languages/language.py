"""What a language of problems is: how its programs are found in an answer, and run on tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

from arcnb.problems.sets.problem import Problem
from arcnb.problems.sets.test_case import TestCase
from arcnb.programs.extraction import Extraction

_ANY_TAG = re.compile(".*")
_FENCE = re.compile(r"^(?P<indent>[ \t]*)```(?P<tag>[\w.+#-]*+)(?P<rest>[^`\n]*+)$", re.MULTILINE)


@dataclass(frozen=True)
class Trial:
    """A program and the tests that it is to be asked; expected values do not go near it."""

    program: str | None
    problem: Problem
    tests: tuple[TestCase, ...]


@dataclass(frozen=True)
class TestResult:
    """What a program did on one test.

    status: of the executor's (arcnb.programs.executor.limits.STATUSES). passed: it is "ok" and the value as
    expected. shown: the value as text. seconds: wall time; line: of the program, where it failed.
    """

    __test__ = False  # not one of pytest's

    status: str
    passed: bool = False
    shown: str = ""
    error_type: str | None = None
    error_message: str | None = None
    line: int | None = None
    seconds: float = 0.0


class Language(Protocol):
    """One language."""

    described: str  # what runs the programs, for reports

    def extract(self, text: str, problem: Problem, truncated: bool) -> Extraction:
        """The program of an answer, wherever it stands."""

    def run(self, trials: Iterable[Trial]) -> Iterator[Sequence[TestResult]]:
        """One result a test, trial by trial and in order; programs run beside each other."""

    def close(self) -> None:
        """End whatever was started."""


def last_block(
    text: str, truncated: bool, good: Callable[[str], bool], preferred: re.Pattern = _ANY_TAG
) -> Extraction:
    """The last fenced block that is `good`, one with a `preferred` tag before all others.

    It is the whole text where there is no fence. Fences stand at the beginnings of lines: elsewhere they are
    the program's own.
    """
    blocks = list(_blocks(text))
    if not blocks:
        return Extraction(text, "plain") if good(text) else Extraction(None, "no_code", "no code block")
    blocks.sort(key=lambda block: bool(preferred.fullmatch(block[0])))  # keeps the order within each kind
    for _, code, closed in reversed(blocks):
        if code.strip() and (closed or not truncated) and good(code):
            return Extraction(code.strip("\n"), "fenced" if closed else "unclosed")
    return Extraction(None, "no_code", "no code block holds a program")


def _blocks(text: str) -> Iterator[tuple[str, str, bool]]:
    """(tag, code, whether it is closed) of each fenced block; what else stands behind a fence is code."""
    fences = list(_FENCE.finditer(text))
    for opening, closing in zip_longest(fences[::2], fences[1::2]):
        end = closing.start() if closing else len(text)
        tag = opening["tag"].lower() if not opening["rest"].strip() else ""
        begin = opening.end() if not opening["rest"].strip() else opening.start("tag")
        yield tag, _without(opening["indent"], text[begin:end]), closing is not None


def _without(indent: str, code: str) -> str:
    """The lines without the indentation of their fence, as in an item of a list."""
    return "\n".join(line.removeprefix(indent) for line in code.split("\n")) if indent else code
