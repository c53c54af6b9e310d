"""How sure the change of a pass rate is, from one set of samples to another on the same tasks.

    below, above, smallest = around_tasks(right, of, rng(seed, "changes"))

right, of: (n_tasks, 2) counts, samples that solve their task and all samples, before and after. The change is
the mean over tasks of the difference of their shares. below, above: from it to the ends of its 95% interval.
smallest: the smallest change that would have been seen four times in five. All are shares.
"""

import numpy as np

from arcnb.arc.scores.intervals import RESAMPLES, interval, resampled_weights

NORMAL = 1.96  # standard errors from the middle of a 95% interval to its ends
# Standard errors that an effect has to measure to be seen in 80% of studies, at 5% two-sided.
POWER_ERRORS = NORMAL + 0.84


def around_samples(
    right: np.ndarray, of: np.ndarray, draws: np.random.Generator
) -> tuple[float, float, float]:
    """(below, above, smallest) where the tasks are all there are of their kind: by drawing samples anew."""
    # Half a sample more of each kind: a task solved in 0 of 8 may be solvable in some per cent.
    drawn = draws.binomial(of, (right + 0.5) / (of + 1), size=(RESAMPLES, *of.shape)) / of
    drawn = (drawn[..., 1] - drawn[..., 0]).mean(axis=1)
    pooled = (right.sum(axis=1) + 1) / (of.sum(axis=1) + 2)
    error = np.sqrt((pooled * (1 - pooled) * (1 / of).sum(axis=1)).sum()) / len(of)
    # Centred: the half samples pull what is drawn towards one half.
    return *interval(drawn - drawn.mean()), float(POWER_ERRORS * error)


def around_tasks(right: np.ndarray, of: np.ndarray, draws: np.random.Generator) -> tuple[float, float, float]:
    """(below, above, smallest) where the tasks stand for more like them: by bootstrap over tasks, as wide as
    Student's t has it for so few. What samples add is in the differences of the tasks already."""
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
