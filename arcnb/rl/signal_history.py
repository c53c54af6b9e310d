"""Which prompts still teach: a group whose completions all earn the same moves nothing.

A task is silent when the last `visits` groups of it were all without spread and all right or all wrong. A
row that would show a silent task shows another one with probability 1 - weight, drawn from (seed, row):
weight 0 drops silent tasks, weights below 1 show them less. What a row may know is fixed: the groups of rows
at least `lag` before it, so that a resumed run chooses as the unbroken run would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from arcnb.arc.seeds import rng


@dataclass
class SignalHistory:
    """groups: row -> [task id, whether the group had signal]. visits 0 switches the choice off.

    lag: rows whose outcome may be unknown when a row is drawn; loaders fetch one batch ahead.
    """

    visits: int = 0
    weight: float = 0.0
    lag: int = 2
    groups: dict[int, tuple[str, bool]] = field(default_factory=dict)

    def __post_init__(self):
        if self.visits < 0 or not 0 <= self.weight <= 1:
            raise ValueError(
                f"signal_visits={self.visits}, signal_weight={self.weight}: visits must be at least 0 and "
                "the weight within 0..1"
            )

    def record(self, row: int, task_id: str, rewards: Sequence[float], solved: Sequence[bool]) -> None:
        """Note the group of a row. Spread among half-right programs is signal, whatever is solved."""
        flat = max(rewards) - min(rewards) < 1e-9
        self.groups[row] = (task_id, not (flat and (all(solved) or not any(solved))))

    def silent(self, before: int) -> set[str]:
        """Tasks that taught nothing in their last `visits` groups among the rows below `before`."""
        if not self.visits:
            return set()
        seen: dict[str, list[bool]] = {}
        for row in sorted(self.groups):
            if row < before:
                task_id, signal = self.groups[row]
                seen.setdefault(task_id, []).append(signal)
        return {
            task_id
            for task_id, signals in seen.items()
            if len(signals) >= self.visits and not any(signals[-self.visits :])
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
        return {str(row): [task_id, signal] for row, (task_id, signal) in self.groups.items()}

    def restore(self, groups: dict) -> None:
        """The inverse of as_dict."""
        self.groups = {int(row): (task_id, signal) for row, (task_id, signal) in groups.items()}
