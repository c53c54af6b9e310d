"""Drawing on a copy of a grid. Whatever lies outside the grid is clipped."""

import numpy as np

from .grids import DslError, Grid
from .objects import Object


def draw_pixel(grid: Grid, row: int, column: int, color: int) -> Grid:
    """One cell."""
    return draw_rectangle(grid, row, column, 1, 1, color)


def draw_horizontal_line(grid: Grid, row: int, color: int) -> Grid:
    """The whole row `row`."""
    return draw_rectangle(grid, row, 0, 1, grid.shape[1], color)


def draw_vertical_line(grid: Grid, column: int, color: int) -> Grid:
    """The whole column `column`."""
    return draw_rectangle(grid, 0, column, grid.shape[0], 1, color)


def draw_line(grid: Grid, start: tuple[int, int], end: tuple[int, int], color: int) -> Grid:
    """A straight line from cell `start` to cell `end`, both (row, column), both included."""
    n = max(abs(end[0] - start[0]), abs(end[1] - start[1])) + 1
    rows = np.rint(np.linspace(start[0], end[0], n)).astype(int)
    columns = np.rint(np.linspace(start[1], end[1], n)).astype(int)
    inside = (rows >= 0) & (rows < grid.shape[0]) & (columns >= 0) & (columns < grid.shape[1])
    result = grid.copy()
    result[rows[inside], columns[inside]] = color
    return result


def draw_ray(
    grid: Grid, start: tuple[int, int], step: tuple[int, int], color: int, background: int = 0
) -> Grid:
    """From the cell after `start` on, by `step` (rows, columns) each time, while cells are `background`."""
    if tuple(step) == (0, 0):
        raise DslError("a ray needs a step other than (0, 0)")
    result = grid.copy()
    row, column = start[0] + step[0], start[1] + step[1]
    while 0 <= row < grid.shape[0] and 0 <= column < grid.shape[1] and grid[row, column] == background:
        result[row, column] = color
        row, column = row + step[0], column + step[1]
    return result


def draw_rectangle(
    grid: Grid, row: int, column: int, height: int, width: int, color: int, filled: bool = True
) -> Grid:
    """A rectangle of (height, width) whose top left cell is (row, column); only its edge unless `filled`."""
    result = grid.copy()
    rows = slice(max(row, 0), max(row + height, 0))
    columns = slice(max(column, 0), max(column + width, 0))
    result[rows, columns] = color
    if not filled:
        inner_rows = slice(max(row + 1, 0), max(row + height - 1, 0))
        inner_columns = slice(max(column + 1, 0), max(column + width - 1, 0))
        result[inner_rows, inner_columns] = grid[inner_rows, inner_columns]
    return result


def draw_border(grid: Grid, color: int) -> Grid:
    """The first and last row and column."""
    return draw_rectangle(grid, 0, 0, *grid.shape, color, filled=False)


def draw_object(grid: Grid, obj: Object) -> Grid:
    """The object's cells at its position."""
    return _paste(grid, obj, obj.grid)


def erase_object(grid: Grid, obj: Object) -> Grid:
    """The object's background color where it has cells."""
    return _paste(grid, obj, np.full_like(obj.grid, obj.background))


def overlay(bottom: Grid, top: Grid, background: int = 0) -> Grid:
    """`top` laid on `bottom`, which shows where `top` has `background`. DslError when shapes differ."""
    if bottom.shape != top.shape:
        raise DslError(f"cannot overlay a grid of shape {top.shape} on one of shape {bottom.shape}")
    return np.where(top == background, bottom, top)


def _paste(grid: Grid, obj: Object, cells: Grid) -> Grid:
    top, left = max(obj.row, 0), max(obj.column, 0)
    bottom, right = min(obj.bottom + 1, grid.shape[0]), min(obj.right + 1, grid.shape[1])
    result = grid.copy()
    if top < bottom and left < right:
        part = (slice(top - obj.row, bottom - obj.row), slice(left - obj.column, right - obj.column))
        target = result[top:bottom, left:right]
        target[obj.mask[part]] = cells[part][obj.mask[part]]
    return result
