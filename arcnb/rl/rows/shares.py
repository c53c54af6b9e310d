"""How a round's completions are shared out: more for tasks solved half of the time, fewer for others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

LEAST = 2  # completions that a task keeps; one has nothing to be compared with


def shares(rates: Sequence[float | None], total: int) -> list[int]:
    """Completions of each task, at least LEAST and `total` together.

    In proportion to sqrt(p (1 - p)) for a success rate p, which for a fixed total makes the sum of the rates'
    variances smallest (Neyman's allocation; Yao et al. 2025, arXiv 2510.04996, Reinforce-Ada; Li et al. 2025,
    arXiv 2509.25849, Knapsack RL). A rate that is not known (None) counts as a half.
    """
    weights = [(p * (1 - p)) ** 0.5 for p in (0.5 if rate is None else rate for rate in rates)]
    spare, whole = total - LEAST * len(weights), sum(weights)
    if spare < 0:
        raise ValueError(f"{total} completions do not give {len(weights)} tasks {LEAST} each")
    exact = [spare * weight / whole if whole else spare / len(weights) for weight in weights]
    made = [int(part) for part in exact]
    by_rest = sorted(range(len(made)), key=lambda i: made[i] - exact[i])
    for i in by_rest[: spare - sum(made)]:
        made[i] += 1
    return [LEAST + part for part in made]


def places(rows: Sequence[int], rate: Callable[[int], float | None]) -> list[int]:
    """The row of each place of a round, in which every row had as many, one row after the other."""
    there = list(dict.fromkeys(rows))
    given = shares([rate(row) for row in there], len(rows))
    return [row for row, n in zip(there, given, strict=True) for _ in range(n)]
