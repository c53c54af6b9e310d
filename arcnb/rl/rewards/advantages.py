"""Advantages: what a completion's reward is worth beside its group's rewards. One function a way, by name.

    ADVANTAGES["max_rl"](rewards, group, AdvantageContext())  # float64 (n,), of rewards, group numbers (n,)

`group`, `batch` and `none` are what TRL calls scale_rewards. The trainer takes its advantages from here
whatever the way (`arcnb.rl.trainer.crediting`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

import numpy as np

_LEAST = 1e-4  # added to a spread that is divided by, as TRL does
_UNLIKELY = 0.25  # how much the likeliest completion of a group loses


@dataclass(frozen=True)
class AdvantageContext:
    """k: of pass_at_k, at this step. log_probs: of each completion, nats, (n,), for `unlikely` alone."""

    k: int = 1
    log_probs: np.ndarray | None = None


def none(rewards: np.ndarray, group: np.ndarray, asked: AdvantageContext) -> np.ndarray:
    """Reward minus the group's mean (Liu et al. 2025, arXiv 2503.20783, Dr. GRPO)."""
    return rewards - _of_group(np.mean, rewards, group)


def group(rewards: np.ndarray, group: np.ndarray, asked: AdvantageContext) -> np.ndarray:
    """Reward minus the group's mean, divided by the group's standard deviation (Shao et al. 2024, arXiv
    2402.03300, GRPO)."""
    return none(rewards, group, asked) / (_of_group(_spread, rewards, group) + _LEAST)


def batch(rewards: np.ndarray, group: np.ndarray, asked: AdvantageContext) -> np.ndarray:
    """Reward minus the group's mean, divided by the standard deviation over all completions of the round
    (Khatri et al. 2025, arXiv 2510.13786, ScaleRL)."""
    return none(rewards, group, asked) / (_spread(rewards) + _LEAST)


def max_rl(rewards: np.ndarray, group: np.ndarray, asked: AdvantageContext) -> np.ndarray:
    """Reward minus the group's mean, divided by that mean; 0 in a group that earns nothing (Tajwar et al.
    2026, arXiv 2602.02710, MaxRL): rare successes count by 1 / success rate, as in maximum likelihood.

    For rewards of 0 and 1. A mean counts as one success, 1/n, at least, so that small terms below 0 cannot
    make it next to nothing.
    """
    mean, n = _of_group(np.mean, rewards, group), _of_group(len, rewards, group)
    return np.where(mean > 0, (rewards - mean) / np.maximum(mean, 1 / n), 0.0)


def pass_at_k(rewards: np.ndarray, group: np.ndarray, asked: AdvantageContext) -> np.ndarray:
    """What a completion adds to the best of k: n / C(n,k) times the sum, over the sets of k of the group that
    it is in, of their largest reward minus that without it (Walder and Karkhanis 2025, arXiv 2505.15201,
    PKPO, the baseline of k-1). Sets in which it is not the best add nothing, which leaves a closed form.

    k = 1 is the reward minus the mean of the others'; a group smaller than k counts as one set.
    """

    def of_group(own: np.ndarray) -> np.ndarray:
        n = len(own)
        k = min(asked.k, n)
        if k == 1:
            return (own - own.mean()) * n / max(n - 1, 1)
        order = np.argsort(own, kind="stable")
        low = own[order]
        beaten = np.array([comb(i, k - 1) for i in range(n)], float)  # sets whose best is the i-th from below
        tops = np.array([comb(i, k - 2) for i in range(n)], float)  # and with it gone, the i-th
        gains = beaten * low - np.concatenate([[0.0], np.cumsum(tops * low)[:-1]])
        values = np.empty(n)
        values[order] = gains * n / comb(n, k)
        return values

    return _within(of_group, rewards, group)


def unlikely(rewards: np.ndarray, group: np.ndarray, asked: AdvantageContext) -> np.ndarray:
    """`group` of rewards times 1 - (n - rank) / (4 n), rank 0 the likeliest of n (He et al. 2025, arXiv
    2506.02355, unlikeliness reward): of right completions the rare one earns more. Rewards below 0 stay."""

    def weight(log_probs: np.ndarray) -> np.ndarray:
        n = len(log_probs)
        rank = np.empty(n)
        rank[np.argsort(-log_probs, kind="stable")] = np.arange(n)
        return 1 - _UNLIKELY * (n - rank) / n

    weighted = rewards * np.where(rewards > 0, _within(weight, asked.log_probs, group), 1.0)
    return ADVANTAGES["group"](weighted, group, asked)


ADVANTAGES: dict[str, Callable[[np.ndarray, np.ndarray, AdvantageContext], np.ndarray]] = {
    way.__name__: way for way in (group, batch, none, max_rl, pass_at_k, unlikely)
}


def k_at(first: int, last: int, step: int, steps: int) -> int:
    """k of pass_at_k at this of so many steps: from `first` to `last` (0: it stays) in a straight line."""
    return round(first + (last - first) * min(1.0, step / max(1, steps - 1))) if last else first


def _within(do: Callable, values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """What `do` makes of each group's values, at their places."""
    made = np.empty(len(values))
    for one in np.unique(group):
        made[group == one] = do(values[group == one])
    return made


def _of_group(do: Callable, values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """One number of each one's group."""
    return _within(lambda own: np.full(len(own), float(do(own))), values, group)


def _spread(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0
