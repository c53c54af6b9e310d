"""Figures that notebooks show: pass@k, training curves, histograms, searches. Each takes data and returns a
Figure (arcnb.lab.plots.figure)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from arcnb.lab.plots.figure import INK, SERIES, colors, finish, legend_below, new_figure, whole_steps

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def pass_at_k(curves: "pd.DataFrame | Mapping[str, pd.DataFrame]", title: str = "pass@k") -> "Figure":
    """pass@k with its interval. A frame has the columns k, mean, low, high (rates in 0..1), or no row where
    nothing was predicted; several frames by name are drawn together. The legend says how
    many tasks have fewer than the last k predictions (column n_short) and count with those."""
    named = {"": curves} if hasattr(curves, "columns") else dict(curves)
    figure, (axes,) = new_figure()
    for (name, frame), color in zip(named.items(), colors(), strict=False):
        k, mean, low, high = (frame[name].to_numpy(float) for name in ("k", "mean", "low", "high"))
        axes.fill_between(k, 100 * low, 100 * high, color=color, alpha=0.18, linewidth=0)
        short = int(frame["n_short"].max()) if len(frame) else 0
        label = f"{name} ({short} tasks have fewer)".strip() if short else name
        axes.plot(k, 100 * mean, color=color, marker="o", markersize=4, label=label)
    axes.set_xscale("log", base=2)
    ks = sorted({int(k) for frame in named.values() for k in frame["k"]})
    axes.set_xticks(ks if len(ks) <= 12 else ks[:: len(ks) // 8], minor=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.set_ylim(0, max(10, axes.get_ylim()[1]))  # of nothing solved, too
    legend = len(named) > 1 or any(frame["n_short"].any() for frame in named.values())
    return finish(figure, axes, title, "k: predictions per task", "tasks solved (%)", legend)


def training_curves(
    metrics: "pd.DataFrame | Sequence[Mapping]",
    names: Sequence[str],
    step: str = "step",
    smooth: int | None = None,
) -> "Figure":
    """One small plot for each named column that has values, over `step`; two in a row.

    `metrics`: a frame, or the lines of a metrics.jsonl (arcnb.models.training.log.read_metrics). `smooth` is
    the window of a running mean drawn over the raw values (default: a twentieth of the steps); 1 for none.
    """
    import pandas as pd

    metrics = pd.DataFrame(metrics)
    panels = {name: {name: _column(metrics, name, step)} for name in names}
    return _over_steps(panels, step, f"metrics with columns {', '.join(metrics)}", smooth)


def grouped_curves(
    metrics: "pd.DataFrame | Sequence[Mapping]", groups: Mapping[str, Sequence[str]]
) -> "Figure":
    """One small plot a group, several named columns in it as lines over `step`; two plots in a row. Columns
    and groups without values are left out; ValueError when nothing is left."""
    import pandas as pd

    metrics = pd.DataFrame(metrics)
    panels = {
        title: {name.rpartition("/")[2]: _column(metrics, name, "step") for name in names}
        for title, names in groups.items()
    }
    return _over_steps(panels, "step", f"metrics with columns {', '.join(metrics)}")


def compared_curves(logs: "Mapping[str, Sequence[Mapping]]", names: Sequence[str]) -> "Figure":
    """One small plot for each name that some log has, one line a log; two plots in a row.

    logs: the lines of a metrics.jsonl by run. ValueError when no log has any of the names.
    """
    panels = {name: {run: _column(rows, name, "step") for run, rows in logs.items()} for name in names}
    return _over_steps(panels, "step", f"the logs of {', '.join(logs)}")


def histogram(
    values: "Sequence[float] | Mapping[str, Sequence[float]]",
    title: str,
    label: str,
    limit: float | None = None,
) -> "Figure":
    """How often which value occurs, for one series or several by name; `limit` (a context length, say) is
    marked with a line, and the share of values above it said beside the title."""
    import numpy as np

    named = dict(values) if isinstance(values, Mapping) else {"": values}
    arrays = {name: np.asarray(series, dtype=float) for name, series in named.items()}
    everything = np.concatenate([*arrays.values(), [] if limit is None else [limit]])
    if not len(everything):
        raise ValueError(f"there are no values for the histogram {title!r}")
    edges = np.histogram_bin_edges(everything, bins=40)
    figure, (axes,) = new_figure()
    for (name, array), color in zip(arrays.items(), colors(), strict=False):
        axes.hist(array, bins=edges, color=color, alpha=0.75 if len(arrays) == 1 else 0.5, label=name)
    if limit is not None:
        above = sum(int((array > limit).sum()) for array in arrays.values())
        n_values = sum(map(len, arrays.values()))
        axes.axvline(limit, color=SERIES[1], linestyle="--", linewidth=1.5)
        text = f"dashed: {limit:g} ({100 * above / max(1, n_values):.1f} % above)"
        axes.text(1, 1.02, text, transform=axes.transAxes, ha="right", va="bottom", color=SERIES[1])
    return finish(figure, axes, title, label, "count", legend=len(arrays) > 1)


def correlation(table: "pd.DataFrame") -> "Figure | None":
    """A square table of correlations (-1..1) as colors, for its first 30 names; None without any."""
    names = list(table.columns[:30])
    if not names:
        return None
    figure, (axes,) = new_figure()
    side = max(3.6, 0.24 * len(names) + 1.6)
    figure.set_size_inches(side + 0.8, side)
    image = axes.imshow(table.loc[names, names], vmin=-1, vmax=1, cmap="PuOr", interpolation="nearest")
    finish(figure, axes, "Used together", "", "")
    axes.grid(False)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    figure.colorbar(image, ax=axes, shrink=0.6)
    return figure


def heat_map(rates: "pd.DataFrame") -> "Figure":
    """One row a prediction set, one column a solved task (most solved first), shares 0..1 as colors.

    rates: index task_id, one column a set; NaN (unknown) stays empty. Colors spread the small shares.
    """
    from matplotlib.colors import PowerNorm

    solved = (rates.fillna(0) > 0).any(axis=1)
    shown = rates[solved] if solved.any() else rates
    ordered = shown.loc[shown.fillna(0).mean(axis=1).sort_values(ascending=False, kind="stable").index]
    values = ordered.to_numpy(float).T
    figure, (axes,) = new_figure()
    figure.set_size_inches(9.6, 1.9 + 0.34 * len(values))
    norm = PowerNorm(0.4, vmin=0, vmax=1)
    image = axes.imshow(values, norm=norm, cmap="viridis", aspect="auto", interpolation="nearest")
    others = "; the others are left out" if 0 < solved.sum() < len(rates) else ""
    said = f"{solved.sum()} of {len(rates)} tasks are solved by some prediction{others}"
    finish(figure, axes, "Solve rate of each task", said, "")
    axes.grid(False)
    axes.set_yticks(range(len(values)), list(rates.columns), fontsize=9)
    if len(ordered) <= 40:
        axes.set_xticks(range(len(ordered)), list(ordered.index), rotation=90, fontsize=6)
    bar = figure.colorbar(
        image, ax=axes, format=lambda share, _: f"{share:.0%}", ticks=(0, 0.05, 0.2, 0.5, 1)
    )
    bar.ax.tick_params(colors=INK, labelsize=8)
    return figure


def upset(solved: "pd.DataFrame") -> "Figure":
    """How many tasks are solved by exactly which prediction sets, the 16 largest groups.

    solved: index task_id, one boolean column a set. Dots under a bar mark the sets of its group.
    """
    groups = solved[solved.any(axis=1)].value_counts(sort=True).head(16)
    figure, _ = new_figure()
    figure.clear()
    figure.set_size_inches(max(4.8, 1.8 + 0.45 * len(groups)), 2.6 + 0.3 * solved.shape[1])
    bars, dots = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 0.3 * solved.shape[1] + 0.2))
    bars.bar(range(len(groups)), groups.to_numpy(), color=SERIES[0], width=0.6)
    for number, (members, count) in enumerate(groups.items()):
        bars.text(number, count, f"{count}", ha="center", va="bottom", color=INK, fontsize=9)
        rows = [row for row, member in enumerate(members) if member]
        dots.plot([number] * len(rows), rows, color=SERIES[0], marker="o", markersize=7)
    finish(figure, bars, "Tasks solved by which", "", "tasks")
    names = [f"{name} ({int(solved[name].sum())})" for name in solved]
    finish(figure, dots, "", "" if len(groups) else "no task is solved", "")
    dots.set_yticks(range(len(names)), names)
    dots.set_ylim(len(names) - 0.5, -0.5)
    for axes in (bars, dots):
        axes.set_xticks([])
    bars.set_ylim(0, max([1, *groups]) * 1.15)
    bars.yaxis.get_major_locator().set_params(integer=True)
    return figure


def score_evolution(rows: "pd.DataFrame", title: str) -> "Figure":
    """The pixel score of every sample of one task as a dot, in the order of sampling; a line a round is its
    mean.

    rows: of one task, as `arcnb.search.comparing.searches.evolution` gives them. Samples without
    valid outputs stand below zero; those that solve all train pairs are ringed.
    """
    score = "train_pixel_score"
    figure, (axes,) = new_figure()
    known = rows[score].astype(float).fillna(0)
    values = known.where(rows["status"] == "ok", -0.05)
    for number, (_, of_round) in enumerate(rows.groupby("learned")):
        color, x = SERIES[number % len(SERIES)], of_round["completion"]
        axes.scatter(x, values[of_round.index], s=12, color=color, alpha=0.7, linewidth=0)
        mean = known[of_round.index].mean()
        axes.plot([x.min() - 0.5, x.max() + 0.5], [mean, mean], color=color, linewidth=1.5)
    solved = rows[rows["train_is_correct"] == 1]
    axes.scatter(solved["completion"], values[solved.index], s=60, facecolor="none", edgecolor=SERIES[1])
    axes.set_ylim(-0.1, 1.05)
    return finish(figure, axes, title, "completion (a color a round; below zero: no valid outputs)", score)


def solved_against_completions(pairs: "pd.DataFrame") -> "Figure":
    """Left: both searches at equal budgets. Right: their difference with its 95% interval.

    pairs: the table of `arcnb.search.comparing.searches.paired_curve`.
    """
    figure, (both, difference) = new_figure(2)
    x = pairs["completions"]
    labels = {"alone": "search alone", "learned": "search and learn"}
    for (name, label), color in zip(labels.items(), SERIES, strict=False):
        both.plot(x, 100 * pairs[name], color=color, marker="o", markersize=4, label=label)
    both.set_ylim(0, max(10, both.get_ylim()[1]))
    difference.fill_between(
        x, 100 * pairs["low"], 100 * pairs["high"], color=SERIES[2], alpha=0.2, linewidth=0
    )
    difference.plot(x, 100 * pairs["difference"], color=SERIES[2], marker="o", markersize=4)
    difference.axhline(0, color=INK, linewidth=0.8)
    for axes in (both, difference):
        whole_steps(axes)
    finish(figure, both, "Tasks solved", "completions a task", "tasks (%)", legend=True)
    return finish(figure, difference, "Learned minus alone", "completions a task", "percentage points")


def _column(metrics: "pd.DataFrame | Sequence[Mapping]", name: str, step: str) -> "pd.Series":
    """The known values of a column over the steps; empty without any."""
    import pandas as pd

    frame = pd.DataFrame(metrics)
    if name not in frame:
        return pd.Series(dtype=float)
    column = pd.to_numeric(frame[name], errors="coerce")
    return (column.set_axis(frame[step]) if step in frame else column).dropna()


def _over_steps(
    panels: "Mapping[str, Mapping[str, pd.Series]]", step: str, where: str, smooth: int | None = None
) -> "Figure":
    """A panel for each title with lines that have values. Each line is the running mean over `smooth` steps
    (None: a twentieth; 1: no mean) with the values behind it."""
    drawn = {title: lines for title, lines in panels.items() if any(map(len, lines.values()))}
    if not drawn:
        raise ValueError(f"none of {', '.join(panels)} has values in {where}")
    figure, places = new_figure(len(drawn))
    alone = all(len(lines) == 1 for lines in drawn.values())
    every = list(dict.fromkeys(label for lines in drawn.values() for label in lines))
    alike = len(drawn) > 1 and len(every) > 1 and all(list(lines) == every for lines in drawn.values())
    for number, (axes, (title, lines)) in enumerate(zip(places, drawn.items(), strict=True)):
        for color, (label, y) in zip(colors()[number * alone :], lines.items(), strict=False):
            window = max(1, len(y) // 20) if smooth is None else smooth
            if window > 1:
                axes.plot(y.index, y, color=color, alpha=0.3, linewidth=1)
                mean = y.rolling(window, min_periods=1, center=True).mean()
                axes.plot(y.index, mean, color=color, label=label)
            elif len(y):
                marker = "o" if len(y) < 30 else ""
                axes.plot(y.index, y, color=color, marker=marker, markersize=3, label=label)
        named = [label for label in lines if len(lines[label])]
        if len(named) == 1 and named != [title] and not alike:
            title = f"{title}: {named[0]}"
        finish(figure, axes, title, step, "")
        if len(named) > 1 and not alike:
            legend_below(axes, named, 45, loc="upper left", bbox_to_anchor=(0, -0.26))
        whole_steps(axes)
    if alike:
        drawn_lines = {line.get_label(): line for axes in places for line in axes.lines}
        handles = [drawn_lines[label] for label in every if label in drawn_lines]
        legend_below(figure, every, 90, handles=handles, loc="outside lower left")
    return figure
