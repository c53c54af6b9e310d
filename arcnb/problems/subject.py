"""Coding problems as the subject of a GRPO run: arcnb.rl trains on them as it does on ARC tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from arcnb.problems.answers import check_format
from arcnb.problems.files import load_problems, write_problems
from arcnb.problems.judging import ProblemJudge
from arcnb.problems.languages import Languages
from arcnb.problems.problem import Problem
from arcnb.problems.prompts import ProblemFormat, problem_format
from arcnb.problems.q_install import find_q
from arcnb.problems.rewards import ProblemHeldOut, ProblemReward, TestcasePlan
from arcnb.programs.executor import Executor
from arcnb.programs.limits import Limits
from arcnb.rl.launch import GrpoPlan
from arcnb.rl.options import GrpoOptions
from arcnb.rl.reward_terms import TermLimits
from arcnb.rl.rows import PromptRows
from arcnb.rl.settings import SettingsError
from arcnb.rl.subject import Subject

NAME = "arcnb.problems.subject:ProblemSubject"
PLAIN_FRAME = {"hflip": False, "n_rot90": 0, "color_map": list(range(10)), "pair_order": [0], "test_index": 0}


class ProblemRows(PromptRows):
    """Rows over problems: there is one way to show a problem."""

    def _shown(self, task: Problem, index: int) -> tuple[Problem, dict]:
        return task, PLAIN_FRAME

    @staticmethod
    def longest_prompt(task: Problem, prompt_format: ProblemFormat, tokenizer) -> int:
        return len(prompt_format.prompt_ids(tokenizer, task))


class ProblemSubject(Subject):
    """answer_format: "plain" or "reasoning". max_tests: of a problem that the reward sees.

    base, perfect, binary, format_weight: see rewards.TestcasePlan. shown_tests: examples in the prompt.
    seconds: wall time of a program on one test.
    """

    suffix = ".jsonl"
    rows = ProblemRows

    def __init__(
        self,
        answer_format: str = "plain",
        max_tests: int = 3,
        base: float = 1.0,
        perfect: float = 1.0,
        binary: bool = False,
        format_weight: float = 0.0,
        shown_tests: int = 0,
        seconds: float = 5.0,
    ):
        check_format(answer_format)
        self.seconds = seconds
        self.answer_format, self.max_tests, self.shown_tests = answer_format, max_tests, shown_tests
        self.weights = {"base": base, "perfect": perfect, "binary": binary, "format_weight": format_weight}

    @property
    def identity(self) -> dict:
        """What changes the training, for its checkpoints."""
        own = {
            "answer_format": self.answer_format,
            "max_tests": self.max_tests,
            "shown_tests": self.shown_tests,
        }
        return {"subject": "problems"} | own | self.weights

    def read(self, path: Path) -> Sequence[Problem]:
        return load_problems(path)

    def write(self, tasks: Sequence[Problem], path: Path) -> None:
        write_problems(tasks, path)

    def prompt_format(self, plan: GrpoPlan) -> ProblemFormat:
        """The plan's template, or the one of the answer format where it is still ARC's."""
        own = plan.template in ("", "arc_code")
        return problem_format(self.answer_format if own else plan.template, self.shown_tests)

    def limits(self, memory_mb: int) -> Limits:
        return Limits(seconds=self.seconds, seconds_per_input=self.seconds, memory_mb=memory_mb)

    def check(self, options: GrpoOptions, tasks: Sequence[Problem]) -> None:
        if any(problem.language == "q" for problem in tasks):
            find_q()
        if options.turns > 1 or options.conversations:
            raise SettingsError(
                "problems are trained on in one turn; turns and conversations are for ARC tasks"
            )

    def reward_plan(self, options: GrpoOptions, settings: dict) -> TestcasePlan:
        limits = TermLimits(settings["max_completion_length"], options.overlong_buffer)
        return TestcasePlan("tests", limits, options.reward_weights, **self.weights)

    def judge(self, executor: Executor) -> ProblemJudge:
        """Who judges this run's answers; its languages share the executor."""
        return ProblemJudge(Languages(executor), self.max_tests, self.answer_format)

    def reward(self, executor: Executor) -> Callable[..., ProblemReward]:
        return partial(ProblemReward, judge=self.judge(executor))

    def held_out(self, executor: Executor) -> Callable[..., ProblemHeldOut]:
        return partial(ProblemHeldOut, judge=self.judge(executor))
