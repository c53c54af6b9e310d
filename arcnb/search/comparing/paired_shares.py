"""Two arms compared in a share of each task, above all of its samples that solve it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arcnb.arc.seeds import rng

RESAMPLES = 4000


@dataclass(frozen=True)
class PairedShares:
    """Arm b against arm a, means over tasks.

    low, high: of the difference, 95% by bootstrap over tasks. p_value: two-sided sign-flip test, by
    RESAMPLES draws. n_more, n_fewer: tasks whose share b raises, lowers.
    """

    n_tasks: int
    a: float
    b: float
    low: float
    high: float
    p_value: float
    n_more: int
    n_fewer: int

    @property
    def difference(self) -> float:
        return self.b - self.a

    def __str__(self) -> str:
        return (
            f"{self.a:.2%} and {self.b:.2%} of {self.n_tasks} tasks' ({100 * self.difference:+.2f} points "
            f"[{100 * self.low:+.2f}, {100 * self.high:+.2f}], p {self.p_value:.2g}; more in {self.n_more} "
            f"tasks, fewer in {self.n_fewer})"
        )


def paired_shares(a: Sequence[float], b: Sequence[float], seed: int = 0) -> PairedShares:
    """Of shares (0..1), one a task, in the same order."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    difference, draws = b - a, rng(seed, "paired shares")
    n = len(difference)
    weights = draws.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) / n
    low, high = np.percentile(weights @ difference, [2.5, 97.5])
    flipped = draws.choice([-1, 1], (RESAMPLES, n)) @ difference
    as_far = int((np.abs(flipped) >= abs(difference.sum()) - 1e-12).sum())
    return PairedShares(
        n_tasks=n,
        a=float(a.mean()),
        b=float(b.mean()),
        low=float(low),
        high=float(high),
        p_value=(as_far + 1) / (RESAMPLES + 1),  # the draw that was observed counts, too
        n_more=int((difference > 0).sum()),
        n_fewer=int((difference < 0).sum()),
    )
