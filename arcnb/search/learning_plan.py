"""How a search is cut into rounds and groups, and what it must keep to when it is resumed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from arcnb.arc.tasks import Task
from arcnb.plans import PlanError
from arcnb.search.budgets import Budget
from arcnb.search.rounds import RoundPlan


@dataclass(frozen=True)
class SearchPlan:
    """The rounds of search and learn.

    first_round, per_round: completions a task in the first and in each further round, per_prompt of each
    prompt; the budget cuts the last round. group_size: tasks that learn together, in consecutive groups; -1
    takes all, 1 gives each task an adapter of its own. stop_after: a task ends with the round after which so
    many distinct programs solve all its train pairs; 0 never. learn: False is search alone, on the same
    prompts. keep_adapter: a round's training goes on from the last round's adapter; False starts from a fresh
    one. epochs: passes over the hindsight tasks of a round, each in other views. max_row_tokens: longer rows
    are not learned from. adapter_gb: disk for adapters; older ones go first, the newest of each group stays.
    shard: (i, n), this process does the tasks of shard i of n.
    """

    budget: Budget = field(default_factory=Budget)
    first_round: int = 32
    per_round: int = 32
    per_prompt: int = 8
    group_size: int = 1
    stop_after: int = 1
    learn: bool = True
    keep_adapter: bool = True
    epochs: int = 1
    max_row_tokens: int = 4096
    adapter_gb: float = 2.0
    seed: int = 0
    augment: str = "all"
    shuffle: bool = True
    shard: tuple[int, int] = (0, 1)

    def __post_init__(self):
        if self.epochs < 1:
            raise PlanError(f"epochs must be positive, not {self.epochs}")
        for name in ("first_round", "per_round"):
            value = getattr(self, name)
            if value < 1 or value % self.per_prompt:
                raise PlanError(f"{name} is {value}, it must be a multiple of per_prompt, {self.per_prompt}")
        if self.group_size != -1 and self.group_size < 1:
            raise PlanError(f"group_size is {self.group_size}, it must be positive, or -1 for all tasks")
        if self.stop_after < 0:
            raise PlanError(f"stop_after must not be negative, it is {self.stop_after}")
        self.prompts(0, self.shard)  # checks the rest

    def prompts(self, round_: int, shard: tuple[int, int] = (0, 1)) -> RoundPlan:
        """All prompts up to the end of a round, of every task."""
        n = self.first_round + round_ * self.per_round
        if self.budget.completions:
            n = min(n, self.budget.completions)
        return RoundPlan(
            n, self.per_prompt, self.seed, self.augment, self.shuffle, shard=shard[0], n_shards=shard[1]
        )

    def round_of(self, prompt_round: int) -> int:
        """The round of learning that a prompt belongs to, by the `round` that its predictions carry."""
        done = (prompt_round + 1) * self.per_prompt - self.first_round
        return max(0, math.ceil(done / self.per_round))

    def groups(self, tasks: Sequence[Task]) -> list[list[Task]]:
        """Consecutive slices of the tasks, which learn together."""
        size = len(tasks) if self.group_size == -1 else self.group_size
        return [list(tasks[i : i + size]) for i in range(0, len(tasks), max(1, size))]

    def settings(self) -> dict:
        """What a search that was begun has to be resumed with; budgets and disk may grow."""
        names = ["first_round", "per_round", "group_size", "stop_after", "learn", "keep_adapter"]
        return {name: getattr(self, name) for name in [*names, "epochs", "max_row_tokens"]}
