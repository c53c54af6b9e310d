"""A small plan for a small notebook: what the tests give, show and refuse options of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arcnb.plans import Library, Plan, Settings, branch, library, option

# The parameters cell of its notebook, and the cell that makes the plan.
CELL = """\
seed = 0  # everything derives from it
guard_action = 'warn'  # what an alarm does
more: dict = {}  # any other option by name
"""
MAKE = "from tests.lab.scripted_plan import SmallPlan\nplan = SmallPlan.of(run.parameters)\nplan"
RECORD = "run.record({name.replace('.', '-'): value for name, value in plan.values().items()})"


@dataclass(frozen=True)
class Guard:
    action: str = option("warn", "what an alarm does")
    window: int = option(20, "what a mean is taken over. Longer is calmer.", "logged steps")


@dataclass(frozen=True)
class Sampling:
    temperature: float = option(1.0, "of the sampler")
    stop: list[str] = option(list, "texts that end an answer")


@dataclass(frozen=True)
class Work:
    output: str = option("", "folder of a prediction set that shards share")
    shard: int = option(0, "which of n_shards this is")
    budget: int = option(1, "how much is made", free=True)
    n_shards: int = option(1, "runs that share the tasks")


@dataclass(frozen=True)
class SmallPlan(Plan):
    seed: int = option(0, "everything derives from it")
    label: str = option("x", "any text | of one line")
    accept_other_settings: bool = option(False, "go on from those", free=True)
    guard: Guard = branch(Guard)
    sampling: Sampling = branch(Sampling)
    work: Work = branch(Work)
    trl: Settings = library(
        Library(("trl/trainer/grpo_config.py:GRPOConfig",), {"beta": 0.01}, frozenset({"output_dir"}))
    )


def flat(**changed: Any) -> dict[str, Any]:
    """What a manifest holds of a run with the cell's parameters, but for those changed."""
    return {"seed": 0, "guard_action": "warn"} | changed
