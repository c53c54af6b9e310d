"""The table of grpo_arm.py's results, and a page of curves: python bench/experiments/grpo_table.py DIR... [--page FILE.html]

Rates are in percent, with 95% intervals by bootstrap over tasks, whose values are means over the seeds; of several
seeds (lowest to highest), too. Before is what all runs from that start found together, whatever their arm.
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy as np

ORDER = [
    *("learn", "learn-fast", "learn-valid", "learn-focus", "a0", "a", "b", "c", "d0", "d1", "v", "e"),
    *("rank1", "rank1-fast", "rank8", "rank8-fast", "rank32", "wide", "wide8"),
]
SETS = ("trained", "kept", "held_out")
PAIRS = (
    ("a", "b", "a sampler that matches the learner"),
    ("b", "c", "truncated completions kept, with a ramp"),
    ("c", "d1", "beta 0.02 -> 0.01"),
    ("d1", "d0", "beta 0.01 -> 0"),
    ("c", "v", "no point for outputs that are merely valid"),
    ("v", "e", "the guard"),
    ("rank1", "rank1-fast", "learning rate 4e-5 -> 1e-4"),
    ("rank8", "rank8-fast", "learning rate 4e-5 -> 1e-4"),
    ("rank1", "rank8", "rank"),
    ("rank1-fast", "rank8-fast", "rank"),
    ("rank8", "rank32", "rank"),
    ("rank32", "learn-fast", "the adapter's own LoRA"),
    ("learn-fast", "wide", "more tasks"),
    ("rank8", "wide8", "more tasks"),
    ("wide8", "wide", "rank"),
)
SERIES = {
    "reward": "reward",
    "completions/mean_length": "completion length (tokens)",
    "truncated_completions_ratio": "truncated",
    "solved_tasks_ratio": "solved, of the training samples",
    "unique_outputs": "unique outputs in a group",
    "kl": "KL to the start (nats a token)",
    "sampling/logp_gap": "sampler-learner gap (nats a token)",
    "sampling/importance_ratio": "importance ratio",
    "sampling/ess": "effective sample size",
    "entropy": "entropy (nats a token)",
    "unique_3gram_ratio": "distinct 3-grams",
}


def by_task(found: list[dict], pick) -> np.ndarray:
    """(n_tasks,) means over runs, for the tasks of all; found: [{task: [n, solved, unique, valid, cut, tokens]}]"""
    tasks = [task for task in found[0] if all(task in one for one in found)]
    return np.array([[pick(one[task]) for task in tasks] for one in found], dtype=float).mean(axis=0)


def resampled(n: int) -> np.ndarray:
    """(2000, n) tasks drawn with replacement; always the same."""
    return np.random.default_rng(0).integers(0, n, (2000, n))


def rates(found: list[dict], pick) -> tuple[float, float, float]:
    """mean over tasks and its 95% interval"""
    values = by_task(found, pick)
    return (values.mean(), *np.percentile(values[resampled(len(values))].mean(axis=1), [2.5, 97.5]))


def starts(runs: list[dict], those: list[dict], which: str) -> list[dict]:
    """What is known of the common start: evaluations of the tasks that `those` were evaluated on, by any run."""
    tasks = set(those[0]["evaluations"]["end"][which])
    n = next(iter(those[0]["evaluations"]["end"][which].values()))[0]
    found = [run["evaluations"]["start"][which] for run in runs if "start" in run["evaluations"]]
    return [one for one in found if set(one) == tasks and next(iter(one.values()))[0] == n]


def difference(first: list[dict], second: list[dict], pick) -> tuple[float, float, float]:
    """second - first, paired by task, and its 95% interval"""
    values = by_task(second, pick) - by_task(first, pick)
    return (values.mean(), *np.percentile(values[resampled(len(values))].mean(axis=1), [2.5, 97.5]))


def ratio(before: list[dict], after: list[dict]) -> tuple[float, float, float]:
    """after / before of the pass rate a sample, and its 95% interval, without an upper end (inf) where the tasks
    that were solved before are so few that many draws have none; a draw with none at all, before and after, bears
    any ratio: it counts as 0 for the lower end and as inf for the upper one."""
    a, b = (by_task(found, PICKS["a sample"]) for found in (before, after))
    picks = resampled(len(a))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = b[picks].mean(axis=1) / a[picks].mean(axis=1)
        middle = b.mean() / a.mean() if a.any() or b.any() else float("nan")
    low = np.percentile(np.nan_to_num(ratios, nan=0.0, posinf=np.inf), 2.5, method="lower")
    high = np.percentile(np.nan_to_num(ratios, nan=np.inf, posinf=np.inf), 97.5, method="higher")
    return (middle, low, high)


PICKS = {
    "a sample": lambda row: 100 * row[1] / row[0],
    "any": lambda row: 100.0 * (row[1] > 0),
    "unique": lambda row: 100 * row[2] / row[0],
    "truncated": lambda row: 100 * row[4] / row[0],
}


def cell(found: list[dict], pick) -> str:
    text = "{:.1f} [{:.1f}, {:.1f}]".format(*rates(found, pick))
    if len(found) == 1:
        return text
    means = [by_task([one], pick).mean() for one in found]
    return f"{text} ({min(means):.1f} to {max(means):.1f})"


def started(before: list[dict], pick) -> str:
    return f"{rates(before, pick)[0]:.1f}" if before else "-"  # no run of these folders evaluated the start


def tail(run: dict, name: str, n: int = 10) -> float:
    values = [value for _, value in run["curves"].get(name, [])][-n:]
    return statistics.mean(values) if values else float("nan")


def table(runs: list[dict]) -> str:
    lines = []
    arms = [arm for arm in ORDER if any(run["arm"] == arm for run in runs)]
    for which in SETS:
        lines += ["", f"{which}: before -> after, % (a sample; any of n; unique outputs; truncated)", ""]
        lines += [
            "| arm | seeds | steps | a sample | ratio | any | unique | truncated |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for arm in arms:
            those = [run for run in runs if run["arm"] == arm]
            for when in ("end", "best"):
                ended = [run for run in those if when in run["evaluations"]]
                if not ended:
                    continue
                before = starts(runs, ended, which)
                after = [run["evaluations"][when][which] for run in ended]
                cells = [f"{started(before, pick)} -> {cell(after, pick)}" for pick in PICKS.values()]
                text = "{:.2f} [{:.2f}, {:.2f}]".format(*ratio(before, after)) if before else "-"
                steps = ", ".join(str(run["steps"]) for run in ended)
                name = arm if when == "end" else f"{arm}, best"
                seeds = f"{len(ended)}" if len(ended) == len(those) else f"{len(ended)} of {len(those)}"
                lines.append(
                    f"| {name} | {seeds} | {steps} | {cells[0]} | {text} | " + " | ".join(cells[1:]) + " |"
                )
    lines += compared(runs)
    lines += held_out_curves(runs, arms)
    lines += [
        "",
        "last 10 steps of training (mean over seeds)",
        "",
        "| arm | reward | length | truncated | unique | KL | gap | ratio | ESS | entropy | s a step | rollbacks, status |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        those = [run for run in runs if run["arm"] == arm]
        names = [
            "reward",
            "completions/mean_length",
            "truncated_completions_ratio",
            "unique_outputs",
            "kl",
            "sampling/logp_gap",
            "sampling/importance_ratio",
            "sampling/ess",
            "entropy",
            "step_time",
        ]
        numbers = [statistics.mean(tail(run, name) for run in those) for name in names]
        states = ", ".join(f"{run['rollbacks']} {run['status']}" for run in those)
        lines.append(f"| {arm} | " + " | ".join(f"{value:.3g}" for value in numbers) + f" | {states} |")
    return "\n".join(lines)


def as_long(runs: list[dict], first: str, second: str) -> bool:
    """Whether runs of the two arms took about the same number of steps, on average."""
    a, b = (statistics.mean(run["steps"] for run in runs if run["arm"] == arm) for arm in (first, second))
    return max(a, b) <= 1.2 * min(a, b)


def compared(runs: list[dict]) -> list[str]:
    """Arms that differ in one thing, after as many steps of training."""
    lines = []
    for first, second, what in PAIRS:
        ended = {
            arm: [
                run["evaluations"]["end"] for run in runs if run["arm"] == arm and "end" in run["evaluations"]
            ]
            for arm in (first, second)
        }
        if not all(ended.values()) or not as_long(runs, first, second):
            continue
        cells = [
            "{:+.1f} [{:+.1f}, {:+.1f}]".format(
                *difference([one[which] for one in ended[first]], [one[which] for one in ended[second]], pick)
            )
            for which in SETS
            for pick in (PICKS["a sample"], PICKS["any"], PICKS["unique"])
        ]
        lines.append(f"| {first} -> {second} | {what} | " + " | ".join(cells) + " |")
    if not lines:
        return []
    heads = [f"{which}: {name}" for which in SETS for name in ("a sample", "any", "unique")]
    return [
        *("", "after training, points between arms that differ in one thing (intervals are over tasks)", ""),
        "| arms | what differs | " + " | ".join(heads) + " |",
        "|---" * (len(heads) + 2) + "|",
        *lines,
    ]


def held_out_curves(runs: list[dict], arms: list[str]) -> list[str]:
    """Looks at the kept tasks while training; unfinished runs have them, too."""
    steps = sorted({look["step"] for run in runs for look in run["curve"]})
    if not steps:
        return []
    lines = [
        "",
        "kept tasks while training: % of samples solved, (% of tasks), unique outputs; mean over the seeds that got there",
        "",
    ]
    lines += [
        "| arm | " + " | ".join(f"step {step}" for step in steps) + " |",
        "|---" * (len(steps) + 1) + "|",
    ]
    for arm in arms:
        cells, n_runs = [], sum(run["arm"] == arm for run in runs)
        for step in steps:
            # After a rollback the same step is looked at again: the last look counts.
            last = [{look["step"]: look for look in run["curve"]} for run in runs if run["arm"] == arm]
            looks = [found[step] for found in last if step in found]
            solved, tasks, unique = (
                statistics.mean(look[name] for look in looks) if looks else float("nan")
                for name in ("per_sample", "any", "unique")
            )
            fewer = "" if len(looks) == n_runs else f", {len(looks)} of {n_runs} seeds"
            cells.append(f"{100 * solved:.1f} ({100 * tasks:.0f}) {unique:.2f}{fewer}" if looks else "-")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return lines


def page(runs: list[dict], path: Path) -> None:
    import base64
    import io

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    arms = [arm for arm in ORDER if any(run["arm"] == arm for run in runs)]
    colors = dict(zip(arms, plt.get_cmap("tab20").colors, strict=False))
    found = [run["evaluations"]["start"]["kept"] for run in runs if "start" in run["evaluations"]]
    before = statistics.mean(map(mean, found)) if found else None
    fig, axes = plt.subplots(3, 4, figsize=(17, 10))
    for ax, (name, title) in zip(
        axes.flat, {**SERIES, "": "kept tasks: pass rate a sample (%)"}.items(), strict=True
    ):
        for arm in arms:
            for number, run in enumerate(run for run in runs if run["arm"] == arm):
                points = (
                    run["curves"].get(name, [])
                    if name
                    else [
                        *([[0, 100 * before]] if before else []),
                        *([point["step"], 100 * point["per_sample"]] for point in run["curve"]),
                        *(
                            [[run["steps"], 100 * mean(run["evaluations"]["end"]["kept"])]]
                            if "end" in run["evaluations"]
                            else []
                        ),
                    ]
                )
                if not points:
                    continue
                x, y = zip(*points, strict=True)
                if name and len(y) > 9:
                    y = np.convolve(np.pad(np.array(y, float), 4, mode="edge"), np.ones(9) / 9, "valid")
                ax.plot(
                    x,
                    y,
                    color=colors[arm],
                    alpha=0.85,
                    lw=1.2,
                    marker="" if name else "o",
                    ms=3,
                    label=arm if not number else None,
                )
        ax.set_title(title, fontsize=10)
        if name in ("kl", "sampling/logp_gap"):
            ax.set_yscale("log")
        ax.grid(alpha=0.25)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="lower center", ncol=len(arms))
    fig.tight_layout(rect=(0, 0.03, 1, 1))
    picture = io.BytesIO()
    fig.savefig(picture, format="png", dpi=90)
    path.with_suffix(".png").write_bytes(picture.getvalue())
    image = base64.b64encode(picture.getvalue()).decode()
    path.write_text(
        "<!doctype html><meta charset='utf-8'><title>GRPO experiments</title>"
        "<style>body{font:15px/1.5 system-ui;margin:2em}pre{overflow:auto}img{max-width:100%}</style>"
        "<h1>GRPO experiments</h1><p>Curves: means over 9 steps, one line a seed; the last is of small evaluations. "
        "How these arms were run, and what follows: docs/log.md.</p>"
        f"<img src='data:image/png;base64,{image}'><pre>{table(runs)}</pre>"
    )


def mean(found: dict) -> float:
    return by_task([found], lambda row: row[1] / row[0]).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    found = [
        json.loads(path.read_text()) for folder in args.folders for path in sorted(folder.glob("*-s*.json"))
    ]
    runs = [run for run in found if "arm" in run]  # other experiments may share the folder
    if not runs:
        print("no results")
        return
    print(table(runs))
    if args.page:
        page(runs, args.page)


if __name__ == "__main__":
    main()
