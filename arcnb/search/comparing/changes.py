"""What training changed: two prediction sets on the same tasks, for trained and reserved tasks apart.

A gain on tasks that were trained on says that training works; only a gain on tasks that nothing was trained
on says that the model became better at new ones. Each group gets its own line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.predictions.tables import solving
from arcnb.arc.scores.change import Change, change_over_samples, change_over_tasks
from arcnb.arc.scores.intervals import percent, points
from arcnb.arc.seeds import rng
from arcnb.synth.splits import is_held_out

if TYPE_CHECKING:
    import pandas as pd

    from arcnb.arc.tasks.task import Task


@dataclass(frozen=True)
class GroupChange(Change):
    """That of one group of tasks; n_samples: of both sets together."""

    group: str
    n_tasks: int
    n_samples: int

    def __str__(self) -> str:
        solving = f"{self.before:.0%} -> {self.after:.0%} of the samples solve their task"
        group = f"On the {self.n_tasks} {self.group} tasks"
        if not self.seen:
            return f"{group} {solving}: no change is shown."
        interval = f"95% {points(self.low)} to {points(self.high)}"
        return f"{group} {solving} ({points(self.difference)} points, {interval})."

    def row(self) -> dict:
        """For a table."""
        return {
            "tasks": f"{self.n_tasks} {self.group}",
            "samples": self.n_samples,
            "before": percent(self.before),
            "after": percent(self.after),
            "change, points": f"{100 * self.difference:+.1f}",
            "95% interval": f"{100 * self.low:+.1f} to {100 * self.high:+.1f}",
            "smallest that would be seen": f"{100 * self.smallest:.0f}",
        }


def changes(
    before: pd.DataFrame, after: pd.DataFrame, tasks: Sequence[Task], trained: Iterable[str], seed: int = 0
) -> list[GroupChange]:
    """The change from one set to another, for the groups "trained", "reserved" and "other" that have tasks.

    before, after: frames with task_id, train_is_correct, test_is_correct. trained: ids of the tasks that
    training saw. Other tasks are neither: this training did not see them, but another may have. Tasks with
    unknown test outputs, or without predictions in one of the sets, are left out.
    """
    trained = set(trained)
    groups: dict[str, list[str]] = {"trained": [], "reserved": [], "other": []}
    for task in tasks:
        kind = "trained" if task.task_id in trained else "reserved" if is_held_out(task) else "other"
        if task.has_test_outputs:
            groups[kind].append(task.task_id)
    solved = [_solved(frame) for frame in (before, after)]
    found = []
    for group, ids in groups.items():
        both = [task_id for task_id in ids if all(task_id in counts for counts in solved)]
        if both:
            counts = np.array([[solved[0][i], solved[1][i]] for i in both])  # (tasks, sets, right and all)
            found.append(_change(group, counts, seed))
    return found


def summary(found: Sequence[GroupChange]) -> str:
    """A sentence for each group."""
    return " ".join(map(str, found)) or "The sets have no task in common whose test outputs are known."


def _solved(frame: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """{task id: (samples that solve it, samples)}."""
    counts = solving(frame).groupby(frame["task_id"].astype(object)).agg(["sum", "size"])
    return {task_id: (int(row["sum"]), int(row["size"])) for task_id, row in counts.iterrows()}


def _change(group: str, counts: np.ndarray, seed: int) -> GroupChange:
    right, of = counts[..., 0], counts[..., 1]
    # The trained tasks are all there are of their kind; the others stand for more like them.
    over = change_over_samples if group == "trained" else change_over_tasks
    found = over(right, of, rng(seed, "changes", group))
    return GroupChange(**vars(found), group=group, n_tasks=len(counts), n_samples=int(of.sum()))
