"""What a GRPO run is about, as one object: programs for ARC tasks, unless a plan names another subject.

Trainer, monitor, guard, resuming and reports know a task by `task_id`, `fingerprint` and `has_test_outputs`
alone. What else differs between subjects (files, prompts, rows, rewards, eval tasks) is asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction_set import check_set
from arcnb.arc.tasks.task_set import check_source, load_tasks, write_tasks
from arcnb.models.prompts.format import prompt_format
from arcnb.plans import refusals
from arcnb.programs.executor.limits import Limits
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.rewards.terms import RewardPlan, TermLimits
from arcnb.rl.rows.prompt_rows import PromptRows
from arcnb.rl.watching.held_out import HeldOut

if TYPE_CHECKING:
    from arcnb.programs.executor.executor import Executor
    from arcnb.rl.plan.grpo import GrpoPlan


class Subject:
    """ARC. Another subject is a subclass named in the plan's `subject_name` as "module:class".

    suffix: of its task files.
    """

    suffix = ".parquet"
    rows: type[PromptRows] = PromptRows

    def __init__(self, plan: GrpoPlan):
        self.plan = plan

    def read(self, path: Path) -> Sequence:
        """The tasks of a file that `write` wrote."""
        return load_tasks(path)

    def write(self, tasks: Sequence, path: Path) -> None:
        """Write tasks for another process to read."""
        write_tasks(tasks, path)

    @property
    def prompt_format(self):
        """How the plan's tasks become prompts: an object with `prompt(task)` and `prompt_ids`."""
        return prompt_format(self.plan.template, self.plan.encoding, self.plan.refine_template)

    @property
    def limits(self) -> Limits:
        """What one program may use."""
        return Limits.by_grid(self.plan.seconds_per_input, memory_mb=self.plan.program_memory_mb)

    def source_problems(self) -> Iterator[str]:
        """Names of tasks and of their predictions that lead nowhere, a sentence each."""
        plan = self.plan
        yield from refusals(check_source, plan.tasks)
        if plan.keeps_tasks:
            if plan.n_eval_tasks < 1:
                yield "eval_tasks 'kept' needs n_eval_tasks: so many tasks are kept from training"
        elif plan.eval_tasks:
            yield from refusals(check_source, plan.eval_tasks)
        elif plan.eval_steps:
            yield 'eval_tasks "" names no task set; eval_steps 0 evaluates nothing'
        if plan.learn_from:
            yield from refusals(check_set, plan.learn_from)

    def problems(self, tasks: Sequence) -> Iterator[str]:
        """Options that this subject does not have, and tasks that cannot be judged here, a sentence each."""
        yield from refusals(lambda: self.prompt_format)

    @property
    def rewards(self) -> RewardPlan:
        """How completions are rewarded; ValueError for a scheme or term that does not exist."""
        return RewardPlan(self.plan.reward, self.term_limits, self.plan.weights)

    @property
    def term_limits(self) -> TermLimits:
        return TermLimits(self.plan.trl["max_completion_length"], self.plan.rewards.overlong_buffer)

    def reward(self, executor: Executor) -> Callable[..., ProgramReward]:
        """What makes the reward function, with the arguments of ProgramReward."""
        return partial(ProgramReward, detect_cheating=self.plan.rewards.detect_cheating)

    def held_out(self, executor: Executor) -> Callable[..., HeldOut]:
        """What makes the evaluation while training, with the arguments of HeldOut."""
        return HeldOut
