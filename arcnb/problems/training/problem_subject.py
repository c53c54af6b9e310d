"""Coding problems as the subject of a GRPO run: arcnb.rl trains on them as it does on ARC tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.views import View
from arcnb.plans import refusals
from arcnb.problems.grading import ProblemJudge
from arcnb.problems.languages.q.install import find_q
from arcnb.problems.languages.registry import Languages
from arcnb.problems.prompt_text import ProblemFormat, problem_format
from arcnb.problems.sets.files import load_problems, problem_file, write_problems
from arcnb.problems.sets.problem import Problem
from arcnb.problems.training.reward import TestcaseRewards, problem_metrics, problem_rollout
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Limits
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.rows.prompt_rows import PromptRows
from arcnb.rl.subject import Subject
from arcnb.rl.watching.held_out import HeldOut

# Options of the plan that say how an ARC task is shown, refined or rewarded.
OF_ARC = ("reward", "encoding", "augment", "refine_template", "tree", "turn_reward")
PLAIN_VIEW = View(Augmentation(), (0,), 0).columns()


class ProblemRows(PromptRows):
    """Rows over problems: there is one way to show a problem."""

    def _shown(self, task: Problem, index: int) -> tuple[Problem, dict]:
        return task, PLAIN_VIEW

    @staticmethod
    def longest_prompt(task: Problem, prompt_format: ProblemFormat, tokenizer, augment: str = "") -> int:
        return len(prompt_format.prompt_ids(tokenizer, task))


class ProblemSubject(Subject):
    """Coding problems, as a ProblemPlan asks for them."""

    suffix = ".jsonl"
    rows = ProblemRows

    def read(self, path: Path) -> Sequence[Problem]:
        return load_problems(path)

    def write(self, tasks: Sequence[Problem], path: Path) -> None:
        write_problems(tasks, path)

    @property
    def prompt_format(self) -> ProblemFormat:
        """The plan's template, or the one of the answer format."""
        return problem_format(
            self.plan.template or self.plan.tests.answer_format, self.plan.tests.shown_tests
        )

    @property
    def limits(self) -> Limits:
        seconds = self.plan.seconds_per_input
        return Limits(seconds=seconds, seconds_per_input=seconds, memory_mb=self.plan.program_memory_mb)

    def source_problems(self) -> Iterator[str]:
        sources = (
            [self.plan.eval_tasks] if self.plan.evaluate_only else [self.plan.tasks, self.plan.eval_tasks]
        )
        for source in sources:
            yield from refusals(problem_file, source)

    def problems(self, tasks: Sequence[Problem]) -> Iterator[str]:
        yield from super().problems(tasks)
        if any(problem.language == "q" for problem in tasks):
            yield from refusals(find_q)
        if self.plan.guide.programs or self.plan.self_teacher:
            yield "guide_programs and self_teacher are for ARC tasks"
        for name in OF_ARC:
            if (value := getattr(self.plan, name)) != self.plan.find(name).default:
                yield f"{name}={value!r} is for ARC tasks; how answers are rewarded say the options tests.*"
        if self.plan.turns > 1 or self.plan.refine_conversations:
            yield "problems are trained on in one turn; turns and refine_conversations are for ARC tasks"

    @property
    def rewards(self) -> TestcaseRewards:
        tests = self.plan.tests
        return TestcaseRewards(
            "tests",
            self.term_limits,
            self.plan.weights,
            base=tests.base_reward_weight,
            perfect=tests.perfect_reward_weight,
            binary=tests.binary_reward,
            format_weight=tests.format_reward_weight,
        )

    def judge(self, languages: Languages) -> ProblemJudge:
        """Who judges this run's answers; the languages are the caller's to close."""
        tests = self.plan.tests
        return ProblemJudge(languages, tests.max_tests_per_problem, tests.answer_format)

    def reward(self, executor: Executor) -> Callable[..., ProgramReward]:
        judge = self.judge(Languages(executor)).judge  # q's idle threads end when the reward is forgotten
        return partial(
            ProgramReward,
            judge=judge,
            rollout=problem_rollout,
            logged=problem_metrics,
            detect_cheating=False,
        )

    def held_out(self, executor: Executor) -> Callable[..., HeldOut]:
        judge = partial(self.judge(Languages(executor)).judge, all_tests=True)
        return partial(HeldOut, judge=judge, shown=lambda problem: (problem, {}))
