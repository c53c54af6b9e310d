"""Does a last share of the budget for the least certain tasks select more right outputs?

    python bench/experiments/last_share.py PREDICTIONS TASKS [--budget 8] [--repeats 200]

PREDICTIONS is a set with at least 1.5 times the budget of samples a task. Each repeat draws its samples
without replacement: the whole budget for all tasks alike, or half of it and then a whole budget more for the
least certain half of the tasks (`last_share 0.5` of notebook 03). Test outputs that one of two attempts gets
right are counted; the interval is by bootstrap over tasks.
"""

import argparse
import math

import numpy as np

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.attempts import N_ATTEMPTS, by_train_score, certainty
from arcnb.arc.scores.intervals import mean_and_interval, resampled_weights
from arcnb.arc.scores.submission import SUBMISSION_COLUMNS, task_candidates
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task_set import load_tasks


def right(candidates, task) -> float:
    """The share of a task's test outputs that an attempt gets right."""
    found = [
        any(np.array_equal(grid, pair.output) for grid in by_train_score(candidates, test)[:N_ATTEMPTS])
        for test, pair in enumerate(task.test)
    ]
    return float(np.mean(found))


def least(candidates, task) -> float:
    return min(certainty(candidates, test) for test in range(len(task.test)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("predictions")
    parser.add_argument("tasks")
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=200)
    args = parser.parse_args()
    half, most = args.budget // 2, args.budget // 2 + args.budget
    tasks = load_tasks(args.tasks)
    frame = PredictionSet(args.predictions).read(columns=list(SUBMISSION_COLUMNS), task_ids=tasks.ids)
    pools = {}
    for id_, rows in frame.groupby(frame["task_id"].astype(object)):
        made = iter(task_candidates(rows[rows["status"] == "ok"], tasks[id_]))
        pools[id_] = [next(made) if status == "ok" else None for status in rows["status"]]
    pools = {id_: pool for id_, pool in pools.items() if len(pool) >= most}
    known = [id_ for id_ in pools if all(pair.output is not None for pair in tasks[id_].test)]
    gains = np.zeros((args.repeats, len(known), 2))
    for repeat in range(args.repeats):
        drawn = {id_: rng(0, "last share", id_, repeat).permutation(len(pools[id_])) for id_ in known}

        def first(id_, n, drawn=drawn):
            return [one for one in (pools[id_][place] for place in drawn[id_][:n]) if one is not None]

        sure = {id_: least(first(id_, half), tasks[id_]) for id_ in known}
        lots = rng(0, "lots", repeat).random(len(known))
        order = sorted(range(len(known)), key=lambda number: (sure[known[number]], lots[number]))
        chosen = {known[number] for number in order[: math.ceil(len(order) / 2)]}
        for number, id_ in enumerate(known):
            shared = first(id_, most if id_ in chosen else half)
            gains[repeat, number] = right(first(id_, args.budget), tasks[id_]), right(shared, tasks[id_])
    alike, shared = gains.mean(axis=0).T
    weights = resampled_weights(len(known), rng(0, "bootstrap"))
    mean, low, high = mean_and_interval(shared - alike, weights)
    gain = f"{100 * mean:+.1f} points, 95% {100 * low:+.1f} to {100 * high:+.1f}"
    print(f"{len(known)} tasks, {args.budget} samples a task, {args.repeats} repeats:")
    print(f"selected {alike.mean():.1%}, with a last share {shared.mean():.1%}: {gain}")


if __name__ == "__main__":
    main()
