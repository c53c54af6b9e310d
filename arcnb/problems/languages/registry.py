"""The languages that problems are solved in, behind one interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from arcnb.errors import ArcnbError
from arcnb.problems.sets.problem import Problem, TestCase
from arcnb.programs.executor.executor import Executor
from arcnb.programs.extraction import Extraction


@dataclass(frozen=True)
class Question:
    """A program and the tests that it is to be asked; expected values do not go near it."""

    program: str | None
    problem: Problem
    tests: tuple[TestCase, ...]


@dataclass(frozen=True)
class Answer:
    """What a program did on one test.

    status: of the executor's (arcnb.programs.executor.limits.STATUSES). passed: it is "ok" and the value as
    expected. shown: the value as text. seconds: wall time; line: of the program, where it failed.
    """

    status: str
    passed: bool = False
    shown: str = ""
    error_type: str | None = None
    error_message: str | None = None
    line: int | None = None
    seconds: float = 0.0


class Language(Protocol):
    """One language: how its programs are found in an answer, and run."""

    name: str
    fence: str  # the tag of its code blocks
    described: str  # what runs the programs, for reports

    def extract(self, text: str, problem: Problem, truncated: bool) -> Extraction:
        """The program of an answer, wherever it stands."""

    def run(self, questions: Iterable[Question]) -> Iterator[Sequence[Answer]]:
        """One answer a test, question by question and in order; programs run beside each other."""

    def close(self) -> None:
        """End whatever was started."""


class Languages:
    """The languages of a set of problems; made when first needed, and closed together.

    executor: runs Python; its limits are kept for q, too. ArcnbError for an unknown language, and
    where q problems are to be judged without a q.
    """

    def __init__(self, executor: Executor, **made: Language):
        self.executor = executor
        self._made: dict[str, Language] = dict(made)

    def __getitem__(self, name: str) -> Language:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Language:
        if name == "python":
            from arcnb.problems.languages.python import PythonLanguage

            return PythonLanguage(self.executor)
        if name == "q":
            from arcnb.problems.languages.q import QLanguage
            from arcnb.problems.languages.q_install import find_q

            return QLanguage(find_q(), self.executor.limits, self.executor.workers)
        raise ArcnbError(f"language {name!r} is not known; there are python, q")

    def close(self) -> None:
        for language in self._made.values():
            language.close()

    def __enter__(self) -> Languages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
