"""Figures of search and learn: every sample's score over the rounds, what two searches had solved when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arcnb.lab.plots.plots import SERIES, _figure, _finish

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def score_evolution(
    rows: pd.DataFrame, title: str, score: str = "train_pixel_score", most: float = 1.0
) -> Figure:
    """Every sample of one task as a dot, in the order of sampling; a line a round is its mean.

    rows: of one task, as `arcnb.search.comparing.searches.evolution` gives them. Samples without
    valid outputs stand below zero; those that solve all train pairs are ringed.
    """
    figure, (axes,) = _figure()
    failed = rows["status"] != "ok"
    values = rows[score].astype(float).fillna(0).where(~failed, -0.05 * most)
    for number, (_, of_round) in enumerate(rows.groupby("learned")):
        color, x = SERIES[number % len(SERIES)], of_round["completion"]
        axes.scatter(x, values[of_round.index], s=12, color=color, alpha=0.7, linewidth=0)
        mean = of_round[score].astype(float).fillna(0).mean()
        axes.plot([x.min() - 0.5, x.max() + 0.5], [mean, mean], color=color, linewidth=1.5)
    solved = rows[rows["train_is_correct"] == 1]
    axes.scatter(solved["completion"], values[solved.index], s=60, facecolor="none", edgecolor=SERIES[1])
    axes.set_ylim(-0.1 * most, 1.05 * most)
    return _finish(figure, axes, title, "completion (a color a round; below zero: no valid outputs)", score)


def solved_against_completions(pairs: pd.DataFrame, title: str = "Tasks solved") -> Figure:
    """Left: both searches at equal budgets. Right: their difference with its 95% interval.

    pairs: the table of `arcnb.search.comparing.searches.paired_curve`.
    """
    figure, (both, difference) = _figure(2)
    x = pairs["completions"]
    for name, label, color in zip(
        ("alone", "learned"), ("search alone", "search and learn"), SERIES, strict=False
    ):
        both.plot(x, 100 * pairs[name], color=color, marker="o", markersize=4, label=label)
    both.set_ylim(bottom=0)
    difference.fill_between(
        x, 100 * pairs["low"], 100 * pairs["high"], color=SERIES[2], alpha=0.2, linewidth=0
    )
    difference.plot(x, 100 * pairs["difference"], color=SERIES[2], marker="o", markersize=4)
    difference.axhline(0, color="#7b858f", linewidth=0.8)
    _finish(figure, both, title, "completions a task", "tasks (%)", legend=True)
    return _finish(figure, difference, "Learned minus alone", "completions a task", "percentage points")
