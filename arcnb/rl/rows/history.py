"""What the groups of a run so far say about its tasks.

What a row may know of them is fixed, so that a resumed run decides as the unbroken one would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from arcnb.arc.seeds import rng


class Group(NamedTuple):
    """One row's completions. signal: whether they taught anything. right: of n completions, those that solve.
    lines: of a known solution that they began with (`arcnb.rl.rows.guides`)."""

    task_id: str
    signal: bool
    right: int = 0
    n: int = 0
    lines: int = 0

    @property
    def share(self) -> float:
        """Of the completions that solve the task."""
        return self.right / self.n if self.n else 0.0


@dataclass
class SignalHistory:
    """Which tasks still teach: a group whose completions all earn the same moves nothing.

    A task is silent when the last `visits` groups of it were all without spread and all right or all wrong.
    A row that would show a silent task shows another with probability 1 - weight, drawn from (seed, row):
    weight 0 drops silent tasks, weights below 1 show them less, visits 0 switches the choice off. What a row
    may know is fixed, so that a resumed run chooses as the unbroken run would have: the groups of rows at
    least `lag` before it, since loaders fetch a batch ahead.
    """

    visits: int = 0
    weight: float = 0.0
    lag: int = 2
    groups: dict[int, Group] = field(default_factory=dict)

    def record(
        self, row: int, task_id: str, rewards: Sequence[float], solved: Sequence[bool], lines: int = 0
    ) -> None:
        """Note the group of a row. Spread among half-right programs is signal, whatever is solved."""
        flat = max(rewards) - min(rewards) < 1e-9
        signal = not (flat and (all(solved) or not any(solved)))
        self.groups[row] = Group(task_id, signal, sum(solved), len(solved), lines)

    def before(self, row: int) -> dict[str, list[Group]]:
        """The groups, in order, of every task that row `row` may know of."""
        seen: dict[str, list[Group]] = {}
        for number in sorted(self.groups):
            if number < row - self.lag + 1:
                seen.setdefault(self.groups[number].task_id, []).append(self.groups[number])
        return seen

    def silent(self, before: int) -> set[str]:
        """Tasks that taught nothing in their last `visits` groups among the rows below `before`."""
        if not self.visits:
            return set()
        return {
            task_id
            for task_id, groups in self.before(before + self.lag - 1).items()
            if len(groups) >= self.visits and not any(group.signal for group in groups[-self.visits :])
        }

    def choose(self, row: int, task_id: str, pool: Sequence[str], seed: int) -> str:
        """The task that row shows instead of task_id, or task_id itself."""
        silent = self.silent(row - self.lag + 1)
        if task_id not in silent:
            return task_id
        speaking = [name for name in pool if name not in silent]
        random = rng(seed, "replacement", row)
        if not speaking or random.random() < self.weight:
            return task_id
        return speaking[int(random.integers(len(speaking)))]

    def as_dict(self) -> dict:
        """Plain values for a checkpoint."""
        return {str(row): list(group) for row, group in self.groups.items()}

    def restore(self, groups: dict) -> None:
        """The inverse of as_dict."""
        self.groups = {int(row): Group(*group) for row, group in groups.items()}
