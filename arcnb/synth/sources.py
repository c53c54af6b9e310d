"""Task sources by name: `build_tasks("dsl", 1000)` yields tasks, whatever they are made of.

    arc-agi-1/training, ...     the task sets of `arcnb.arc.tasks.task_set`, any file or folder of tasks
    rearc                       RE-ARC tasks of the 320 trainable ids
    rearc/held_out, all, <id>   of the 80 reserved ids, of all 400, of one
    rearc/originals             the trainable ARC-AGI-1 training tasks themselves, with RE-ARC's programs
    dsl                         the DSL's generators and the composer, without scenes and reserved families
    dsl/scenes                  composed programs on inputs of RE-ARC's generators (trainable ids)
    dsl/held_out                the reserved families alone
    dsl/<family>, <generator>   one family or generator
    composed                    the composer alone
    ladder/lines, squares       toy tasks, one a rung, from the lowest on
    barc:<path>, <path>.jsonl   BARC-style rows; a .jsonl of tasks is a task set

Adding a source is a function `(argument, n_tasks, settings, report) -> iterator of Task`, named in `_find`.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TypeAlias

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.seeds import rng
from arcnb.arc.tasks import task_set
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError, nearest
from arcnb.machine.pools import guessing
from arcnb.machine.reading import read_rows
from arcnb.programs.executor.executor import Executor
from arcnb.synth import generators as _registers_all  # noqa: F401
from arcnb.synth.barc_tasks import barc_tasks
from arcnb.synth.ladder import LADDERS, ladder_tasks
from arcnb.synth.rearc.augmented import P_PLAIN, augmented_task
from arcnb.synth.rearc.programs import rearc_ids
from arcnb.synth.rearc.tasks import (
    DEFAULT_MAX_CELLS,
    original_task,
    rearc_task,
    reproduced_ids,
)
from arcnb.synth.rules import GENERATORS, NoExample, TaskGenerator, rule_task
from arcnb.synth.splits import HELD_OUT_FAMILIES, training_split
from arcnb.synth.validation.reports import TaskReport
from arcnb.synth.validation.validation import BLOCK, origin, validated

# A generator that had this many candidates judged and a smaller share accepted has little new to give.
ENOUGH_SEEN, LEAST_ACCEPTANCE = 60, 0.2
BATCH = 512  # tasks of the DSL that are made together
DRAWN_TOGETHER = 8  # tasks that a process makes at a time
LEAST_DIFFICULTY = 0.2  # a RE-ARC task's bound is drawn between this share of diff_ub and diff_ub
REARC_PARTS = ("held_out", "all")
MAX_REJECTED = 1000  # RE-ARC tasks in a row that do not fit `max_cells` before the source gives up


Source: TypeAlias = "Callable[[str, int | None, SourceSettings, TaskReport], Iterator[Task]]"


@dataclass(frozen=True)
class SourceSettings:
    """What every source gets: seed, and bounds on the tasks it makes. ArcnbError names a wrong one.

    diff_ub, max_cells: of `rearc_task`. workers: processes that make tasks of the DSL; their number changes
    nothing but the time. They are spawned, so a script that asks for more than one needs the
    `if __name__ == "__main__":` guard. block_size: candidates validated together, so how long the first task
    takes; between blocks generators with nothing new are given up, so another size gives other tasks in the
    end.
    """

    seed: int = 0
    diff_ub: float = 1.0
    max_cells: int = DEFAULT_MAX_CELLS
    workers: int = field(default=1, repr=False)
    block_size: int = BLOCK

    def __post_init__(self):
        if not 0.0 <= self.diff_ub <= 1.0:
            raise ArcnbError(f"difficulty (diff_ub) is within 0..1, not {self.diff_ub}")
        for name in ("max_cells", "workers", "block_size"):
            if getattr(self, name) < 1:
                raise ArcnbError(f"{name} must be at least 1, not {getattr(self, name)}")


def build_tasks(
    source: str,
    n_tasks: int | None = None,
    settings: SourceSettings = SourceSettings(),
    executor: Executor | None = None,
    report: TaskReport | None = None,
) -> Iterator[Task]:
    """Up to `n_tasks` tasks of a source, always the same and in the same order for the same settings.

    n_tasks: None is for sources that end. executor: where it is given, tasks of the DSL are validated (see
    `arcnb.synth.validation.validation`); RE-ARC's tasks are checked as they are made. report: gets the
    counts. A source with fewer different tasks than asked for ends early. ArcnbError for an unknown source
    names the nearest one.
    """
    make, argument = _find(source)
    if n_tasks is None and never_ends(source):
        raise ArcnbError(f"source {source} never ends: n_tasks is needed")
    report = TaskReport() if report is None else report
    tasks = make(argument, n_tasks, settings, report)
    if executor is not None and make is _dsl:
        # The sandbox has hash seed 0; so has this process when randomization is off.
        first_run_here = sys.flags.hash_randomization == 1
        block_size = max(16, min(settings.block_size, n_tasks))
        tasks = validated(tasks, executor, report, first_run_here, block_size)
    else:
        tasks = counted(tasks, report)
    return islice(tasks, n_tasks)


def never_ends(source: str) -> bool:
    """Whether the source makes new tasks for as long as one asks. ArcnbError if it does not exist."""
    return _find(source)[0] in (_rearc, _dsl)


def check_source(source: str) -> None:
    """ArcnbError for a source that does not exist, or whose files do not. No task is made or read."""
    make, argument = _find(source)
    if make in (_task_set, _barc):
        task_set.check_source(argument)


def is_drawn(source: str) -> bool:
    """Whether fewer tasks than the source has are drawn with the seed, and not its first ones. ArcnbError if
    it does not exist."""
    return _find(source)[0] is _task_set


def barc_stem(source: str) -> str | None:
    """The name of a BARC-style file without folder and endings; None for a source of another kind."""
    make, argument = _find(source)
    return Path(argument).name.partition(".")[0] if make is _barc else None


def source_version(source: str) -> str:
    """Which data a file or a task set holds now; "" for a source that makes its tasks. ArcnbError if it does
    not exist."""
    make, argument = _find(source)
    return task_set.version_of(argument) if make in (_task_set, _barc) else ""


def only_reserved(source: str) -> bool:
    """Whether a source without end makes reserved tasks alone. ArcnbError if it does not exist."""
    make, argument = _find(source)
    if make is _rearc:
        return set(_rearc_part(argument)).isdisjoint(training_split().trainable)
    return make is _dsl and all(one.family in HELD_OUT_FAMILIES for one in _generators(argument))


def source_names() -> list[str]:
    """Every name that `build_tasks` knows, paths aside."""
    rearc = ["rearc", *(f"rearc/{part}" for part in (*REARC_PARTS, "originals"))]
    dsl = ["dsl", "dsl/held_out", *(f"dsl/{family}" for family in _families()), "composed"]
    return [*task_set.SOURCES, *rearc, *dsl, *(f"ladder/{name}" for name in LADDERS)]


# --------------------------------------------------------------------------- sources


def _task_set(
    argument: str, n_tasks: int | None, settings: SourceSettings, report: TaskReport
) -> Iterator[Task]:
    tasks = task_set.load_tasks(argument)
    if n_tasks is not None and n_tasks < len(tasks):
        tasks = tasks.sample(n_tasks, settings.seed)
    yield from tasks


def _rearc(
    argument: str, n_tasks: int | None, settings: SourceSettings, report: TaskReport
) -> Iterator[Task]:
    return rearc_tasks(_rearc_part(argument), settings, report)


def rearc_part(source: str) -> Sequence[str]:
    """The ids whose RE-ARC generators a source asks for; none where it is of another kind."""
    make, argument = _find(source)
    return _rearc_part(argument) if make is _rearc else ()


def generators_of(source: str) -> frozenset[str]:
    """What makes the source's tasks, as far as another source of it would make the very same: generators of
    the DSL, ids of RE-ARC; not of `rearc` itself, where each task has a difficulty of its own."""
    make, argument = _find(source)
    if make is _dsl:
        return frozenset(one.name for one in _generators(argument))
    return frozenset(_rearc_part(argument) if make is _rearc and argument else ())


def _rearc_part(argument: str) -> Sequence[str]:
    split = training_split()
    parts = {"": split.trainable, "held_out": split.held_out, "all": rearc_ids()}
    return parts.get(argument, (argument,))


def rearc_tasks(
    ids: Sequence[str],
    settings: SourceSettings,
    report: TaskReport,
    varied: bool = False,
    augment: bool = False,
) -> Iterator[Task]:
    """Task 0 of every id, then task 1 of every one, ... without end; without those that cannot be made.

    varied: every task has a difficulty bound of its own, from LEAST_DIFFICULTY of the way to `diff_ub`.
    augment: P_PLAIN of them stay as they are, the others are turned and recolored with their programs.
    ArcnbError when more than MAX_REJECTED in a row cannot be made.
    """
    make = partial(_rearc_task, ids=ids, settings=settings, varied=varied, augment=augment)
    rejected_in_a_row = 0
    with guessing(make, settings.workers, DRAWN_TOGETHER) as drawing:
        step = 2 * DRAWN_TOGETHER * settings.workers
        for start in count(0, step):
            now, likely_next = (list(range(first, first + step)) for first in (start, start + step))
            for task in drawing(now, likely_next):
                if isinstance(task, Task):
                    rejected_in_a_row = 0
                    yield task
                    continue
                rejected_in_a_row += 1
                report.reject(task, "rearc")
                if rejected_in_a_row > MAX_REJECTED:
                    raise ArcnbError(
                        f"source rearc: {rejected_in_a_row:,} tasks in a row were rejected, the last one as "
                        f"{task!r}, with max_cells {settings.max_cells}, difficulty up to {settings.diff_ub}"
                    )


def _rearc_task(
    number: int, ids: Sequence[str], settings: SourceSettings, varied: bool, augment: bool
) -> Task | str:
    """The task, or why there is none."""
    task_id, index = ids[number % len(ids)], number // len(ids)
    random = rng(settings.seed, "task set", task_id, index)
    upper = settings.diff_ub
    if varied:
        upper *= LEAST_DIFFICULTY + (1 - LEAST_DIFFICULTY) * random.random()
    try:
        task = rearc_task(task_id, settings.seed, index, upper, settings.max_cells)
    except NoExample as none:
        return none.reason
    if not augment or random.random() < P_PLAIN:
        return task
    augmentation = Augmentation.sample(random)
    turned = augmented_task(task, augmentation)
    if turned is None:
        return "program not rewritten"
    colors = augmentation.color_map and list(augmentation.color_map)
    said = {"hflip": augmentation.hflip, "n_rot90": augmentation.n_rot90, "color_map": colors}
    return replace(turned, meta=task.meta | {"augmentation": said})


def _originals(
    argument: str, n_tasks: int | None, settings: SourceSettings, report: TaskReport
) -> Iterator[Task]:
    reproduced = set(reproduced_ids())
    for task_id in training_split().trainable:
        if task_id in reproduced:
            yield original_task(task_id)
        else:
            report.reject("program does not reproduce the original", "rearc")


def _dsl(argument: str, n_tasks: int | None, settings: SourceSettings, report: TaskReport) -> Iterator[Task]:
    """Named generators and the composer in turn, as far as `argument` allows both."""
    chosen = _generators(argument)
    composers = [generator for generator in chosen if generator.family == "composed"]
    named = [generator for generator in chosen if generator.family != "composed"]
    workers = settings.workers if n_tasks > BATCH else 1
    with guessing(_drawn_task, workers, DRAWN_TOGETHER) as drawing:
        streams = [_rounds(pool, settings, report, drawing) for pool in (named, composers) if pool]
        while streams:
            for stream in list(streams):
                task = next(stream, None)
                if task is None:
                    streams.remove(stream)
                else:
                    yield task


def _rounds(
    pool: list[TaskGenerator], settings: SourceSettings, report: TaskReport, drawing: Callable
) -> Iterator[Task]:
    """Task 0 of every generator, then task 1 of every one, ...; without those that have nothing new.

    The next round is drawn while this one is judged, as if judging exhausted no generator. Draws of
    exhausted generators are dropped, and missing draws follow, so the tasks depend on no timing.
    """
    before = Counter(report.accepted_by), Counter(report.rejected_by)  # of tasks that were made earlier
    first = 0
    while pool := [generator for generator in pool if not _is_exhausted(report, generator.name, before)]:
        n_rounds = max(1, BATCH // len(pool))
        draws, likely_next = (
            [(one.name, settings.seed, index) for index in indices for one in pool]
            for indices in (range(first, first + n_rounds), range(first + n_rounds, first + 2 * n_rounds))
        )
        for (name, *_), task in zip(draws, drawing(draws, likely_next), strict=True):
            if task is None:
                report.reject("no usable task", name)
            else:
                yield task
        first += n_rounds


def _drawn_task(draw: tuple[str, int, int]) -> Task | None:
    """draw: generator, seed, index."""
    try:
        return rule_task(*draw)
    except NoExample:
        return None


def _is_exhausted(report: TaskReport, name: str, before: tuple[Counter, Counter]) -> bool:
    """before: what the report said of tasks accepted and rejected when the source began."""
    now = report.accepted_by, report.rejected_by
    accepted, rejected = (counts[name] - then[name] for counts, then in zip(now, before, strict=True))
    seen = accepted + rejected
    return seen >= ENOUGH_SEEN and accepted / seen < LEAST_ACCEPTANCE


def _barc(argument: str, n_tasks: int | None, settings: SourceSettings, report: TaskReport) -> Iterator[Task]:
    return barc_tasks(argument, settings.seed, report)


def _ladder(
    argument: str, n_tasks: int | None, settings: SourceSettings, report: TaskReport
) -> Iterator[Task]:
    yield from ladder_tasks(argument, seed=settings.seed)


def _find(source: str) -> tuple[Source, str]:
    """The function of a source and its argument."""
    kind, _, argument = source.partition("/")
    if source.startswith("barc:"):
        return _barc, source.removeprefix("barc:")
    if kind == "rearc" and argument in ("", *REARC_PARTS, *rearc_ids()):
        return _rearc, argument
    if source == "rearc/originals":
        return _originals, ""
    if source == "composed":
        return _dsl, source
    if kind == "ladder" and argument in LADDERS:
        return _ladder, argument
    if kind == "dsl" and (argument in ("", "held_out", *GENERATORS) or argument in _families()):
        return _dsl, argument
    if ".jsonl" in Path(source).suffixes and Path(source).exists():
        _, row = next(read_rows(source, strict=False), ("", {}))
        return (_task_set if isinstance(row, Mapping) and "train" in row else _barc), source
    if source in task_set.SOURCES or Path(source).exists():
        return _task_set, source
    known = [
        *source_names(),
        *(f"dsl/{name}" for name in GENERATORS),
        *(f"rearc/{name}" for name in rearc_ids()),
    ]
    raise ArcnbError(f"no task source {source!r}, and no such file{nearest(source, known)}")


def _generators(argument: str) -> list[TaskGenerator]:
    if argument == "":
        apart = (*HELD_OUT_FAMILIES, "scenes")
        return [generator for generator in GENERATORS.values() if generator.family not in apart]
    named = HELD_OUT_FAMILIES if argument == "held_out" else (argument,)
    return [one for one in GENERATORS.values() if one.family in named or one.name in named]


def _families() -> list[str]:
    return sorted({generator.family for generator in GENERATORS.values()})


def counted(tasks: Iterable[Task], report: TaskReport) -> Iterator[Task]:
    """The tasks, counted as they are taken."""
    for task in tasks:
        report.accept(origin(task))
        yield task
