"""How sure the change of a pass rate is, from one set of samples to another on the same tasks.

    change = change_over_tasks(right, of, rng(seed, "changes"))
    change.difference, change.low, change.high, change.seen

right, of: (n_tasks, 2) counts, samples that solve their task and all samples, before and after.
"""

from dataclasses import dataclass

import numpy as np

from arcnb.arc.scores.intervals import RESAMPLES, difference_text, interval, resampled_weights

NORMAL = 1.96  # standard errors from the middle of a 95% interval to its ends
# Standard errors that an effect has to measure to be seen in 80% of studies, at 5% two-sided.
POWER_ERRORS = NORMAL + 0.84


@dataclass(frozen=True)
class Change:
    """before, after: mean over tasks of the share of samples that solve their task. low, high: of the
    difference, 95%. smallest: the smallest difference that would have been seen four times in five, by
    samples or tasks that vary as these do. All are shares, 0..1.
    """

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
        return difference_text(self.difference, self.low, self.high)


def change_over_samples(right: np.ndarray, of: np.ndarray, draws: np.random.Generator) -> Change:
    """Where the tasks are all there are of their kind: by drawing their samples anew."""
    # Half a sample more of each kind: a task solved in 0 of 8 may be solvable in some per cent.
    drawn = draws.binomial(of, (right + 0.5) / (of + 1), size=(RESAMPLES, *of.shape)) / of
    drawn = (drawn[..., 1] - drawn[..., 0]).mean(axis=1)
    pooled = (right.sum(axis=1) + 1) / (of.sum(axis=1) + 2)
    error = np.sqrt((pooled * (1 - pooled) * (1 / of).sum(axis=1)).sum()) / len(of)
    # Centred: the half samples pull what is drawn towards one half.
    return _change(right / of, *interval(drawn - drawn.mean()), POWER_ERRORS * error)


def change_over_tasks(right: np.ndarray, of: np.ndarray, draws: np.random.Generator) -> Change:
    """Where the tasks stand for more like them: by bootstrap over tasks, as wide as Student's t has it for so
    few. What samples add is in the differences of the tasks already."""
    from scipy.stats import t

    n, shares = len(of), right / of
    if n == 1:
        return _change(shares, -2.0, 2.0, 1.0)  # one task says nothing about others
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
    return _change(shares, low, high, (sure + often) * error)


def _change(shares: np.ndarray, below: float, above: float, smallest: float) -> Change:
    """below, above: from the difference to the ends of its interval."""
    before, after = map(float, shares.mean(axis=0))
    low, high = max(-1.0, after - before + below), min(1.0, after - before + above)
    return Change(before, after, low, high, min(1.0, float(smallest)))
