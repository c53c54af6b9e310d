"""Tasks without end, for training: a recipe's sources mixed in its proportions.

    for task, number in TaskStream("rearc*62000 + dsl*45000", SourceSettings(seed=1), workers=16):
        ...

What a source can make goes on for as long as one asks and never repeats; what ends (a task set, a file) comes
round again in another order, `number` saying how often it has been seen before. The order depends on recipe
and seed alone. Each source is read by a process of its own, so that all of them are made at the same time.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count, islice

from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.machine.processes import shared_context
from arcnb.plans import refuse
from arcnb.synth.sources import SourceSettings, never_ends, only_reserved, source_version
from arcnb.synth.splits import LeftOut
from arcnb.synth.task_sets import parsed_recipe, recipe_problems, source_tasks

CHUNK = 16  # tasks that go from process to process at a time
AHEAD = 32  # chunks that a source may be ahead
FOREVER = 10**12


@dataclass(frozen=True)
class TaskStream:
    """Iterates over (task, how often it was seen before). Picklable; its processes start with the iteration.

    recipe: as of `build_task_set`; the number is a source's share, and of one that ends as many are taken at
    most. fresh: False makes so many tasks once and goes round them. left_out: None stands in the place of
    such a task.
    Streams of the same items, and they alone, have the same text: it says what files hold, and not how many
    processes make them. ArcnbError names a source that does not exist.
    """

    recipe: str
    settings: SourceSettings = field(default_factory=SourceSettings)
    workers: int = field(default=1, repr=False)
    fresh: bool = True
    left_out: LeftOut = LeftOut()
    versions: tuple[str, ...] = field(init=False)

    def __post_init__(self):
        versions = tuple(source_version(source) for source, _ in parsed_recipe(self.recipe))
        object.__setattr__(self, "versions", versions)

    def parts(self) -> list[tuple[int, int, tuple[str, int | None, bool]]]:
        """(tasks in one round, share, arguments of `part`) of each source. ArcnbError names a wrong one, or
        one whose tasks are all left out."""
        refuse(recipe_problems(self.recipe))
        found = []
        for source, asked in parsed_recipe(self.recipe):
            if asked == 0:
                continue
            endless = never_ends(source)
            n = asked if endless else sum(task is not None for task in self._made(source, asked))
            asked_for = self.left_out.train_on_held_out
            if not n or (not asked_for and only_reserved(source)):
                raise ArcnbError(
                    f"tasks: {source} has no tasks but {self.left_out}, which training leaves out; take it "
                    f"out of the recipe{'' if asked_for else ', or set train_on_held_out=True'}"
                )
            found.append((n, asked or n, (source, asked, endless and self.fresh)))
        return found

    def __len__(self) -> int:
        """Tasks in one round of the recipe."""
        return sum(n for n, *_ in self.parts())

    def __iter__(self) -> Iterator[tuple[Task | None, int]]:
        parts = self.parts()
        with ExitStack() as stack:
            readers = [stack.enter_context(_Reader(self, part)) for *_, part in parts]
            shares = [share for _, share, _ in parts]
            given = [0] * len(parts)
            while readers:
                # The source that is furthest behind its share is next.
                i = min(range(len(readers)), key=lambda i: (given[i] + 1) / shares[i])
                item = readers[i].next()
                if item is None:  # a generator with nothing new to give; the others go on
                    del readers[i], shares[i], given[i]
                else:
                    given[i] += 1
                    yield item

    def part(self, source: str, n: int | None, fresh: bool) -> Iterator[tuple[Task | None, int]]:
        """What one source gives: new tasks where fresh, else n tasks, or all of them, round after round."""
        if fresh:
            yield from ((task, 0) for task in self._made(source, FOREVER))
            return
        tasks = list(self._made(source, n))
        for round_ in count() if tasks else ():
            for index in rng(self.settings.seed, "round", source, round_).permutation(len(tasks)):
                yield tasks[int(index)], round_

    def _made(self, source: str, n: int | None) -> Iterator[Task | None]:
        tasks = source_tasks(source, n, self.settings, workers=self.workers)
        return (None if self.left_out(task) else task for task in tasks)


class _Reader:
    """Reads a part of the stream ahead, in a process of its own; what is raised there is raised by `next`."""

    def __init__(self, stream: TaskStream, part: tuple[str, int, bool]):
        context = shared_context()
        self._queue = context.Queue(AHEAD)
        self._stopped = context.Event()
        self._process = context.Process(target=_read, args=(stream, part, self._queue, self._stopped))
        self._items: Iterator = iter(())

    def __enter__(self) -> _Reader:
        self._process.start()
        return self

    def __exit__(self, *error) -> None:
        self._stopped.set()
        while self._process.is_alive():  # it ends once its last chunk is taken
            with suppress(queue.Empty):
                self._queue.get(timeout=0.1)
        self._process.join()

    def next(self):
        """The next item, or None at the end."""
        while (item := next(self._items, None)) is None:
            chunk = self._chunk()
            if chunk is None:
                return None
            self._items = iter(chunk)
        return item

    def _chunk(self) -> list | None:
        while True:
            try:
                chunk = self._queue.get(timeout=1)
            except queue.Empty:
                if self._process.is_alive():
                    continue
                raise ArcnbError(f"a process that makes tasks died (exit {self._process.exitcode})") from None
            if isinstance(chunk, Exception):
                raise chunk
            return chunk


def _read(stream: TaskStream, part: tuple[str, int, bool], chunks, stopped) -> None:
    """The reader's process: puts chunks of items, then None, or the exception that ended it."""
    items = stream.part(*part)
    try:
        while not stopped.is_set():
            chunk = list(islice(items, CHUNK))
            chunks.put(chunk or None)
            if not chunk:
                break
    except Exception as error:
        chunks.put(error)
    finally:
        items.close()  # ends the processes that make the tasks
