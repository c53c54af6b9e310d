"""Grids: what an ARC grid is, and the one check that everything read from outside passes.

A `Grid` is a 2-D numpy array of dtype uint8, 1..30 rows by 1..30 columns, values 0..9 (the colours).
Grids made here are read-only, because tasks share them: copy one (`grid.copy()`) before changing it.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from arcnb.errors import ArcnbError

MAX_SIDE = 30
N_COLORS = 10

Grid: TypeAlias = np.ndarray


def as_grid(value: object, where: str = "grid") -> Grid:
    """Validate `value` and return it as a fresh read-only uint8 array (rows, columns).

    Accepted are nested lists or tuples of integers and integer arrays. Refused, with a `ArcnbError` that
    starts with `where`: anything ragged, empty, not two-dimensional or larger than 30 a side, values
    outside 0..9, and values that are not integers (bools, text, None, every float, even 1.0).
    """
    if isinstance(value, np.ndarray) and value.dtype != object:
        array = _integer_array(value, where)
    else:
        array = _from_rows(value.tolist() if isinstance(value, np.ndarray) else value, where)
    if max(array.shape) > MAX_SIDE:
        raise ArcnbError(f"{where}: {grid_size(array)} is larger than {MAX_SIDE}x{MAX_SIDE}")
    if array.min() < 0 or array.max() >= N_COLORS:
        row, column = np.argwhere((array < 0) | (array >= N_COLORS))[0]
        raise ArcnbError(f"{where}: row {row}, column {column} holds {array[row, column]}, not a color 0..9")
    grid = array.astype(np.uint8, order="C")
    grid.flags.writeable = False
    return grid


def grid_size(grid: Grid) -> str:
    """Rows x columns of a grid: "3x4"."""
    return "x".join(map(str, grid.shape))


def same_grids(a: Sequence[Grid], b: Sequence[Grid]) -> bool:
    """Whether all grids are equal, pair by pair; ValueError when there are more of one than of the other."""
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def all_equal(grids: Sequence[Grid]) -> bool:
    """Whether there is only one grid among them."""
    return all(np.array_equal(grid, grids[0]) for grid in grids[1:])


def _integer_array(array: np.ndarray, where: str) -> np.ndarray:
    if array.dtype.kind not in "iu":
        raise ArcnbError(f"{where}: an array of {array.dtype}, not of integers")
    if array.ndim != 2:
        raise ArcnbError(f"{where}: {array.ndim} dimensions instead of 2")
    if not array.size:
        raise ArcnbError(f"{where}: empty grid of shape {grid_size(array)}")
    return array


def _from_rows(rows: object, where: str) -> np.ndarray:
    if not _is_list(rows):
        raise ArcnbError(f"{where}: {_quoted(rows)} is not a list of rows")
    if not rows:
        raise ArcnbError(f"{where}: empty grid, no rows")
    for r, row in enumerate(rows):
        if not _is_list(row):
            raise ArcnbError(f"{where}: row {r} is {_quoted(row)}, not a list of cells")
        if not len(row):
            raise ArcnbError(f"{where}: row {r} is empty")
        if len(row) != len(rows[0]):
            raise ArcnbError(f"{where}: ragged, row {r} has {len(row)} cells but row 0 has {len(rows[0])}")
        if set(map(type, row)) != {int}:  # the usual case costs no Python loop over cells
            for c, cell in enumerate(row):
                if isinstance(cell, bool | np.bool_) or not isinstance(cell, int | np.integer):
                    raise ArcnbError(f"{where}: row {r}, column {c} is {_quoted(cell)}, not an integer")
    try:
        return np.array(rows, dtype=np.int64)
    except OverflowError:
        raise ArcnbError(f"{where}: a cell holds an integer beyond 64 bits, not a color 0..9") from None


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
