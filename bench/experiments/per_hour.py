"""Solved kept tasks per GPU hour of GRPO runs, by what they leave out: mean over seeds with its 95% interval.

    python bench/experiments/per_hour.py runs/*lean.*

Of each run: pass@1 on the tasks that it evaluates while training, in tasks, before and after (the last one),
over the hours that it took on its GPU, engine's start included. Runs that differ in nothing but their seed
stand together. Preempted and unfinished runs are named and left out.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

from scipy.stats import t

from arcnb.models.training.log import read_metrics

SCORE = "held_out/pass@1"


def numbers(folder: Path, n_tasks: int) -> tuple[float, float, float]:
    """(tasks before, tasks after, hours)"""
    scores = [row[SCORE] * n_tasks for row in read_metrics(folder / "metrics.jsonl") if SCORE in row]
    return scores[0], scores[-1], json.loads((folder / "manifest.json").read_text())["seconds"] / 3600


def interval(values: list[float]) -> str:
    """Mean, and the 95% interval that Student's t gives where there are at least two."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return f"{mean:+.2f}"
    spread = (sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)) ** 0.5
    half = t.ppf(0.975, len(values) - 1) * spread
    return f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--tasks", type=int, default=36, help="tasks that are evaluated")
    args = parser.parse_args()
    found = defaultdict(list)
    for folder in args.runs:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["status"] != "done":
            print(f"{folder.name} is {manifest['status']}: left out")
            continue
        asked = {name: value for name, value in manifest["parameters"].items() if name != "seed"}
        found[json.dumps(asked, sort_keys=True)].append((manifest["name"], *numbers(folder, args.tasks)))
    print(
        "| first run | seeds | hours | kept tasks | gained | gained per GPU hour |\n|---|---|---|---|---|---|"
    )
    for runs in found.values():
        gained = [after - before for _, before, after, _ in runs]
        rates = [gain / hours for gain, (*_, hours) in zip(gained, runs, strict=True)]
        hours = sum(hours for *_, hours in runs) / len(runs)
        after = sum(after for _, _, after, _ in runs) / len(runs)
        cells = [runs[0][0], len(runs), f"{hours:.2f}", f"{after:.1f}", interval(gained), interval(rates)]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
