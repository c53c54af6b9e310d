"""Task sets from sources, in as many processes as there are cores, the same for any number of them.

    build_task_set("arc-agi-1/training")
    build_task_set("rearc*40000 + dsl*20000", seed=1, augment=True, workers=16)

A recipe is sources of `arcnb.synth.sources` joined by " + ", each with how many tasks to take (`*n`).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.seeds import rng
from arcnb.arc.tasks import Task
from arcnb.arc.tasksets import SOURCES, TaskSet, load_tasks
from arcnb.programs.executor import Executor
from arcnb.progress import progress
from arcnb.synth.augmented import augmented_task
from arcnb.synth.rearc import RearcError, rearc_task
from arcnb.synth.sources import SourceError, SourceSettings, build_tasks
from arcnb.synth.splits import training_split

CHUNK = 64  # tasks a process makes at a time
P_PLAIN = 0.25  # share of augmented tasks that keep their orientation and colors
LEAST_DIFFICULTY = 0.2  # a RE-ARC task's bound is drawn between this share of diff_ub and diff_ub


def build_task_set(
    recipe: str,
    n_tasks: int = 0,
    settings: SourceSettings = SourceSettings(),
    *,
    split: str = "",
    augment: bool = False,
    workers: int = 1,
) -> TaskSet:
    """The tasks of a recipe, in its order.

    n_tasks: at most so many in all; 0 takes what the recipe says. split: "trainable" or "held_out" keeps that
    part of the ARC-AGI-1 training tasks, by id. augment: RE-ARC tasks are turned and recolored together
    with their programs (see `arcnb.synth.augmented`).
    """
    tasks: list[Task] = []
    versions = []
    for source, n in _parsed(recipe, n_tasks):
        if source in SOURCES:
            versions.append(load_tasks(source).version)
        tasks += _tasks(source, n, settings, augment, workers)
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


def _tasks(source: str, n: int | None, settings: SourceSettings, augment: bool, workers: int) -> list[Task]:
    if source == "rearc":
        if n is None:
            raise SourceError("source rearc never ends: say how many tasks, for instance rearc*1000")
        return _rearc_tasks(n, settings, augment, workers)
    with Executor(workers) as executor:
        made = build_tasks(source, n, settings, executor if source not in SOURCES else None)
        return list(progress(made, f"tasks of {source}", n, "task"))


def _rearc_tasks(n: int, settings: SourceSettings, augment: bool, workers: int) -> list[Task]:
    """The first n that could be made of the endless list; chunks are made in any order, kept in theirs."""
    tasks: list[Task] = []
    with ProcessPoolExecutor(workers) as pool, progress(None, "tasks of rearc", n, "task") as bar:
        first = 0
        while len(tasks) < n:
            wave = [(start, settings, augment) for start in range(first, first + CHUNK * 4 * workers, CHUNK)]
            first += CHUNK * len(wave)
            for made in pool.map(_rearc_chunk, wave):
                tasks += made
                bar.update(min(len(made), n - bar.n))
    return list(islice(tasks, n))


def _rearc_chunk(arguments: tuple[int, SourceSettings, bool]) -> list[Task]:
    start, settings, augment = arguments
    ids = training_split().trainable
    made = []
    for number in range(start, start + CHUNK):
        task_id, index = ids[number % len(ids)], number // len(ids)
        random = rng(settings.seed, "task set", task_id, index)
        share = LEAST_DIFFICULTY + (1 - LEAST_DIFFICULTY) * random.random()
        upper = settings.diff_lb + (settings.diff_ub - settings.diff_lb) * share
        try:
            task = rearc_task(
                task_id,
                settings.seed,
                index,
                settings.n_train,
                diff_lb=settings.diff_lb,
                diff_ub=upper,
                max_cells=settings.max_cells,
            )
        except RearcError:  # no small enough example at this difficulty: the next index brings another
            continue
        if augment and random.random() >= P_PLAIN:
            augmentation = Augmentation.sample(random)
            turned = augmented_task(task, augmentation)
            if turned is None:
                continue
            task = replace(turned, meta=task.meta | {"augmentation": _plain(augmentation)})
        made.append(task)
    return made


def _plain(augmentation: Augmentation) -> dict:
    colors = augmentation.color_map and list(augmentation.color_map)
    return {"hflip": augmentation.hflip, "n_rot90": augmentation.n_rot90, "color_map": colors}
