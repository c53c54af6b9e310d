"""Real tasks that are quickly sampled."""

from dataclasses import replace

from arcnb.arc.tasks.task_set import TaskSet, load_tasks

PROGRAM = "def transform(grid):\n    return grid[::-1]\n"


def short_tasks(n: int = 4) -> TaskSet:
    """ARC tasks with short prompts."""
    tasks = load_tasks("arc-agi-1/training")
    small = [t.task_id for t in tasks if sum(p.input.size + p.output.size for p in t.train) < 250]
    return tasks.subset(small[:n])


def taught_tasks() -> TaskSet:
    """Six of them that say PROGRAM as their own."""
    return TaskSet("small", tuple(replace(task, program=PROGRAM) for task in short_tasks(6)))
