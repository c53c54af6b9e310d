"""How often the guard's signal `held_out` fires on runs that lose, that stand still and that gain.

    python bench/experiments/falls.py runs/*lean.*on-policy*

From the evaluations of these runs, which evaluated the same tasks at the same steps, each task's rate is
taken as mean over runs. Samples are drawn anew from three courses of them, with an evaluation every 25 steps:
`recorded` (interpolated), `flat` (the mean of the first three evaluations) and `rising` (a step of 1 in the
logit up to the end). Printed is, for evaluations of several sizes and several thresholds, the share of 200
simulated runs with an alarm and the mean step of the first.
"""

import argparse
from pathlib import Path

import numpy as np

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.change import change_over_tasks
from arcnb.arc.seeds import rng
from arcnb.rl.plan.guard import GuardOptions, Thresholds
from arcnb.rl.watching.evaluations import last_answers
from arcnb.rl.watching.guard import CHANGE_HIGH, CollapseMonitor

EVERY = 25
RUNS = 200
SIZES = ((64, 2), (64, 4), (64, 8), (36, 16))  # tasks, samples of each
SHARES = (0.5, 0.7, 0.75, 0.8, 0.9)


def courses(folders: list[Path]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps of the evaluations, and of each course the tasks' rates at them, (n_tasks, n_steps)."""
    found = [last_answers(PredictionSet(folder / "held_out")) for folder in folders]
    rates = sum(rows.groupby(["task_id", "round"])["right"].mean().unstack() for rows in found) / len(found)
    if rates.isna().any(axis=None):
        raise SystemExit("these runs did not all evaluate the same tasks at the same steps")
    seen, values = rates.columns.to_numpy(float), rates.to_numpy()
    steps = np.arange(0, seen[-1] + 1, EVERY)
    start = np.log((values[:, :1] + 0.02) / (1.02 - values[:, :1]))
    return steps, {
        "recorded": np.stack([np.interp(steps, seen, row) for row in values]),
        "flat": np.repeat(values[:, :3].mean(axis=1, keepdims=True), len(steps), axis=1),
        "rising": 1 / (1 + np.exp(-(start + np.linspace(0, 1, len(steps))))),
    }


def first_alarms(rates: np.ndarray, steps: np.ndarray, samples: int, draws) -> dict[float, float]:
    """threshold -> step of the first alarm in one simulated run, NaN without one."""
    right = draws.binomial(samples, rates).astype(float)
    of, passed = np.full((len(rates), 2), float(samples)), right.mean(axis=0) / samples
    monitors = {
        share: CollapseMonitor(GuardOptions(thresholds=Thresholds(held_out=share))) for share in SHARES
    }
    alarms = dict.fromkeys(SHARES, np.nan)
    for i, step in enumerate(steps):
        row = {"held_out/pass@1": passed[i]}
        if i:
            best = int(passed[:i].argmax())
            row[CHANGE_HIGH] = change_over_tasks(right[:, [best, i]], of, draws).high
        for share, monitor in monitors.items():
            if monitor.update(int(step), row) and np.isnan(alarms[share]):
                alarms[share] = step
    return alarms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    steps, found = courses(parser.parse_args().runs)
    for name, rates in found.items():
        print(f"{name}: {' '.join(f'{100 * one:.1f}' for one in rates.mean(axis=0))}")
    print(f"\n| course | tasks x samples | {' | '.join(map(str, SHARES))} |")
    print("|---" * (len(SHARES) + 2) + "|")
    for name, rates in found.items():
        for tasks, samples in SIZES:
            cells, alarms = [], []
            for i in range(RUNS):
                draws = rng(0, "falls", name, tasks, samples, i)
                alarms.append(
                    first_alarms(rates[draws.integers(0, len(rates), tasks)], steps, samples, draws)
                )
            for share in SHARES:
                when = np.array([one[share] for one in alarms])
                fired = ~np.isnan(when)
                cells.append(f"{fired.mean():.2f}" + (f", {when[fired].mean():.0f}" if fired.any() else ""))
            print(f"| {name} | {tasks} x {samples} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
