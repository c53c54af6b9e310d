"""The languages that problems are solved in."""

from __future__ import annotations

from collections.abc import Sequence

from arcnb.errors import ArcnbError
from arcnb.problems.languages.language import Language, TestResult, Trial
from arcnb.problems.languages.python import PythonLanguage
from arcnb.problems.languages.q.install import find_q
from arcnb.problems.languages.q.language import QLanguage
from arcnb.problems.sets.problem import LANGUAGES
from arcnb.programs.executor.executor import Executor


class Languages(dict[str, Language]):
    """{name: language} of a set of problems; made when first needed, and closed together.

    executor: runs Python; its limits are kept for q, too. ArcnbError for an unknown language, and
    where q problems are to be judged without a q.
    """

    def __init__(self, executor: Executor, **made: Language):
        super().__init__(made)
        self.executor = executor

    def __missing__(self, name: str) -> Language:
        if name == "python":
            self[name] = PythonLanguage(self.executor)
        elif name == "q":
            self[name] = QLanguage(find_q(), self.executor.limits, self.executor.workers)
        else:
            raise ArcnbError(f"language {name!r} is not known; there are {', '.join(LANGUAGES)}")
        return self[name]

    def run(self, trials: Sequence[Trial]) -> list[Sequence[TestResult]]:
        """The results of each trial, in order; trials of a language run together."""
        results: dict[int, Sequence[TestResult]] = {}
        for name in dict.fromkeys(trial.problem.language for trial in trials):
            members = [i for i, trial in enumerate(trials) if trial.problem.language == name]
            results |= zip(members, self[name].run([trials[i] for i in members]), strict=True)
        return [results[i] for i in range(len(trials))]

    def __enter__(self) -> Languages:
        return self

    def __exit__(self, *_: object) -> None:
        for language in self.values():
            language.close()
