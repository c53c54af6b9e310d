"""What nothing is ever trained on, written down once: reserved tasks and families, and a run's eval tasks.

`data/training_split.json` lists 320 trainable and 80 reserved ids of the 400 ARC-AGI-1 training tasks:
reserved are the 80 whose SHA-256 of "0:id" is smallest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import NamedTuple

import numpy as np

from arcnb.arc.augmentation import content
from arcnb.arc.tasks.task import Pair, Task
from arcnb.arc.tasks.task_set import TaskSet, load_tasks
from arcnb.errors import ArcnbError
from arcnb.machine.reading import naming, shown, text_of

# How many train pairs the 2,261 public ARC tasks have: number of pairs -> tasks.
TRAIN_PAIR_COUNTS = {2: 355, 3: 1281, 4: 433, 5: 123, 6: 43, 7: 17, 8: 6, 10: 2}

# Families of the DSL's task generators that never enter training data (evaluation loss is measured on them).
HELD_OUT_FAMILIES = ("sorting", "partitions")
# Their generators, whose module is beyond this one.
HELD_OUT_GENERATORS = (
    *("choose_part", "part_at", "overlay_parts", "odd_part_out"),
    *("summary_of_parts", "color_parts_by_count", "reverse_parts"),
    *("sort_rows_by_length", "sort_columns_by_length", "colors_by_area"),
    *("colors_by_position", "colors_by_count", "stack_objects_in_order", "recolor_by_rank"),
)


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


@dataclass(frozen=True)
class Known:
    """Some tasks, to be known again by their pairs: under another id, turned, recolored, in another order,
    without test outputs, with some pairs less, more or twice, or with inputs and outputs exchanged.

    A task is known if one of its test pairs, or half of its pairs, are pairs of these tasks. A part of a
    task's pairs teaches its rule and its answers, so a part is enough. Tasks that only look alike share
    fewer: of ARC's and RE-ARC's trainable tasks two are known that way, which have pairs of evaluation tasks.
    Rows about tasks are known by their `task_fingerprint`, also where test outputs were hidden.

    keys: fingerprints, and for each pair its shapes and counts of colors, which are soon told and in most
    cases of no other pair, with its content (`arcnb.arc.augmentation.content`).
    """

    keys: frozenset[str]

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> Known:
        made = ((*task.fingerprints, *map(_key, (*task.train, *task.test))) for task in tasks)
        return cls(frozenset(key for of_task in made for key in of_task))

    @cached_property
    def measures(self) -> frozenset[str]:
        return frozenset(key.rpartition(" ")[0] for key in self.keys)

    def has(self, task: Task | Mapping) -> bool:
        if not isinstance(task, Task):
            return _text(task, "task_fingerprint") in self.keys
        whole = [self._has_pair(pair) for pair in (*task.train, *task.test) if pair.output is not None]
        return any(map(self._has_pair, task.test)) or 2 * sum(whole) >= len(whole) > 0

    def _has_pair(self, pair: Pair) -> bool:
        return " ".join(sorted(_measures(pair))) in self.measures and _key(pair) in self.keys


def _measures(pair: Pair) -> list[str]:
    """Of each grid what no turn and no change of colors alters: sides and counts of colors, sorted."""
    grids = (grid for grid in (pair.input, pair.output) if grid is not None)
    return [
        f"{sorted(grid.shape)}{sorted(filter(None, np.bincount(grid.ravel()).tolist()))}" for grid in grids
    ]


def _key(pair: Pair) -> str:
    """The same for a pair, its augmentations, and these with input and output exchanged."""
    measures = _measures(pair)
    ways = [pair]
    if pair.output is not None and measures[0] >= measures[-1]:
        exchanged = Pair(pair.output, pair.input)
        ways = [exchanged] if measures[0] > measures[-1] else [pair, exchanged]
    return " ".join([*sorted(measures), min(content([way]) for way in ways)])


@cache
def _never_trained() -> tuple[frozenset[str], Known]:
    """The 80 and the evaluation sets of ARC-AGI-1 and 2: ids, and how they are known under others."""
    tasks = [*load_tasks("arc-agi-1/training").subset(HELD_OUT_TRAINING)]
    tasks += [task for name in EVALUATION_SETS for task in load_tasks(name)]
    return frozenset(task.task_id for task in tasks), Known.of(tasks)


def _facts(task: Task | Mapping) -> Mapping:
    if not isinstance(task, Task):
        return task
    said = True if task.meta.get("reserved") is True else None  # its word is no evidence for the opposite
    return task.meta | {"task_id": task.task_id, "reserved": said}


def _text(facts: Mapping, name: str) -> str | None:
    return text_of(facts, name, f"task {shown(facts.get('task_id'))}", optional=True)


def _names(facts: Mapping) -> set[str | None]:
    """The id of a task, and those of the tasks that it was made of: an id of RE-ARC or of a hindsight task
    holds the original's, which a file of ARC JSON keeps, and `meta` it does not."""
    named = {_text(facts, name) for name in ("task_id", "original", "real")}
    named |= {_whose_hindsight(name) for name in named}
    made = (re.fullmatch(r"rearc_([0-9a-f]{8})_-?\d+_\d+", name or "") for name in named)
    return named | {match[1] for match in made if match}


