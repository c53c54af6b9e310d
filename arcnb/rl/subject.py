"""What a GRPO run is about, as one object: programs for ARC tasks, unless a plan names another subject.

Trainer, monitor, guard, resuming and reports know a task by `task_id`, `fingerprint` and `has_test_outputs`
alone. What else differs between subjects (files, prompts, rows, rewards, held-out evaluation) is asked here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.tasksets import load_tasks, write_tasks
from arcnb.models.prompt_format import prompt_format
from arcnb.programs.limits import Limits
from arcnb.rl.held_out import HeldOut
from arcnb.rl.reward_function import ProgramReward
from arcnb.rl.reward_terms import RewardPlan, TermLimits
from arcnb.rl.rows import PromptRows

if TYPE_CHECKING:
    from arcnb.programs.executor import Executor
    from arcnb.rl.launch import GrpoPlan
    from arcnb.rl.options import GrpoOptions


class Subject:
    """ARC. Another subject is a subclass named in `GrpoPlan.subject` as "module:class".

    identity: what a checkpoint has to agree with, beside settings and options. suffix: of its task files.
    """

    suffix = ".parquet"
    rows: type[PromptRows] = PromptRows

    @property
    def identity(self) -> dict:
        return {}

    def read(self, path: Path) -> Sequence:
        """The tasks of a file that `write` wrote."""
        return load_tasks(path)

    def write(self, tasks: Sequence, path: Path) -> None:
        """Write tasks for another process to read."""
        write_tasks(tasks, path)

    def prompt_format(self, plan: GrpoPlan):
        """How the plan's tasks become prompts: an object with `prompt(task)` and `prompt_ids`."""
        return prompt_format(plan.template, plan.encoding, plan.refine_template)

    def limits(self, memory_mb: int) -> Limits:
        """What one program may use."""
        return Limits(memory_mb=memory_mb)

    def check(self, options: GrpoOptions, tasks: Sequence) -> None:
        """ValueError for options that this subject does not have, or tasks that cannot be judged here."""

    def reward_plan(self, options: GrpoOptions, settings: dict) -> RewardPlan:
        """How completions are rewarded; ValueError for a scheme or term that does not exist."""
        limits = TermLimits(settings["max_completion_length"], options.overlong_buffer)
        return RewardPlan(options.reward, limits, options.reward_weights)

    def reward(self, executor: Executor) -> Callable[..., ProgramReward]:
        """What makes the reward function, with the arguments of ProgramReward."""
        return ProgramReward

    def held_out(self, executor: Executor) -> Callable[..., HeldOut]:
        """What makes the evaluation while training, with the arguments of HeldOut."""
        return HeldOut


ARC = Subject()


def subject_of(name: str, options: dict) -> Subject:
    """The subject of a plan; no name is ARC."""
    if not name:
        return ARC
    module, kind = name.split(":")
    return getattr(importlib.import_module(module), kind)(**options)
