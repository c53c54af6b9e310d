"""Tasks: input/output pairs of grids, split into train (shown with outputs) and test (to be solved)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from arcnb.arc.grids import Grid, as_grid
from arcnb.errors import ArcnbError
from arcnb.machine.reading import pairs_of, shown, text_of, unpacked


@dataclass(frozen=True, eq=False)
class Pair:
    """An input grid and its output grid; the output of a test pair may be unknown (None)."""

    input: Grid
    output: Grid | None = None

    def __post_init__(self):
        for name in ("input", "output"):
            grid = getattr(self, name)
            if not ((grid is None and name == "output") or _looks_like_grid(grid)):
                object.__setattr__(self, name, as_grid(grid, name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple:
        return tuple(None if g is None else (g.shape, g.tobytes()) for g in (self.input, self.output))

    def to_dict(self) -> dict:
        """`{"input": lists, "output": lists}`, without "output" where it is unknown."""
        mapping = {"input": self.input.tolist()}
        return mapping if self.output is None else {**mapping, "output": self.output.tolist()}


@dataclass(frozen=True, repr=False)
class Task:
    """One ARC task.

    source: where it came from, a phrase. program: Python text of a `transform` that solves it, if known.
    meta: anything else worth keeping, JSON values only.
    """

    task_id: str
    train: tuple[Pair, ...]
    test: tuple[Pair, ...]
    source: str | None = None
    program: str | None = None
    meta: dict = field(default_factory=dict, hash=False)

    @classmethod
    def from_dict(cls, task_id: str, mapping: Mapping, where: str = "", **more) -> Task:
        """A task from its ARC JSON form `{"train": [{"input", "output"}], "test": [{"input", "output"?}]}`,
        which may hold source, program and meta as well.

        Raises `ArcnbError` naming `where` (a file), the task, and the pair or field. `more` fills the other
        fields.
        """
        name = f"{where}: task {shown(task_id)}" if where else f"task {shown(task_id)}"
        if not isinstance(mapping, Mapping):
            raise ArcnbError(f"{name}: {type(mapping).__name__} instead of an object with train and test")
        partitions = {part: _read_pairs(mapping, part, name) for part in ("train", "test")}
        texts = {field: text_of(mapping, field, name, optional=True) for field in ("source", "program")}
        return cls(task_id, **{**partitions, **texts, "meta": _read_meta(mapping, name), **more})

    @classmethod
    def from_row(cls, row: Mapping, where: str) -> Task:
        """A task from its row: the ARC JSON form with `task_id`.

        Raises `ArcnbError` naming `where` (a file and row), and the task and the field that is wrong.
        """
        task_id = row.get("task_id")
        if not isinstance(task_id, str):
            raise ArcnbError(f"{where}: a task_id is {shown(repr(task_id))}, not text")
        return cls.from_dict(task_id, row, where)

    def to_dict(self) -> dict:
        """The ARC JSON form: train and test pairs as nested lists, nothing else."""
        return {part: [pair.to_dict() for pair in getattr(self, part)] for part in ("train", "test")}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the grids, in order; ids, source and program do not enter."""
        digest = hashlib.sha256()
        for part in (self.train, self.test):
            digest.update(b"part %d" % len(part))
            for pair in part:
                for grid in (pair.input, pair.output):
                    digest.update(b"-" if grid is None else b"%dx%d:" % grid.shape + grid.tobytes())
        return digest.hexdigest()

    @property
    def fingerprints(self) -> tuple[str, str]:
        """Its fingerprint, and the one that it has where its test outputs are hidden: predictions of it say
        either."""
        hidden = replace(self, test=tuple(Pair(pair.input) for pair in self.test))
        return self.fingerprint, hidden.fingerprint

    @property
    def inputs(self) -> list[Grid]:
        """Inputs of the train pairs, then of the test pairs: what a program is run on, in this order."""
        return [pair.input for pair in (*self.train, *self.test)]

    @property
    def grids(self) -> list[Grid]:
        """All known grids: input and output of each pair, train before test."""
        pairs = (*self.train, *self.test)
        return [grid for pair in pairs for grid in (pair.input, pair.output) if grid is not None]

    @property
    def named_pairs(self) -> list[tuple[str, Grid, Grid | None]]:
        """("train 0", input, output), ..., as `arcnb.arc.pictures.figures` draws them."""
        parts = (("train", self.train), ("test", self.test))
        return [
            (f"{part} {i}", pair.input, pair.output) for part, pairs in parts for i, pair in enumerate(pairs)
        ]

    @property
    def has_test_outputs(self) -> bool:
        """Whether every test output is known."""
        return all(pair.output is not None for pair in self.test)

    def __repr__(self) -> str:
        known = "" if self.has_test_outputs else ", test outputs unknown"
        source = f" from {self.source}" if self.source else ""
        return f"<Task {self.task_id}{source}: {len(self.train)} train, {len(self.test)} test{known}>"

    def _repr_html_(self) -> str:
        from arcnb.arc.pictures.figures import pairs_html

        source = f" \u00b7 {self.source}" if self.source else ""
        return pairs_html(f"{self.task_id}{source}", self.named_pairs)


def unique_ids(tasks: Iterable[Task], where: str) -> Iterator[Task]:
    """The tasks as they come; raises `ArcnbError`, naming `where`, at the first id that occurs twice."""
    seen: set[str] = set()
    for task in tasks:
        if task.task_id in seen:
            raise ArcnbError(f"{where}: task id {task.task_id!r} occurs twice")
        seen.add(task.task_id)
        yield task


def _looks_like_grid(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 2


def _read_meta(mapping: Mapping, name: str) -> dict:
    meta = unpacked(mapping.get("meta") or {}, f"{name}: meta")
    try:
        json.dumps(meta)
    except (TypeError, ValueError) as error:
        raise ArcnbError(f"{name}: meta is no plain JSON ({error})") from None
    if not isinstance(meta, dict):
        raise ArcnbError(f"{name}: meta is {type(meta).__name__}, not an object")
    return meta


def _read_pairs(mapping: Mapping, part: str, name: str) -> tuple[Pair, ...]:
    pairs = unpacked(mapping.get(part), f"{name}: {part}")
    if isinstance(pairs, Mapping) and "input" in pairs:
        pairs = pairs_of(pairs, ("input", "output"), f"{name}: {part}")
    if not isinstance(pairs, list | tuple):
        raise ArcnbError(f'{name}: "{part}" is {"missing" if pairs is None else "not a list of pairs"}')
    if not pairs:
        raise ArcnbError(f"{name}: no {part} pairs")
    return tuple(_read_pair(pair, part, f"{name}, {part} pair {i}") for i, pair in enumerate(pairs))


def _read_pair(pair: object, part: str, name: str) -> Pair:
    if not isinstance(pair, Mapping) or "input" not in pair:
        raise ArcnbError(f'{name}: has no "input"')
    output = pair.get("output")
    if output is None and part == "train":
        raise ArcnbError(f'{name}: has no "output"')
    return Pair(
        as_grid(pair["input"], f"{name} input"),
        None if output is None else as_grid(output, f"{name} output"),
    )
