"""Filling and outlining areas."""

from itertools import pairwise

import numpy as np

from .grids import DslError, Grid
from .objects import enclosed_areas, label_areas


def flood_fill(grid: Grid, row: int, column: int, color: int) -> Grid:
    """The area of equal color that holds cell (row, column), side by side, becomes `color`.

    DslError when the cell is outside the grid.
    """
    if not (0 <= row < grid.shape[0] and 0 <= column < grid.shape[1]):
        raise DslError(f"cell ({row}, {column}) is outside {grid.shape[0]}x{grid.shape[1]}")
    labels, _ = label_areas(grid == grid[row, column], diagonal=False)
    return np.where(labels == labels[row, column], color, grid)


def fill_enclosed(grid: Grid, color: int, background: int = 0) -> Grid:
    """Background cells that cannot reach the border of the grid, side by side, become `color`."""
    return np.where(enclosed_areas(grid != background), color, grid)


def outline(grid: Grid, color: int, background: int = 0, diagonal: bool = True) -> Grid:
    """Background cells next to another color become `color`; `diagonal`: corners count as next to."""
    content = np.pad(grid != background, 1)
    height, width = grid.shape
    near = np.zeros(grid.shape, dtype=bool)
    for rows in (-1, 0, 1):
        for columns in (-1, 0, 1):
            if diagonal or rows == 0 or columns == 0:
                near |= content[1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]
    return np.where(near & (grid == background), color, grid)


def connect_pixels(grid: Grid, color: int, line_color: int | None = None, background: int = 0) -> Grid:
    """Neighbouring cells of `color` in the same row or column get joined by a line over background cells.

    line_color: the line's color, `color` when None.
    """
    result = grid.copy()
    line_color = color if line_color is None else line_color
    for cells, lines in ((grid, result), (grid.T, result.T)):  # the transposed view draws the columns
        for row, line in zip(cells, lines, strict=True):
            for start, end in pairwise(np.flatnonzero(row == color)):
                if np.all(row[start + 1 : end] == background):
                    line[start + 1 : end] = line_color
    return result
