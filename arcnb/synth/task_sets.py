"""Task sets from sources, in as many processes as there are cores, the same for any number of them.

    build_task_set("arc-agi-1/training")
    build_task_set("rearc*40000 + dsl*20000", settings=SourceSettings(seed=1), augment=True, workers=16)

A recipe is sources of `arcnb.synth.sources` joined by " + ", each with how many tasks to take (`*n`).
A path with " + " or "*" in it stands in double quotes. Task ids are those of the source; where a recipe has
several BARC-style files, the file's name is in the ids of their tasks: `barc_mine_000007`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import combinations, islice

from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.errors import ArcnbError, some
from arcnb.machine.progress import progress
from arcnb.plans import refuse
from arcnb.programs.executor.executor import Executor
from arcnb.synth.sources import (
    SourceSettings,
    barc_stem,
    build_tasks,
    check_source,
    counted,
    generators_of,
    is_drawn,
    never_ends,
    rearc_part,
    rearc_tasks,
    source_version,
)
from arcnb.synth.splits import is_held_out
from arcnb.synth.validation.reports import TaskReport
from arcnb.synth.validation.validation import origin
from arcnb.values import bare, split_unquoted

SPLITS = ("", "trainable", "held_out")


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

    n_tasks: at most so many in all, of a task set drawn with the seed; 0 takes what the recipe says. split:
    "trainable" leaves reserved tasks out, "held_out" all others, and n_tasks counts what is kept (but a
    source that never ends makes so many before). augment: RE-ARC tasks are turned and recolored together with
    their programs (see `arcnb.synth.rearc.augmented`). report: gets the counts of tasks taken and rejected.
    ArcnbError names the source, the split or the number that is wrong, before a task is made, and a recipe
    that gives no task. One that gives an id twice is refused before a task is made where its text tells, else
    at that task.
    """
    report = TaskReport() if report is None else report
    check_recipe(recipe, n_tasks, split)
    parts = [(source, n, never_ends(source)) for source, n in parsed_recipe(recipe)]
    stems = _stems(recipe)
    taken: dict[str, str] = {}
    started = time.monotonic()
    tasks: list[Task] = []
    versions = []
    for source, n, endless in parts:
        left = n_tasks - len(tasks) if n_tasks else None
        if version := source_version(source):
            versions.append(version)
        if left is not None and (not split or (n is None and endless)):
            n = left if n is None else min(n, left)
        of_source, others = TaskReport(), Counter()
        making = source_tasks(source, n, settings, augment=augment, workers=workers, report=of_source)
        with closing(making):
            if split:
                making, n = _of_split(making, split, others), left
                if left and is_drawn(source):
                    making = _drawn(making, left, settings.seed, of_source)
                making = islice(making, left)
            named = _with_stem(making, stems[source]) if len(stems) > 1 and source in stems else making
            try:
                tasks += progress(_new(named, source, taken), f"tasks of {source}", n, "task")
            finally:
                report.add(of_source, others, "of the other split")
    report.core_seconds += workers * (time.monotonic() - started)
    if not tasks:
        rejected = ", ".join(f"{reason} {n:,}" for reason, n in report.rejected.most_common())
        raise ArcnbError(
            f"{recipe} gave no task"
            + (f" of the {split} split" if split else "")
            + (f"; rejected: {rejected}" if rejected else "")
        )
    return TaskSet(recipe, tuple(tasks), ", ".join(versions) or f"seed {settings.seed}")


def check_recipe(recipe: str, n_tasks: int = 0, split: str = "") -> None:
    """ArcnbError for what `build_task_set` cannot be asked, before a task is made or read."""
    if split not in SPLITS:
        raise ArcnbError(f"split is {split!r}, it must be one of {', '.join(SPLITS[1:])} or empty")
    if n_tasks < 0:
        raise ArcnbError(f"n_tasks must not be negative, it is {n_tasks}")
    refuse(recipe_problems(recipe, some=n_tasks > 0))


def _stems(recipe: str) -> dict[str, str]:
    """{BARC-style source of a recipe: its file's name}."""
    sources = (source for source, n in parsed_recipe(recipe) if n != 0)
    return {source: stem for source in sources if (stem := barc_stem(source)) is not None}


