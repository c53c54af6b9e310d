"""Kept tasks before and after GRPO runs, by what sets the runs apart, also per GPU hour.

    python bench/experiments/per_hour.py runs/*lean.* --against on-policy

An arm is what runs that differ in nothing but their seed have in common. Read are the samples that notebook
05 takes of its eval tasks, before the first step and at the last evaluation that every run has reached, also
of runs that were stopped behind it; others are named and left out. Of each task, as means over seeds:
pass@1, pass@8, and distinct outputs among the first 8, of conversations by their last answers; intervals
(95%) by bootstrap over tasks. The smallest effect is what would have been found in four of five repetitions:
1.43 times half the width of the interval. Hours are of the steps up to that evaluation, without the engine's
start and evaluations: where runs share a GPU, divide them among themselves. Tokens are those that the
model wrote to train on. An engine in eight bits also judges in eight bits: such arms have a start of their
own, and what is compared with another engine's arm is what each has gained.
"""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean

import numpy as np
import pandas as pd

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.intervals import mean_and_interval, resampled_weights
from arcnb.arc.scores.pass_rates import pass_at_k
from arcnb.arc.seeds import rng
from arcnb.models.training.log import read_metrics
from arcnb.rl.watching.evaluations import last_answers

K = 8
MEASURES = ("pass@1", f"any of {K}", "distinct")
PRECISION = ("vllm.weight_dtype", "vllm.kv_cache_dtype")  # what judges a policy, too


def measures(rows: pd.DataFrame) -> tuple[float, ...]:
    """`MEASURES` of one task's samples."""
    n, c = len(rows), int(rows["right"].sum())
    distinct = rows.nsmallest(K, "index")["fingerprint"].dropna().nunique() / min(K, n)
    return c / n, pass_at_k(n, c, min(K, n)), distinct


def measured(folder: Path) -> dict[int, dict[str, tuple[float, ...]]]:
    """step -> task -> `MEASURES` of one run."""
    found = defaultdict(dict)
    samples = last_answers(PredictionSet(folder / "held_out"), ["fingerprint"])
    for (step, task), rows in samples.groupby(["round", "task_id"]):
        found[int(step)][task] = measures(rows)
    return found


def answers_at_once(parameters: dict) -> int:
    """Answers, or conversations, that a run samples for its next steps."""
    each_step = parameters["prompts_per_step"] * parameters["num_generations"]
    return each_step * (parameters.get("trl.steps_per_generation") or 1)


def values(runs: list[dict], step: int, tasks: list[str]) -> np.ndarray:
    """(measures, n_tasks) means over runs."""
    return np.mean([[run["found"][step][task] for task in tasks] for run in runs], axis=0).T


def read_runs(folders: list[Path], step: int | None) -> tuple[dict[str, list[dict]], int]:
    """Runs by their arm's name, and the step at which they are judged."""
    runs = []
    for folder in folders:
        manifest = json.loads((folder / "manifest.json").read_text())
        found = measured(folder) if (folder / "held_out").is_dir() else {}
        rows = read_metrics(folder / "metrics.jsonl") if (folder / "metrics.jsonl").is_file() else []
        parameters = {name: value for name, value in manifest["parameters"].items() if name != "seed"}
        steps = [row for row in rows if "step_time" in row]
        times = [row["step_time"] for row in steps]
        # a step that trains on samples of an earlier one has no length of its own
        lengths = [row.get("completions/mean_length", 0) for row in steps]
        tokens = np.cumsum(lengths) * answers_at_once(parameters)
        engine = " ".join(parameters[name] for name in PRECISION if parameters.get(name, "auto") != "auto")
        one = {"manifest": manifest, "found": found, "times": times, "tokens": tokens, "engine": engine}
        runs.append(one | {"folder": folder, "arm": json.dumps(parameters, sort_keys=True)})
    begun = [run for run in runs if len(run["found"]) > 1]
    step = step or min((max(run["found"]) for run in begun), default=0)
    arms, names = defaultdict(list), {}
    for run in runs:
        if step not in run["found"] or 0 not in run["found"]:
            reached = max(run["found"], default="none")
            print(f"{run['folder'].name} is {run['manifest']['status']}, last evaluation {reached}: left out")
            continue
        name = re.sub(r"seed_\d+\.?|set_", "", run["manifest"]["name"].partition(".")[2])
        arms[names.setdefault(run["arm"], name or run["manifest"]["name"])].append(run)
    return arms, step


def cell(differences: np.ndarray, weights: np.ndarray, effect: bool = False) -> str:
    middle, low, high = (100 * value for value in mean_and_interval(differences, weights))
    said = f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"
    return said + (f", {1.43 * (high - low) / 2:.1f}" if effect else "")


def print_table(head: list[str], rows: list[list[str]]) -> None:
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--against", help="the arm that others are compared with; default: the first")
    parser.add_argument("--step", type=int, help="the evaluation; default: the last that all runs have")
    parser.add_argument("--json", type=Path, help="gets run -> step -> task -> pass@1, pass@8, distinct")
    args = parser.parse_args()
    arms, step = read_runs(args.runs, args.step)
    if not arms:
        parser.error("none of the runs has samples of eval tasks before and after some steps")
    every = [run for runs in arms.values() for run in runs]
    if args.json:
        args.json.write_text(json.dumps({run["folder"].name: run["found"] for run in every}))
    tasks = sorted(set.intersection(*(set(run["found"][at]) for run in every for at in (0, step))))
    weights = resampled_weights(len(tasks), rng(0, "kept tasks"))
    rows, before, gained = [], {}, {}
    for engine in sorted({run["engine"] for run in every}):
        same = [run for run in every if run["engine"] == engine]
        before[engine] = values(same, 0, tasks)
        start = [f"{100 * value:.1f}" for value in before[engine].mean(axis=1)]
        rows.append([f"before {engine}".strip(), len(same), "", "", "", *start, "", "", ""])
    print(f"{len(tasks)} tasks, evaluated before (by all {len(every)} runs) and at step {step}")
    for name, runs in arms.items():
        after = values(runs, step, tasks)
        gained[name] = after - before[runs[0]["engine"]]
        hours = mean(sum(run["times"][:step]) for run in runs) / 3600
        tokens = mean(run["tokens"][step - 1] for run in runs) / 1e6
        level = [f"{100 * value:.1f}" for value in after.mean(axis=1)]
        speed = f"{3600 * hours / step:.2f}" if hours else ""
        rate = f"{len(tasks) * gained[name][0].mean() / hours:+.2f}" if hours else ""
        changes = [cell(one, weights) for one in gained[name][:2]]
        rows.append([name, len(runs), speed, f"{hours:.3f}", f"{tokens:.2f}", *level, *changes, rate])
    gains = [f"{one} gained, points" for one in MEASURES[:2]]
    levels = [f"{one}, %" for one in MEASURES]
    costs = ["s a step", "hours", "million tokens"]
    print_table(["arm", "seeds", *costs, *levels, *gains, "tasks per GPU hour"], rows)
    against = next((name for name in arms if name == args.against), next(iter(arms)))
    others = [
        [name, *(cell(one, weights, effect=True) for one in gained[name] - gained[against])]
        for name in arms
        if name != against
    ]
    if others:
        print_table([f"against {against}", *(f"{one}: points, smallest effect" for one in MEASURES)], others)


if __name__ == "__main__":
    main()
