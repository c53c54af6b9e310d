"""How sure a mean over tasks is, and whether two sets of predictions differ: intervals and p-values.

Tasks are the unit: predictions of one task are no independent evidence, so their mean is taken first.
Intervals are percentiles of bootstrap samples (Efron 1979), each of as many tasks as there are, drawn with
replacement. A paired difference is a mean like any other, of (n_tasks,) differences.
"""

import math
from collections.abc import Sequence

import numpy as np

RESAMPLES = 4000  # bootstrap samples of an interval, and draws of a sampled p-value
FEWEST_TASKS = 6  # of a difference that is shown: of fewer no exact sign-flip test reaches 5%
_DIGITS = 12  # what is smaller comes of the order of a sum: an end beside 0 would leave 0 out


def interval(samples: np.ndarray) -> tuple[float, float]:
    """Ends of the 95% interval of a statistic: percentiles 2.5 and 97.5 of its values (n_samples,)."""
    low, high = np.percentile(samples, (2.5, 97.5)).round(_DIGITS)
    return float(low), float(high)


def percent(share: float) -> str:
    """A share (0..1) as a percentage of two digits, three next to 100: 0.70%, 38%, 99.6%."""
    points = 100 * share
    digits = 3 if 99.5 <= abs(points) < 100 else 2
    return f"{points:.0f}%" if abs(points) >= 10 and digits == 2 else f"{points:.{digits}g}%"


def rate_text(rate: float, low: float, high: float, said: str = "") -> str:
    """A share (0..1) and its interval as "38% (18 to 61%)"; said: what stands before the range.

    Where all tasks are alike the bootstrap knows no other value, and the share stands alone: a range without
    width would look like certainty.
    """
    return percent(rate) if low == high else f"{percent(rate)} ({said}{_range(low, high)})"


def _range(low: float, high: float) -> str:
    return f"{percent(low).rstrip('%')} to {percent(high)}"


def points(difference: float) -> str:
    """A difference of shares (-1..1) in percentage points of two digits: "+8.3"."""
    sign = "-" if difference < 0 else "+" if difference > 0 else ""
    return f"{sign}{percent(abs(difference)).rstrip('%')}"


def difference_text(difference: float, low: float, high: float) -> str:
    """A difference of shares and its interval: "+8.3 points (95% interval -1.2 to +18)"; see `rate_text`."""
    range_ = "" if low == high else f" (95% interval {points(low)} to {points(high)})"
    return f"{points(difference)} points{range_}"


def share_text(right: int, of: int, things: str = "") -> str:
    """ "6 of 16 tasks (38%, 95% interval 18 to 61%)"; by Wilson's interval (1927) none of 16 is not never."""
    from scipy.stats import binomtest

    count = f"{right or 'none'} of {of} {things}".strip()
    if not of:
        return count
    ends = binomtest(right, of).proportion_ci(method="wilson")
    return f"{count} ({percent(right / of)}, 95% interval {_range(round(ends.low, 4), round(ends.high, 4))})"


def resampled_weights(n_tasks: int, generator: np.random.Generator, n_samples: int = RESAMPLES) -> np.ndarray:
    """(n_samples, n_tasks) weights of the tasks in bootstrap samples: how often each was drawn, by n_tasks.

    Rows sum to 1, so `weights @ values` are the means of the samples.
    """
    if not n_tasks:
        return np.zeros((n_samples, 0))
    return generator.multinomial(n_tasks, np.full(n_tasks, 1 / n_tasks), size=n_samples) / n_tasks


def mean_and_interval(values: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    """Mean of (n_tasks,) values and its 95% interval, by `resampled_weights`; NaN of no values."""
    if not values.size:
        return (math.nan,) * 3
    return round(float(values.mean()), _DIGITS), *interval(weights @ values)


def sign_flip_p(differences: Sequence[int]) -> float:
    """Exact two-sided p of a sum of integers, were the sign of each a toss of a fair coin (Fisher 1935).

    differences: (n_tasks,). Where they are -1, 0 and 1 this is McNemar's exact test (1947).
    """
    sizes = [abs(int(d)) for d in differences if d]
    observed = abs(sum(int(d) for d in differences))
    chances = np.ones(1)  # of sums -total..total
    for size in sizes:
        wider = np.zeros(len(chances) + 2 * size)
        wider[: len(chances)] += chances / 2
        wider[2 * size :] += chances / 2
        chances = wider
    sums = np.abs(np.arange(len(chances)) - sum(sizes))
    return float(min(1.0, chances[sums >= observed].sum()))


def sampled_sign_flip_p(
    differences: np.ndarray, generator: np.random.Generator, n_samples: int = RESAMPLES
) -> float:
    """`sign_flip_p` of real differences (n_tasks,), by n_samples draws of their signs."""
    flipped = generator.choice([-1, 1], (n_samples, len(differences))) @ differences
    as_far = int((np.abs(flipped) >= abs(differences.sum()) - 1e-12).sum())
    return (as_far + 1) / (n_samples + 1)  # the draw that was observed counts, too


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values, in their order, adjusted for their number by the method of Holm (1979)."""
    adjusted, highest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = highest
    return adjusted