def _repeated(recipe: str) -> list[str]:
    """Where the sources of a recipe would give the same task ids, a sentence each."""
    sources, stems = [source for source, n in parsed_recipe(recipe) if n != 0], _stems(recipe)
    found = [
        f"{source} stands {n} times in the recipe and would give the same tasks again; name it once"
        for source, n in Counter(sources).items()
        if n > 1
    ]
    for one, other in combinations(dict.fromkeys(sources), 2):
        if shared := generators_of(one) & generators_of(other):
            found.append(
                f"{one} and {other} would give the same tasks, of {some(sorted(shared))}; take only one "
                "of them"
            )
    for stem, n in Counter(stems.values()).items():
        if n > 1:
            same = " and ".join(source for source in stems if stems[source] == stem)
            found.append(f"{same} would give the same task ids, which hold the file's name; rename one file")
    return found


def _of_split(tasks: Iterable[Task], split: str, others: Counter) -> Iterator[Task]:
    """The tasks of a split; `others` counts the rest by origin. Generators are not given up for them."""
    for task in tasks:
        if is_held_out(task) == (split == "held_out"):
            yield task
        else:
            others[origin(task)] += 1


def _drawn(tasks: Iterable[Task], n: int, seed: int, report: TaskReport) -> TaskSet:
    """At most n of the tasks, drawn as a task set draws; the report forgets that it counted the others."""
    found = TaskSet("", tuple(tasks))
    drawn = found.sample(min(n, len(found)), seed) if len(found) else found
    for task in found:
        if task not in drawn:
            report.accepted -= 1
            report.accepted_by[origin(task)] -= 1
    return drawn


def _with_stem(tasks: Iterable[Task], stem: str) -> Iterator[Task]:
    for task in tasks:
        yield replace(task, task_id=task.task_id.replace("barc_", f"barc_{stem}_", 1))


def _new(tasks: Iterable[Task], source: str, taken: dict[str, str]) -> Iterator[Task]:
    """The tasks as they come; `taken` says which source gave an id. ArcnbError when another one did."""
    for task in tasks:
        if (other := taken.setdefault(task.task_id, source)) != source:
            raise ArcnbError(
                f"task id {task.task_id!r} is in {other} and in {source}; take only one of them, or give "
                "the tasks of one other ids"
            )
        yield task


def parsed_recipe(recipe: str) -> Iterator[tuple[str, int | None]]:
    """(source, number of tasks or None) of each part of a recipe. ArcnbError for one that cannot be read."""
    for part in split_unquoted(recipe, " + "):
        source, *counts = split_unquoted(part.strip(), "*", 1)
        if counts and not counts[0].strip().isdecimal():
            raise ArcnbError(f"{part.strip()!r} in {recipe!r}: what follows * is a number of tasks")
        if not bare(source):
            raise ArcnbError(f"{recipe!r} has a part without a source")
        yield bare(source), int(counts[0]) if counts else None


def recipe_problems(*recipes: str, some: bool = False) -> list[str]:
    """What is wrong with these recipes, a sentence each, before a task is made. some: it is said how many
    tasks are taken in all."""
    found = []
    for recipe in recipes:
        try:
            for source, n in parsed_recipe(recipe):
                check_source(source)
                if never_ends(source) and n is None and not some:
                    found.append(
                        f"source {source} never ends: say how many tasks, for instance {source}*1000"
                    )
            found += _repeated(recipe)
        except ArcnbError as error:
            found.append(str(error))
    return found


def source_tasks(
    source: str,
    n: int | None,
    settings: SourceSettings,
    *,
    augment: bool = False,
    workers: int = 1,
    report: TaskReport | None = None,
) -> Iterator[Task]:
    """The first n tasks of one source, validated and counted, made by so many processes and in order.

    Of a source that ends, None takes all. augment: see `build_task_set`.
    """
    report = TaskReport() if report is None else report
    settings = replace(settings, workers=workers)
    ids = rearc_part(source)
    if source == "rearc" or (ids and augment):
        tasks = rearc_tasks(ids, settings, report, varied=source == "rearc", augment=augment)
        yield from islice(counted(tasks, report), n)
        return
    with Executor(workers, shared=True) as executor:  # only programs of our own generators are run
        yield from build_tasks(source, n, settings, executor, report)
