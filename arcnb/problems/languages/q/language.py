"""Programs in q, one process a program, through whatever interpreter arcnb.problems.languages.q.install
finds."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from arcnb.errors import ArcnbError
from arcnb.problems.languages.language import TestResult, Trial, last_block
from arcnb.problems.languages.q.process import Interpreter, Transcript, run_script
from arcnb.problems.languages.q.text import (
    DRIVER,
    PROGRAM,
    answers,
    driver,
    error_mark,
    same_value,
    status_of,
)
from arcnb.problems.sets.problem import Problem
from arcnb.programs.executor.limits import Limits
from arcnb.programs.extraction import Extraction
from arcnb.programs.sandbox.landlock import abi_version
from arcnb.programs.sandbox.seccomp import refusing_program


class QLanguage:
    """See arcnb.problems.languages.language.Language. limits.seconds: processor time of a program with
    all its tests, three times as long by the clock."""

    def __init__(self, interpreter: Interpreter, limits: Limits = Limits(), workers: int = 1):
        self.interpreter, self.limits = interpreter, limits
        self.described = f"{interpreter.described or interpreter.command[0]}, {limits.seconds:g} s a program"
        if not interpreter.confine or not abi_version():
            self.described += ", NOT confined (no Landlock): programs can read files and use the network"
        elif refusing_program(interpreter.may_connect) is None:
            self.described += ", no filter of system calls for this processor: programs can start processes"
        self._pool = ThreadPoolExecutor(workers, "q")
        self._expected: dict[str, list[str]] = {}

    def extract(self, text: str, problem: Problem, truncated: bool) -> Extraction:
        """The last block that assigns the entry point; text without any fence if it assigns it."""
        name = re.escape(problem.entry_point) or r"[A-Za-z.][\w.]*"
        assigns = re.compile(rf"^{name}\s*:", re.MULTILINE)
        found = last_block(text, truncated, lambda code: bool(assigns.search(code)))
        if found.program is None and problem.entry_point:
            reason = f"no code block assigns {problem.entry_point}"
            found = last_block(text, truncated, lambda code: "```" in text and bool(code.strip()))
            return Extraction(found.program, found.how, reason)
        return found

    def run(self, trials: Iterable[Trial]) -> Iterator[list[TestResult]]:
        """Programs run beside each other, `workers` at a time."""
        trials = list(trials)
        for problem in {id(trial.problem): trial.problem for trial in trials}.values():
            self.expected(problem)
        yield from self._pool.map(self._results, trials)

    def close(self) -> None:
        self._pool.shutdown()

    def expected(self, problem: Problem) -> list[str]:
        """What the tests expect, as q writes it; evaluated once, by a process without any program.

        ArcnbError names the test whose expected value is no q.
        """
        if problem.fingerprint not in self._expected:
            mark = secrets.token_hex(8)
            script = driver(mark, [str(test.expected) for test in problem.tests], with_program=False)
            transcript = run_script(self.interpreter, {DRIVER: script}, DRIVER, self.limits)
            found = answers(transcript.text, mark)
            for number, test in enumerate(problem.tests):
                good, value = found.get(number, (False, transcript.status))
                if not good:
                    raise ArcnbError(
                        f"{problem.source or 'problems'}: problem {problem.problem_id}: its tests cannot be "
                        f"parsed: test {number} expects {test.expected!r}, which is no value of q ('{value})"
                    )
            self._expected[problem.fingerprint] = [found[n][1] for n in range(len(problem.tests))]
        return self._expected[problem.fingerprint]

    def _results(self, trial: Trial) -> list[TestResult]:
        if trial.program is None or not trial.program.strip():
            return [TestResult("no_code")] * len(trial.tests)
        mark = secrets.token_hex(8)
        files = {PROGRAM: trial.program, DRIVER: driver(mark, [test.call for test in trial.tests])}
        transcript = run_script(self.interpreter, files, DRIVER, self.limits)
        found = answers(transcript.text, mark)
        seconds = transcript.seconds / len(trial.tests)
        failed = partial(self._failed, transcript=transcript, seconds=seconds)
        if not found.get(-1, (False, ""))[0]:
            return [failed(found.get(-1), loading=True)] * len(trial.tests)
        of_problem = self.expected(trial.problem)
        results = []
        for number, expected in zip(range(len(trial.tests)), of_problem, strict=False):
            good, value = found.get(number, (False, None))
            if good:
                passed = same_value(expected, value)
                results.append(TestResult("ok", passed, value, seconds=seconds))
            else:
                results.append(failed(found.get(number)))
        return results

    @staticmethod
    def _failed(
        found: tuple[bool, str] | None, transcript: Transcript, seconds: float, loading: bool = False
    ) -> TestResult:
        """A test without a value: by the error that the driver caught, or by how the process ended."""
        if found is not None:
            status = status_of(found[1], loading)
            return TestResult(status, False, "", f"'{found[1].split(':')[0]}", found[1], seconds=seconds)
        told = {
            "timeout": "the program took too long",
            "output_limit": "the program wrote too much",
            "unsafe": "the program opened a port",
        }
        if transcript.status != "ok":
            message = told[transcript.status]
            return TestResult(transcript.status, False, "", "QProcess", message, seconds=seconds)
        mark = error_mark(transcript.text)
        if mark is not None:
            return TestResult(status_of(mark, loading), False, "", f"'{mark}", mark, seconds=seconds)
        message = f"the process ended (code {transcript.code}) before it answered"
        return TestResult("crashed", False, "", "Exit", message, seconds=seconds)
