"""Samples of adapters side by side, means over the seeds that trained them.

    python bench/experiments/by_adapter.py shipped=SET both=SET,SET

Each SET is a prediction set of notebook 03, of the same tasks; those of one name are one arm's seeds. Of each
task, as means over an arm's sets: pass@1, any of 8, distinct outputs among the first 8 samples, and whether
any of its samples is right. Others are compared with the first arm, task by task; intervals and the smallest
effect as in per_hour.py. Only tasks are judged of which every set has equally many samples.
"""

import argparse

import numpy as np
from per_hour import MEASURES, cell, measures, print_table

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.intervals import mean_and_interval, resampled_weights
from arcnb.arc.seeds import rng
from arcnb.rl.watching.evaluations import last_answers
from arcnb.search.comparing.sets import open_sets


def measured(predictions: PredictionSet) -> dict[str, tuple[int, tuple[float, ...]]]:
    """task -> number of samples, `MEASURES` and whether any sample is right."""
    return {
        task: (len(rows), (*measures(rows), float(rows["right"].any())))
        for task, rows in last_answers(predictions, ["fingerprint"]).groupby("task_id")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("arms", nargs="+", metavar="NAME=SET,SET")
    arms = {}
    for arm in parser.parse_args().arms:
        name, _, folders = arm.partition("=")
        if name in arms or not folders:
            parser.error(f"{arm!r} must be a name of its own, =, and one prediction set or more")
        arms[name] = [measured(one) for one in open_sets(folders).values()]
    sets = [one for own in arms.values() for one in own]
    every = set.union(*map(set, sets))
    tasks = sorted(task for task in every if len({one[task][0] if task in one else 0 for one in sets}) == 1)
    if not tasks:
        parser.error("no task has equally many samples in all of these sets")
    samples = sorted({sets[0][task][0] for task in tasks})
    print(f"{len(tasks)} tasks of {len(every)}, samples a task: {', '.join(map(str, samples))}")
    values = {
        name: np.mean([[one[task][1] for task in tasks] for one in own], axis=0).T
        for name, own in arms.items()
    }
    weights = resampled_weights(len(tasks), rng(0, "adapters"))
    rows = []
    for name, own in arms.items():
        solved = [round(sum(one[task][1][-1] for task in tasks)) for one in own]
        level = [
            "{:.2f} ({:.2f} to {:.2f})".format(*(100 * value for value in mean_and_interval(one, weights)))
            for one in values[name]
        ]
        rows.append([name, ", ".join(map(str, solved)), *level])
    heads = [f"{one}, %" for one in (*MEASURES, "any sample")]
    print_table(["arm", "tasks solved by any sample", *heads], rows)
    first = next(iter(arms))
    others = [
        [name, *(cell(one, weights, effect=True) for one in values[name] - values[first])]
        for name in arms
        if name != first
    ]
    if others:
        print_table([f"against {first}", *(f"{one}: points" for one in (*MEASURES, "any sample"))], others)


if __name__ == "__main__":
    main()
