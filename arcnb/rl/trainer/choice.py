"""Which completions of a round are trained.

rewards: (n,) of all completions of a round. groups: (n,), the number of each one's group.
"""

from __future__ import annotations

import numpy as np


def most_spread(
    rewards: np.ndarray, groups: np.ndarray, part: float, random: np.random.Generator
) -> np.ndarray:
    """(n,) bool: that part of each group, two at least, whose rewards have the largest variance.

    Of equal rewards those are taken that `random` says. Max-variance down-sampling of PODS (arXiv
    2504.13818): the best m are always some of the lowest and the rest of the highest ones.
    """
    chosen = np.zeros(len(rewards), bool)
    for members in _members(groups):
        mixed = random.permutation(members)
        order = mixed[rewards[mixed].argsort(kind="stable")]
        m = min(len(order), max(2, round(part * len(order))))
        splits = [np.r_[order[:low], order[len(order) - m + low :]] for low in range(m + 1)]
        chosen[max(splits, key=lambda places: rewards[places].var())] = True
    return chosen


def silent(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(n,) bool: those whose group's rewards are all equal."""
    found = np.zeros(len(rewards), bool)
    for members in _members(groups):
        found[members] = np.ptp(rewards[members]) == 0
    return found


def drawn_evenly(of: np.ndarray, groups: np.ndarray, part: float, random: np.random.Generator) -> np.ndarray:
    """This part of what is true in `of` (n,), at least one: each has the same chance, and each group about
    its share (a systematic sample in an order that is random within groups)."""
    places = np.concatenate([random.permutation(members[of[members]]) for members in _members(groups)])
    drawn = np.zeros(len(of), bool)
    if len(places):
        n = max(1, round(part * len(places)))
        at = (random.random() + np.arange(n)) * len(places) / n
        drawn[places[np.minimum(at.astype(int), len(places) - 1)]] = True
    return drawn


def _members(groups: np.ndarray) -> list[np.ndarray]:
    """Places of each group's completions."""
    return [(groups == number).nonzero()[0] for number in np.unique(groups)]
