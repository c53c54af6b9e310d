"""Real tasks that are quickly sampled."""

from arcnb.arc.tasks.task_set import TaskSet, load_tasks


def short_tasks() -> TaskSet:
    """Four ARC tasks with short prompts."""
    tasks = load_tasks("arc-agi-1/training")
    small = [t.task_id for t in tasks if sum(p.input.size + p.output.size for p in t.train) < 250]
    return tasks.subset(small[:4])
