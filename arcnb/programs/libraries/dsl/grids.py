"""Whole grids: creating, cutting, turning, scaling, stacking."""

from typing import TypeAlias

import numpy as np

Grid: TypeAlias = np.ndarray


class DslError(ValueError):
    """An argument that a DSL function cannot work with."""


def create_grid(height: int, width: int, color: int = 0) -> Grid:
    """A (height, width) grid of one color."""
    if height < 1 or width < 1:
        raise DslError(f"a grid needs at least one row and one column, not {height}x{width}")
    return np.full((height, width), color, dtype=np.int64)


def crop(grid: Grid, row: int, column: int, height: int, width: int) -> Grid:
    """The part of (height, width) whose top left cell is (row, column). DslError when it leaves the grid."""
    inside = row >= 0 and column >= 0 and row + height <= grid.shape[0] and column + width <= grid.shape[1]
    if not inside or height < 1 or width < 1:
        raise DslError(
            f"crop of {height}x{width} at ({row}, {column}) is not inside {grid.shape[0]}x{grid.shape[1]}"
        )
    return grid[row : row + height, column : column + width].copy()


def crop_to_content(grid: Grid, background: int = 0) -> Grid:
    """The smallest part that holds every cell other than `background`. DslError when there is none."""
    rows, columns = np.nonzero(grid != background)
    if not rows.size:
        raise DslError(f"nothing to crop to: every cell has the background color {background}")
    return grid[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].copy()


def trim(grid: Grid, n: int = 1) -> Grid:
    """The grid without its outer `n` rows and columns on every side. DslError when nothing is left."""
    height, width = grid.shape
    return crop(grid, n, n, height - 2 * n, width - 2 * n)


def pad(grid: Grid, n: int = 1, color: int = 0) -> Grid:
    """The grid with `n` more rows and columns of `color` on every side."""
    return np.pad(grid, n, constant_values=color)


def flip_horizontal(grid: Grid) -> Grid:
    """Left and right exchanged."""
    return grid[:, ::-1].copy()


def flip_vertical(grid: Grid) -> Grid:
    """Top and bottom exchanged."""
    return grid[::-1].copy()


def transpose(grid: Grid) -> Grid:
    """Rows become columns (mirrored along the main diagonal)."""
    return grid.T.copy()


def rotate_clockwise(grid: Grid) -> Grid:
    """A quarter turn to the right."""
    return np.rot90(grid, -1).copy()


def rotate_counterclockwise(grid: Grid) -> Grid:
    """A quarter turn to the left."""
    return np.rot90(grid).copy()


def rotate_180(grid: Grid) -> Grid:
    """A half turn."""
    return grid[::-1, ::-1].copy()


def upscale(grid: Grid, factor: int) -> Grid:
    """Every cell becomes a square of `factor` x `factor` cells."""
    return np.repeat(np.repeat(grid, factor, axis=0), factor, axis=1)


def downscale(grid: Grid, factor: int) -> Grid:
    """Every `factor`-th cell of every `factor`-th row; undoes `upscale`."""
    return grid[::factor, ::factor].copy()


def tile(grid: Grid, rows: int, columns: int) -> Grid:
    """The grid repeated `rows` times downwards and `columns` times to the right."""
    return np.tile(grid, (rows, columns))


def stack_horizontal(*grids: Grid) -> Grid:
    """Grids of equal height side by side, left to right. DslError when heights differ."""
    if len({grid.shape[0] for grid in grids}) != 1:
        raise DslError(f"grids side by side need equal heights, not {[grid.shape[0] for grid in grids]}")
    return np.hstack(grids)


def stack_vertical(*grids: Grid) -> Grid:
    """Grids of equal width one above the other, top to bottom. DslError when widths differ."""
    if len({grid.shape[1] for grid in grids}) != 1:
        raise DslError(
            f"grids one above the other need equal widths, not {[grid.shape[1] for grid in grids]}"
        )
    return np.vstack(grids)


def left_half(grid: Grid) -> Grid:
    """Columns left of the middle; a middle column is left out."""
    return grid[:, : grid.shape[1] // 2].copy()


def right_half(grid: Grid) -> Grid:
    """Columns right of the middle; a middle column is left out."""
    return grid[:, (grid.shape[1] + 1) // 2 :].copy()


def top_half(grid: Grid) -> Grid:
    """Rows above the middle; a middle row is left out."""
    return grid[: grid.shape[0] // 2].copy()


def bottom_half(grid: Grid) -> Grid:
    """Rows below the middle; a middle row is left out."""
    return grid[(grid.shape[0] + 1) // 2 :].copy()
