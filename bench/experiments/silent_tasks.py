"""Tasks that no sample solves, for guidance: some to train on, others of their families to keep.

    python bench/experiments/silent_tasks.py TASKS PREDICTIONS OUT [--trained 200] [--also tasks.parquet]

TASKS: generated ones with programs (notebook 01); PREDICTIONS: samples of them (notebook 03). OUT gets
trained.parquet, and kept.parquet: tasks of the families that are trained on, which no run shows. A family is
the task whose generator made it, or the generator itself. --also: further tasks, in both.parquet with the
trained ones.
"""

import argparse
from collections import defaultdict
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task_set import TaskSet, load_tasks, write_tasks
from arcnb.errors import ArcnbError
from arcnb.rl.rows.choice import tasks_solved_at_most
from arcnb.synth.splits import trainable_tasks


def family(task) -> str:
    return task.meta.get("original") or task.meta.get("generator") or task.source


def split(tasks, n_trained: int) -> tuple[list, list]:
    """(trained, kept): of each family of two or more every second task, in an order drawn from seed 0."""
    members = defaultdict(list)
    for place in rng(0, "silent").permutation(len(tasks)):
        members[family(tasks[int(place)])].append(tasks[int(place)])
    trained = [task for own in members.values() for task in own[::2]][:n_trained]
    families = {family(task) for task in trained}
    return trained, [task for name in members if name in families for task in members[name][1::2]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("predictions", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--trained", type=int, default=200)
    parser.add_argument("--also", type=Path)
    args = parser.parse_args()
    made = trainable_tasks(load_tasks(args.tasks))
    made = made.subset([task.task_id for task in made if task.program])
    silent = tasks_solved_at_most(0.0, made, PredictionSet(args.predictions))
    trained, kept = split(list(silent), args.trained)
    if len(trained) < args.trained:
        raise ArcnbError(
            f"{args.tasks}: {len(trained)} silent tasks to train on, not {args.trained}; make more"
        )
    if not kept:
        raise ArcnbError(f"{args.tasks}: no family has two silent tasks, one to train on and one to keep")
    parts = {"trained": trained, "kept": kept}
    if args.also:
        parts["both"] = [*trained, *load_tasks(args.also)]
    args.out.mkdir(parents=True, exist_ok=True)
    for name, tasks in parts.items():
        write_tasks(TaskSet(name, tuple(tasks)), args.out / f"{name}.parquet")
        print(f"{name}: {len(tasks)} tasks of {len(set(map(family, tasks)))} families")


if __name__ == "__main__":
    main()
