"""Grids in Arrow columns (`list<list<uint8>>`), checked and converted without a Python loop over cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.grids import MAX_SIDE, N_COLORS, Grid, as_grid
from arcnb.errors import ArcnbError

if TYPE_CHECKING:
    import pyarrow as pa


def grid_type() -> pa.DataType:
    """The Arrow type of one grid."""
    import pyarrow as pa

    return pa.list_(pa.list_(pa.uint8()))


def grids_from_arrow(column: pa.Array, where: str = "grid") -> list[Grid | None]:
    """The grids of a `list<list<uint8>>` array, None where null; every grid is validated as `as_grid` does.

    The grids share one read-only buffer. A wrong one raises `ArcnbError`: `where`, its index, what is wrong.
    """
    if column.type != grid_type():
        raise ArcnbError(f"{where}: a column of {column.type}, not of grids ({grid_type()})")
    rows = column.flatten()  # without the rows of null entries, unlike .values
    cells = rows.flatten()
    heights = _lengths(column)
    widths = _lengths(rows)
    values = cells.to_numpy(zero_copy_only=False)
    missing = _null_mask(column)
    row_ends, cell_ends = np.cumsum(heights), np.cumsum(widths)
    row_starts = row_ends - heights
    there = ~missing
    has_nulls = cells.null_count or rows.null_count
    if has_nulls or not _all_valid(heights[there], widths, values, row_starts[there]):
        return _check_one_by_one(column, where)
    values.flags.writeable = False
    starts = np.concatenate([[0], cell_ends]).tolist()
    grids: list[Grid | None] = []
    for height, row, absent in zip(heights.tolist(), row_starts.tolist(), missing.tolist(), strict=True):
        if absent:
            grids.append(None)
        else:
            start = starts[row]
            grids.append(values[start : starts[row + height]].reshape(height, -1))
    return grids


def grids_to_arrow(grids: Sequence[Grid | None]) -> pa.Array:
    """A `list<list<uint8>>` array of the grids, null where None."""
    import pyarrow as pa

    there = [grid for grid in grids if grid is not None]
    widths = np.repeat([grid.shape[1] for grid in there], [grid.shape[0] for grid in there])
    heights = [0 if grid is None else grid.shape[0] for grid in grids]
    cells = np.concatenate([grid.ravel() for grid in there]) if there else np.empty(0, np.uint8)
    rows = pa.ListArray.from_arrays(_offsets(widths), pa.array(cells, pa.uint8()))
    missing = pa.array([grid is None for grid in grids], pa.bool_())
    return pa.ListArray.from_arrays(_offsets(heights), rows, mask=missing)


def _offsets(lengths: Sequence[int] | np.ndarray) -> pa.Array:
    import pyarrow as pa

    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def _all_valid(heights: np.ndarray, widths: np.ndarray, values: np.ndarray, row_starts: np.ndarray) -> bool:
    if not heights.size:
        return True
    if heights.min() < 1 or heights.max() > MAX_SIDE or widths.min() < 1 or widths.max() > MAX_SIDE:
        return False
    rectangular = (widths == np.repeat(widths[row_starts], heights)).all()
    return bool(rectangular and values.max() < N_COLORS)


def _check_one_by_one(column: pa.Array, where: str) -> list[Grid | None]:
    """The slow way, taken when some grid is wrong: as_grid finds which one and says why."""
    rows = column.to_pylist()
    return [None if grid is None else as_grid(grid, f"{where} {i}") for i, grid in enumerate(rows)]


def _lengths(column: pa.Array) -> np.ndarray:
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _null_mask(column: pa.Array) -> np.ndarray:
    return column.is_null().to_numpy(zero_copy_only=False)
