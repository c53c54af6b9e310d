"""Task sets from sources, in as many processes as there are cores, the same for any number of them.

    build_task_set("arc-agi-1/training")
    build_task_set("rearc*40000 + dsl*20000", seed=1, augment=True, workers=16)

A recipe is sources of `arcnb.synth.sources` joined by " + ", each with how many tasks to take (`*n`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import count

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.seeds import rng
from arcnb.arc.tasks import Task
from arcnb.arc.tasksets import SOURCES, TaskSet, load_tasks
from arcnb.programs.executor import Executor
from arcnb.progress import progress
from arcnb.synth.augmented import P_PLAIN, augmented_task
from arcnb.synth.rearc import RearcError, RearcSizeError, rearc_task
from arcnb.synth.reports import TaskReport
from arcnb.synth.sources import SourceError, SourceSettings, build_tasks
from arcnb.synth.splits import training_split

CHUNK = 64  # RE-ARC tasks a process makes at a time
LEAST_DIFFICULTY = 0.2  # a RE-ARC task's bound is drawn between this share of diff_ub and diff_ub


def build_task_set(
    recipe: str,
    n_tasks: int = 0,
    settings: SourceSettings = SourceSettings(),
    *,
    split: str = "",
    augment: bool = False,
    workers: int = 1,
    report: TaskReport | None = None,
) -> TaskSet:
    """The tasks of a recipe, in its order.

    n_tasks: at most so many in all; 0 takes what the recipe says. split: "trainable" or "held_out" keeps that
    part of the ARC-AGI-1 training tasks, by id. augment: RE-ARC tasks are turned and recolored together
    with their programs (see `arcnb.synth.augmented`). report: gets the counts of tasks taken and rejected.
    """
    report = TaskReport() if report is None else report
    started = time.monotonic()
    tasks: list[Task] = []
    versions = []
    for source, n in _parsed(recipe, n_tasks):
        if source in SOURCES:
            versions.append(load_tasks(source).version)
        tasks += _tasks(source, n, settings, augment, workers, report)
    report.core_seconds += workers * (time.monotonic() - started)
    if split:
        parts = training_split()._asdict()
        if split not in parts:
            raise SourceError(f"split is {split!r}, it must be one of {', '.join(parts)} or empty")
        tasks = [task for task in tasks if task.meta.get("original", task.task_id) in parts[split]]
    if not tasks:
        raise SourceError(f"{recipe} gave no task" + (f" of the {split} split" if split else ""))
    return TaskSet(recipe, tuple(tasks), ", ".join(versions) or f"seed {settings.seed}")


def _parsed(recipe: str, n_tasks: int) -> Iterator[tuple[str, int | None]]:
    left = n_tasks or None
    for part in recipe.split(" + "):
        source, star, count = part.strip().partition("*")
        if star and not count.strip().isdigit():
            raise SourceError(f"{part.strip()!r} in {recipe!r}: what follows * is a number of tasks")
        n = int(count) if star else left
        if left is not None:
            n = min(n, left) if n else left
            left -= n
        yield source.strip(), n


def _tasks(
    source: str, n: int | None, settings: SourceSettings, augment: bool, workers: int, report: TaskReport
) -> list[Task]:
    if source == "rearc":
        if n is None:
            raise SourceError("source rearc never ends: say how many tasks, for instance rearc*1000")
        return _rearc_tasks(n, settings, augment, workers, report)
    with Executor(workers) as executor:
        validating = executor if source not in SOURCES else None
        made = build_tasks(source, n, replace(settings, workers=workers), validating, report=report)
        return list(progress(made, f"tasks of {source}", n, "task"))


def _rearc_tasks(
    n: int, settings: SourceSettings, augment: bool, workers: int, report: TaskReport
) -> list[Task]:
    """The first n that can be made of the endless list; chunks are made ahead and taken in their order."""
    tasks: list[Task] = []
    with ProcessPoolExecutor(workers) as pool, progress(None, "tasks of rearc", n, "task") as bar:
        starts = count(0, CHUNK)
        ahead = deque(pool.submit(_rearc_chunk, next(starts), settings, augment) for _ in range(2 * workers))
        while len(tasks) < n:
            ahead.append(pool.submit(_rearc_chunk, next(starts), settings, augment))
            for made in ahead.popleft().result():
                if len(tasks) == n:
                    break
                if isinstance(made, Task):
                    tasks.append(made)
                    report.accept("rearc")
                    bar.update(1)
                else:
                    report.reject(made, "rearc")
        pool.shutdown(cancel_futures=True)
    return tasks


def _rearc_chunk(start: int, settings: SourceSettings, augment: bool) -> list[Task | str]:
    """The chunk's tasks, in their order; in the place of one that could not be made, the reason."""
    ids = training_split().trainable
    return [
        _rearc_one(ids[number % len(ids)], number // len(ids), settings, augment)
        for number in range(start, start + CHUNK)
    ]


def _rearc_one(task_id: str, index: int, settings: SourceSettings, augment: bool) -> Task | str:
    random = rng(settings.seed, "task set", task_id, index)
    share = LEAST_DIFFICULTY + (1 - LEAST_DIFFICULTY) * random.random()
    upper = settings.diff_lb + (settings.diff_ub - settings.diff_lb) * share
    bounds = {"diff_lb": settings.diff_lb, "diff_ub": upper, "max_cells": settings.max_cells}
    try:
        task = rearc_task(task_id, settings.seed, index, settings.n_train, **bounds)
    except RearcSizeError:
        return "too large"
    except RearcError:
        return "no valid example"
    if augment and random.random() >= P_PLAIN:
        augmentation = Augmentation.sample(random)
        turned = augmented_task(task, augmentation)
        if turned is None:
            return "program not rewritten"
        task = replace(turned, meta=task.meta | {"augmentation": _plain(augmentation)})
    return task


def _plain(augmentation: Augmentation) -> dict:
    colors = augmentation.color_map and list(augmentation.color_map)
    return {"hflip": augmentation.hflip, "n_rot90": augmentation.n_rot90, "color_map": colors}
