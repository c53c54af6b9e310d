"""What nothing is ever trained on, written down once: reserved tasks and families, and a run's eval tasks.

`data/training_split.json` lists 320 trainable and 80 reserved ids of the 400 ARC-AGI-1 training tasks:
reserved are the 80 whose SHA-256 of "0:id" is smallest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np

from arcnb.arc.augmentation import content
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet, load_tasks
from arcnb.errors import ArcnbError
from arcnb.machine.reading import naming, shown, text_of

# How many train pairs the 2,261 public ARC tasks have: number of pairs -> tasks.
TRAIN_PAIR_COUNTS = {2: 355, 3: 1281, 4: 433, 5: 123, 6: 43, 7: 17, 8: 6, 10: 2}

# Families of the DSL's task generators that never enter training data (evaluation loss is measured on them).
HELD_OUT_FAMILIES = ("sorting", "partitions")


class TrainingSplit(NamedTuple):
    """Sorted task ids of ARC-AGI-1 training: those that may be trained on, and those that may not."""

    trainable: tuple[str, ...]
    held_out: tuple[str, ...]


@cache
def training_split() -> TrainingSplit:
    """320 trainable and 80 reserved ids, as they are written down."""
    text = resources.files("arcnb.synth").joinpath("data/training_split.json").read_text()
    stored = json.loads(text)
    return TrainingSplit(tuple(stored["trainable"]), tuple(stored["held_out"]))


HELD_OUT_TRAINING: tuple[str, ...] = training_split().held_out
EVALUATION_SETS = ("arc-agi-1/evaluation", "arc-agi-2/evaluation")


@cache
def _never_trained() -> tuple[frozenset[str], frozenset[str]]:
    """Ids and fingerprints of the 80 and of the evaluation sets of ARC-AGI-1 and 2."""
    tasks = [*load_tasks("arc-agi-1/training").subset(HELD_OUT_TRAINING)]
    tasks += [task for name in EVALUATION_SETS for task in load_tasks(name)]
    return frozenset(task.task_id for task in tasks), frozenset(task.fingerprint for task in tasks)


def is_held_out(task: Task | Mapping) -> bool:
    """Whether a task is reserved: by its id, the id of the task it was made of, its family, or its content.

    task: or a row about one, with `task_id` and perhaps `task_fingerprint`; what it says of itself in
    `reserved` is taken for true. Other data have such tasks, too: ARC-AGI-2's training set 376 of ARC-AGI-1's
    evaluation set and 77 of the 80, most with other pairs. One trainable task has an evaluation task's
    content; it stays trainable. ArcnbError for a row that names a task by something else than text.
    """
    facts = task.meta | {"task_id": task.task_id, "reserved": None} if isinstance(task, Task) else task
    if facts.get("reserved") is not None:
        return bool(facts["reserved"])
    ids, fingerprints = _never_trained()
    place = f"task {shown(facts.get('task_id'))}"
    named = {text_of(facts, name, place, optional=True) for name in ("task_id", "original", "real")}
    if not named.isdisjoint(training_split().trainable):
        return False
    if not named.isdisjoint(ids) or text_of(facts, "family", place, optional=True) in HELD_OUT_FAMILIES:
        return True
    if isinstance(task, Task):
        return task.fingerprint in fingerprints
    return text_of(task, "task_fingerprint", place, optional=True) in fingerprints


@dataclass(frozen=True)
class LeftOut:
    """Asked of a task, or of a row about one: whether a training leaves it out.

    That are reserved tasks (see `is_held_out`), unless train_on_held_out, and in any case the tasks that the
    training is evaluated on: under another id, turned, recolored or with their pairs in another order, too. A
    row is asked by its `task_fingerprint`, which knows them as they are. eval_tasks: as `of` makes them.
    """

    train_on_held_out: bool = False
    eval_tasks: tuple[str, ...] = ()

    @classmethod
    def of(cls, train_on_held_out: bool, eval_tasks: Iterable[Task] = ()) -> LeftOut:
        """In an order that is always the same: rows for fine-tuning are known by the text of this."""
        known = {key for task in eval_tasks for key in (content(task), task.fingerprint)}
        return cls(train_on_held_out, tuple(sorted(known)))

    def __call__(self, task: Task | Mapping) -> bool:
        if not self.train_on_held_out and is_held_out(task):
            return True
        if not self.eval_tasks:
            return False
        return (content(task) if isinstance(task, Task) else task.get("task_fingerprint")) in self.eval_tasks

    def __str__(self) -> str:
        """What is left out, in words."""
        kinds = {"reserved": not self.train_on_held_out, "eval": self.eval_tasks}
        return " or ".join(f"{kind} tasks" for kind, asked in kinds.items() if asked)


def trainable_tasks(tasks: TaskSet, left_out: LeftOut = LeftOut()) -> TaskSet:
    """The tasks, in order, that are not left out. ArcnbError when none is."""
    with naming(tasks.name):
        kept = [task.task_id for task in tasks if not left_out(task)]
    if not kept:
        raise ArcnbError(f"{tasks.name}: all of its {len(tasks)} tasks are {left_out}")
    return tasks.subset(kept) if len(kept) < len(tasks) else tasks


def draw_n_train(generator: np.random.Generator, most: int = 10) -> int:
    """A number of train pairs, 2..`most`, distributed as in ARC; ValueError when `most` is below 2."""
    if most < 2:
        raise ValueError(f"at least 2 train pairs are needed, not {most}")
    counts = {n: weight for n, weight in TRAIN_PAIR_COUNTS.items() if n <= most}
    weights = np.array(list(counts.values()), dtype=float)
    return int(generator.choice(list(counts), p=weights / weights.sum()))
