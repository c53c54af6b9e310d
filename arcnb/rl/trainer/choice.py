"""Which completions of a round are trained, and their advantages. Arrays are (groups, completions)."""

from __future__ import annotations

import numpy as np


def most_spread(rewards: np.ndarray, n: int, random: np.random.Generator) -> np.ndarray:
    """The n completions of each group whose rewards have the largest variance: the lowest and the highest.

    Of equal rewards those are taken that `random` says. Max-variance down-sampling of PODS (arXiv
    2504.13818): the best n are always some lowest and the other highest ones.
    """
    groups, size = rewards.shape
    if n >= size:
        return np.ones(rewards.shape, bool)
    mixed = random.permuted(np.broadcast_to(np.arange(size), rewards.shape), axis=1)
    order = np.take_along_axis(mixed, np.take_along_axis(rewards, mixed, 1).argsort(axis=1, kind="stable"), 1)
    chosen = np.zeros(rewards.shape, bool)
    for group in range(groups):
        splits = [np.r_[order[group, :low], order[group, size - n + low :]] for low in range(n + 1)]
        best = max(splits, key=lambda places: rewards[group, places].var())
        chosen[group, best] = True
    return chosen


def drawn_evenly(of: np.ndarray, part: float, random: np.random.Generator) -> np.ndarray:
    """This part of what is true in `of`, at least one: each has the same chance, and each group about its
    share (a systematic sample in an order that is random within groups)."""
    places = np.concatenate(
        [group * of.shape[1] + random.permutation(row.nonzero()[0]) for group, row in enumerate(of)]
    )
    n = min(len(places), max(1, round(part * len(places))))
    drawn = np.zeros(of.size, bool)
    if n:
        at = (random.random() + np.arange(n)) * len(places) / n
        drawn[places[np.minimum(at.astype(int), len(places) - 1)]] = True
    return drawn.reshape(of.shape)


def advantages_among(rewards: np.ndarray, chosen: np.ndarray, scale: str) -> np.ndarray:
    """TRL's advantages of the chosen completions among themselves, 0 of the others.

    scale: TRL's scale_rewards: "group", "batch" or "none". Every group has as many chosen ones.
    """
    kept = np.where(chosen, rewards, np.nan)
    advantages = kept - np.nanmean(kept, axis=1, keepdims=True)
    if scale != "none":
        axis = 1 if scale == "group" else None
        advantages = advantages / (np.nanstd(kept, axis=axis, ddof=1, keepdims=True) + 1e-4)
    return np.nan_to_num(advantages)