def _whose_hindsight(name: str | None) -> str | None:
    return name and name.partition("/")[0]


def _is_of_family(facts: Mapping) -> bool:
    """Whether it is a task of a reserved family, which the id of a generated one tells, too."""
    made = re.fullmatch(r"dsl_(\w+)_-?\d+_\d+", _whose_hindsight(_text(facts, "task_id")) or "")
    return _text(facts, "family") in HELD_OUT_FAMILIES or (
        made is not None and made[1] in HELD_OUT_GENERATORS
    )


def is_held_out(task: Task | Mapping) -> bool:
    """Whether a task is reserved: by its id, the id of the task it was made of, its family, or its content.

    task: or a row about one, with `task_id` and perhaps `task_fingerprint`; what a row says of itself in
    `reserved` is taken for true, and of a task's `meta` that it is. What is reserved by one of these is,
    whatever trainable task it names as well; but two trainable tasks share pairs with evaluation tasks, and
    stay trainable under their names. Other data have such tasks, too: ARC-AGI-2's training set 376 of
    ARC-AGI-1's evaluation set and 77 of the 80, most with other pairs. ArcnbError for a row that names a task
    by something else than text.
    """
    facts = _facts(task)
    if facts.get("reserved") is not None:
        return bool(facts["reserved"])
    ids, known = _never_trained()
    named = _names(facts)
    if not named.isdisjoint(ids) or _is_of_family(facts):
        return True
    return known.has(task) and not any(one.has(task) for one in map(_trainable, named) if one)


@cache
def _trainable(name: str | None) -> Known | None:
    """A trainable task, known by its content; None for another name."""
    if name not in training_split().trainable:
        return None
    return Known.of([load_tasks("arc-agi-1/training")[name]])


@dataclass(frozen=True)
class LeftOut:
    """Asked of a task, or of a row about one: whether a training leaves it out.

    That are reserved tasks (see `is_held_out`), unless train_on_held_out, and in any case the tasks that the
    training is evaluated on, as `Known` knows them. Where these are ARC's own tasks or were made of them, all
    that is or was made of the same ones is left out, too. eval_tasks: as `of` makes them.
    """

    train_on_held_out: bool = False
    eval_tasks: tuple[str, ...] = ()

    @classmethod
    def of(cls, train_on_held_out: bool, eval_tasks: Iterable[Task] = ()) -> LeftOut:
        """In an order that is always the same: rows for fine-tuning are known by the text of this."""
        tasks = list(eval_tasks)
        names = {name for task in tasks for name in _names(_facts(task)) if _is_arc(name)}
        return cls(train_on_held_out, tuple(sorted(Known.of(tasks).keys | names)))

    def __call__(self, task: Task | Mapping) -> bool:
        if not self.train_on_held_out and is_held_out(task):
            return True
        if not self.eval_tasks:
            return False
        named = filter(_is_arc, _names(_facts(task)))
        return not self._known.keys.isdisjoint(named) or self._known.has(task)

    @cached_property
    def _known(self) -> Known:
        return Known(frozenset(self.eval_tasks))

    def __str__(self) -> str:
        """What is left out, in words."""
        kinds = {"reserved": not self.train_on_held_out, "eval": self.eval_tasks}
        return " or ".join(f"{kind} tasks" for kind, asked in kinds.items() if asked)


def _is_arc(name: str | None) -> bool:
    """Whether an id is of ARC's form. Ids of generated tasks say little: they come again in every set."""
    return name is not None and re.fullmatch("[0-9a-f]{8}", name) is not None


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
