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

from arcnb.arc.tasks.task import Task
from arcnb.arc.views import View, augment_option
from arcnb.plans import option
from arcnb.values import COUNT, SEED


@dataclass(frozen=True)
class RoundPlan:
    """n_predictions a task, in rounds of per_prompt completions of one prompt."""

    n_predictions: int = option(4, "completions a task, in all", within=COUNT, free=True)
    per_prompt: int = option(
        4, "completions of one prompt; each round of prompts shows new views of tasks", within=COUNT
    )
    seed: int = option(
        0,
        "prompts and samples derive from (seed, task, round, index), and which n_tasks are taken from seed",
        within=SEED,
    )
    augment: str = augment_option()
    shuffle: bool = option(True, "views show the train pairs in an order of their own")
    stop_after: int = option(
        0,
        "end a task with the round after which so many predictions solve its train pairs; 0 is off; pass@k "
        "of such tasks is left out",
    )
    shard: int = option(0, "part of the tasks that this process does, from 0 to n_shards - 1", free=True)
    n_shards: int = option(
        1, "parts that the tasks are divided into; all write into one output", within=COUNT, free=True
    )

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
