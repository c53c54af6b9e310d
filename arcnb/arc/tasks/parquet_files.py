"""Task sets as Parquet, one row a task: what the stages of a run hand to each other.

    task_id: string   train, test: list<struct<input, output>>, grids as list<list<uint8>>
    source, program: string or null   meta: JSON text or null

Rows are written and read in batches, so that a hundred thousand tasks never become Python lists of cells.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from arcnb.arc.grids import MAX_SIDE, N_COLORS, Grid
from arcnb.arc.tasks.task import Pair, Task, unique_ids
from arcnb.errors import ArcnbError
from arcnb.machine.files import new_file
from arcnb.machine.reading import named_errors, opened, unpacked

_BATCH = 1000  # tasks in memory at a time when streaming; a few MB of cells
_GRID = pa.list_(pa.list_(pa.uint8()))
_PAIRS = pa.list_(pa.struct([pa.field("input", _GRID), pa.field("output", _GRID)]))

TASK_SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("train", _PAIRS, nullable=False),
        pa.field("test", _PAIRS, nullable=False),
        pa.field("source", pa.string()),
        pa.field("program", pa.string()),
        pa.field("meta", pa.string()),
    ]
)


def write_task_parquet(tasks: Iterable[Task], path: Path) -> int:
    """Write tasks as they come, atomically; returns how many. Raises FileExistsError over other content."""
    rest, n = unique_ids(tasks, str(path)), 0
    with (
        new_file(path, same_is_fine=True) as file,
        pq.ParquetWriter(file, TASK_SCHEMA, compression="zstd") as out,
    ):
        while batch := list(islice(rest, _BATCH)):
            out.write_table(_to_table(batch))
            n += len(batch)
    return n


def iter_task_parquet(path: Path) -> Iterator[Task]:
    """The tasks of one file, in batches. Raises `ArcnbError` naming file, task and pair."""
    with named_errors(path), opened(path) as handle, pq.ParquetFile(handle) as file:
        columns = [name for name in TASK_SCHEMA.names if name in file.schema_arrow.names]
        for name in ("task_id", "train", "test"):
            if name not in columns:
                raise ArcnbError(f"{path}: no column {name!r}, so this is not a task set")
        for batch in file.iter_batches(_BATCH, columns=columns):
            yield from _read_batch(batch, path)


def _to_table(tasks: list[Task]) -> pa.Table:
    columns = {
        "task_id": [task.task_id for task in tasks],
        "train": _pairs_to_arrow([task.train for task in tasks]),
        "test": _pairs_to_arrow([task.test for task in tasks]),
        "source": [task.source for task in tasks],
        "program": [task.program for task in tasks],
        "meta": [json.dumps(task.meta, sort_keys=True) if task.meta else None for task in tasks],
    }
    return pa.table(columns, schema=TASK_SCHEMA)


def _pairs_to_arrow(partitions: list[tuple[Pair, ...]]) -> pa.Array:
    pairs = [pair for part in partitions for pair in part]
    grids = [_grids_to_arrow([getattr(pair, name) for pair in pairs]) for name in ("input", "output")]
    structs = pa.StructArray.from_arrays(grids, fields=list(_PAIRS.value_type))
    return pa.ListArray.from_arrays(_offsets([len(part) for part in partitions]), structs)


def _grids_to_arrow(grids: Sequence[Grid | None]) -> pa.Array:
    there = [grid for grid in grids if grid is not None]
    widths = np.repeat([grid.shape[1] for grid in there], [grid.shape[0] for grid in there])
    heights = [0 if grid is None else grid.shape[0] for grid in grids]
    cells = np.concatenate([grid.ravel() for grid in there]) if there else np.empty(0, np.uint8)
    rows = pa.ListArray.from_arrays(_offsets(widths), pa.array(cells, pa.uint8()))
    missing = pa.array([grid is None for grid in grids], pa.bool_())
    return pa.ListArray.from_arrays(_offsets(heights), rows, mask=missing)


def _offsets(lengths: Sequence[int] | np.ndarray) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def _read_batch(batch: pa.RecordBatch, path: Path) -> list[Task]:
    """By columns where their types are ours, else row by row, which takes other types and names faults."""
    try:
        return _read_columns(batch, path)
    except (ArcnbError, pa.ArrowException):
        return [Task.from_row(row, str(path)) for row in batch.to_pylist()]


def _read_columns(batch: pa.RecordBatch, path: Path) -> list[Task]:
    if any(field.type != TASK_SCHEMA.field(field.name).type for field in batch.schema):
        raise ArcnbError(f"{path}: other types than ours")
    texts = {name: [None] * batch.num_rows for name in ("task_id", "source", "program", "meta")}
    texts |= {name: batch[name].to_pylist() for name in texts if name in batch.schema.names}
    if None in texts["task_id"]:
        raise ArcnbError(f"{path}: a task without an id")
    parts = [_pairs_from_arrow(batch[part], needs_output=part == "train") for part in ("train", "test")]
    metas = [unpacked(text or {}, f"{path}: meta") for text in texts["meta"]]
    if not all(isinstance(meta, dict) for meta in metas):
        raise ArcnbError(f"{path}: a meta that is no object")
    return list(map(Task, texts["task_id"], *parts, texts["source"], texts["program"], metas))


def _pairs_from_arrow(column: pa.Array, needs_output: bool) -> list[tuple[Pair, ...]]:
    lengths = column.value_lengths().to_pylist()
    structs = column.flatten()
    if None in lengths or 0 in lengths or structs.null_count:
        raise ArcnbError("a partition without pairs, or a pair that is not one")
    grids = dict(zip(structs.type.names, structs.flatten(), strict=True))
    if grids["input"].null_count or (needs_output and grids["output"].null_count):
        raise ArcnbError("a grid is missing")
    pairs = map(Pair, _grids_from_arrow(grids["input"]), _grids_from_arrow(grids["output"]))
    return [tuple(islice(pairs, length)) for length in lengths]


def _grids_from_arrow(column: pa.Array) -> list[Grid | None]:
    """Grids of a `_GRID` column that share one read-only buffer, None for nulls. ArcnbError: one is none."""
    rows = column.flatten()  # without the rows of null entries, unlike .values
    cells = rows.flatten()
    heights, widths = _lengths(column), _lengths(rows)
    values = cells.to_numpy(zero_copy_only=False)
    ends = np.cumsum(heights)
    there = column.is_valid().to_numpy(zero_copy_only=False)
    sides = np.concatenate([heights[there], widths])
    if (
        cells.null_count
        or rows.null_count
        or not 1 <= sides.min(initial=1) <= sides.max(initial=1) <= MAX_SIDE
        or (widths != np.repeat(widths[(ends - heights)[there]], heights[there])).any()
        or values.max(initial=0) >= N_COLORS
    ):
        raise ArcnbError("a grid that is none")
    values.flags.writeable = False
    cell_ends = np.concatenate([[0], np.cumsum(widths)])[ends]
    pieces = np.split(values, cell_ends[:-1])
    return [
        piece.reshape(height, -1) if height else None
        for piece, height in zip(pieces, heights.tolist(), strict=False)
    ]


def _lengths(column: pa.Array) -> np.ndarray:
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
