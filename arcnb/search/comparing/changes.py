"""What training changed: two prediction sets on the same tasks, for trained and reserved tasks apart.

A gain on tasks that were trained on says that training works; only a gain on tasks that nothing was trained
on says that the model became better at new ones. Each group gets its own line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.scores.intervals import RESAMPLES, interval, percent, points, resampled_weights
from arcnb.arc.seeds import rng
from arcnb.synth.splits import is_held_out

if TYPE_CHECKING:
    import pandas as pd

    from arcnb.arc.tasks.task import Task

NORMAL = 1.96  # standard errors from the middle of a 95% interval to its ends
# Standard errors that an effect has to measure to be seen in 80% of studies, at 5% two-sided.
POWER_ERRORS = NORMAL + 0.84


@dataclass(frozen=True)
class Change:
    """One group of tasks. before, after: mean over tasks of the share of samples that solve their task.

    low, high: of the difference, 95%: of trained tasks by drawing their samples anew, else by bootstrap over
    tasks, as wide as Student's t has it for so few. smallest: the smallest difference that would have been
    seen four times in five, by samples or tasks that vary as these do. All are shares, 0..1.
    """

    group: str
    n_tasks: int
    n_samples: int
    before: float
    after: float
    low: float
    high: float
    smallest: float

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def seen(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0

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
) -> list[Change]:
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


def summary(found: Sequence[Change]) -> str:
    """A sentence for each group."""
    return " ".join(map(str, found)) or "The sets have no task in common."


def _solved(frame: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """{task id: (samples that solve it, samples)}."""
    right = (frame["train_is_correct"] == 1) & (frame["test_is_correct"] == 1)
    counts = right.groupby(frame["task_id"].astype(object)).agg(["sum", "size"])
    return {task_id: (int(row["sum"]), int(row["size"])) for task_id, row in counts.iterrows()}


def _change(group: str, counts: np.ndarray, seed: int) -> Change:
    right, of = counts[..., 0], counts[..., 1]
    # The trained tasks are all there are of their kind; the others stand for more like them.
    uncertainty = _of_samples if group == "trained" else _of_tasks
    below, above, smallest = uncertainty(right, of, rng(seed, "changes", group))
    before, after = map(float, (right / of).mean(axis=0))
    low, high = max(-1.0, after - before + below), min(1.0, after - before + above)
    return Change(group, len(counts), int(of.sum()), before, after, low, high, min(1.0, smallest))


def _of_samples(right: np.ndarray, of: np.ndarray, draws: np.random.Generator) -> tuple[float, float, float]:
    """Ends of the interval around the difference, and the smallest effect; right, of: (tasks, sets)."""
    # Half a sample more of each kind: a task solved in 0 of 8 may be solvable in some per cent.
    drawn = draws.binomial(of, (right + 0.5) / (of + 1), size=(RESAMPLES, *of.shape)) / of
    drawn = (drawn[..., 1] - drawn[..., 0]).mean(axis=1)
    pooled = (right.sum(axis=1) + 1) / (of.sum(axis=1) + 2)
    error = np.sqrt((pooled * (1 - pooled) * (1 / of).sum(axis=1)).sum()) / len(of)
    # Centred: the half samples pull what is drawn towards one half.
    return *interval(drawn - drawn.mean()), float(POWER_ERRORS * error)


def _of_tasks(right: np.ndarray, of: np.ndarray, draws: np.random.Generator) -> tuple[float, float, float]:
    """As `_of_samples`, by tasks alone: what samples add is in the differences of the tasks already."""
    from scipy.stats import t

    n = len(of)
    if n == 1:
        return -2.0, 2.0, 1.0  # one task says nothing about others
    shares = right / of
    differences = shares[:, 1] - shares[:, 0]
    # A task more that gains a sample and one that loses one (Bonett and Price 2012, of single samples):
    # that no task changed does not mean that none can.
    step = (1 / of).mean()
    deviations = np.append(differences - differences.mean(), [step, -step])
    drawn = resampled_weights(n + 2, draws) @ deviations
    # Of few tasks the bootstrap is too narrow: its shape, and the width of Student's t (Hesterberg 2015).
    error = np.sqrt((deviations**2).sum() / (n * (n - 1)))
    sure, often = t.ppf((0.975, 0.8), n - 1)
    low, high = interval((drawn - drawn.mean()) / drawn.std() * error * sure / NORMAL)
    return low, high, float((sure + often) * error)
