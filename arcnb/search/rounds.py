"""What to sample: rounds of prompts for every task, cut into shards of equal work.

A round shows every task once, through a view drawn from (seed, task, round), and takes `per_prompt`
completions of that prompt. Views and sampling seeds are functions of (seed, task, round, index), so any round
of any task can be made alone, again, and on any machine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from arcnb.arc.tasks import Task
from arcnb.arc.views import AUGMENTATIONS, View


class PlanError(ValueError):
    """The stage cannot run as asked: a parameter, or a prediction set that was begun in another way."""


@dataclass(frozen=True)
class RoundPlan:
    """n_predictions a task, in rounds of per_prompt completions of one prompt.

    shard: (i, n), this process does the tasks of shard i of n. early_stop: end a task with the first round
    after which at least so many of its predictions solve all train pairs; 0 is off.
    """

    n_predictions: int
    per_prompt: int = 8
    seed: int = 0
    augment: str = "all"
    shuffle: bool = True
    shard: tuple[int, int] = (0, 1)
    early_stop: int = 0

    def __post_init__(self):
        for name in ("n_predictions", "per_prompt"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be positive, not {getattr(self, name)}")
        if self.augment not in AUGMENTATIONS:
            raise PlanError(f"augment must be one of {', '.join(AUGMENTATIONS)}, not {self.augment!r}")
        if self.early_stop < 0:
            raise PlanError(f"early_stop must not be negative, it is {self.early_stop}")
        index, count = self.shard
        if not 0 <= index < count:
            raise PlanError(f"shard must be (i, n) with 0 <= i < n, not {self.shard}")

    @property
    def n_rounds(self) -> int:
        return math.ceil(self.n_predictions / self.per_prompt)

    def completions_in(self, round_: int) -> int:
        """Completions a prompt of that round: the last round takes the remainder."""
        return min(self.per_prompt, self.n_predictions - round_ * self.per_prompt)

    def view(self, task: Task, round_: int) -> View:
        return View.sample(task, self.seed, round_, augment=self.augment, shuffle=self.shuffle)


def shard_tasks(tasks: Sequence[Task], weights: Sequence[float], shard: tuple[int, int]) -> list[Task]:
    """The tasks of shard i of n, in the order of `tasks`.

    weights: work of each task, in tokens. The heaviest task left goes to the shard with the least work so
    far, so the shards differ by less than the heaviest task. Every process comes to the same division from
    the same tasks, in whatever order it holds them.
    """
    index, count = shard
    if count == 1:
        return list(tasks)
    heaviest_first = sorted(zip(tasks, weights, strict=True), key=lambda pair: (-pair[1], pair[0].task_id))
    shards = [(0.0, number) for number in range(count)]
    mine = set()
    for task, weight in heaviest_first:
        work, number = shards[0]
        heapq.heapreplace(shards, (work + weight, number))
        if number == index:
            mine.add(task.task_id)
    return [task for task in tasks if task.task_id in mine]
