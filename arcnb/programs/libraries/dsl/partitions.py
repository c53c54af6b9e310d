"""Splitting a grid into parts."""

import numpy as np

from .grids import DslError, Grid


def split_columns(grid: Grid, n: int) -> list[Grid]:
    """`n` parts of equal width, left to right. DslError when the width is not divisible."""
    if n < 1 or grid.shape[1] % n:
        raise DslError(f"{grid.shape[1]} columns cannot be split into {n} equal parts")
    return [part.copy() for part in np.split(grid, n, axis=1)]


def split_rows(grid: Grid, n: int) -> list[Grid]:
    """`n` parts of equal height, top to bottom. DslError when the height is not divisible."""
    if n < 1 or grid.shape[0] % n:
        raise DslError(f"{grid.shape[0]} rows cannot be split into {n} equal parts")
    return [part.copy() for part in np.split(grid, n, axis=0)]


def split_grid(grid: Grid, color: int) -> list[list[Grid]]:
    """The parts between full rows and columns of `color`: a list of rows of parts."""
    rows = _runs(~np.all(grid == color, axis=1))
    columns = _runs(~np.all(grid == color, axis=0))
    return [[grid[row, column].copy() for column in columns] for row in rows]


def _runs(keep: np.ndarray) -> list[slice]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], keep.astype(int), [0]))))
    return [slice(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
