"""Symmetric and periodic grids: testing, making, completing."""

import numpy as np

from .grids import DslError, Grid


def is_symmetric_horizontal(grid: Grid) -> bool:
    """Whether the grid equals its left-right mirror image."""
    return bool(np.array_equal(grid, grid[:, ::-1]))


def is_symmetric_vertical(grid: Grid) -> bool:
    """Whether the grid equals its top-bottom mirror image."""
    return bool(np.array_equal(grid, grid[::-1]))


def mirror_horizontal(grid: Grid) -> Grid:
    """The grid with its mirror image to the right: twice as wide."""
    return np.hstack([grid, grid[:, ::-1]])


def mirror_vertical(grid: Grid) -> Grid:
    """The grid with its mirror image below: twice as high."""
    return np.vstack([grid, grid[::-1]])


def complete_symmetry(grid: Grid, hidden: int = 0) -> Grid:
    """Cells of color `hidden` take their color from the mirror images of the cell.

    Tried in this order: left-right, top-bottom, half turn, then, for square grids, the two diagonals.
    Cells without any visible mirror image stay.
    """
    images = [np.fliplr, np.flipud, lambda g: g[::-1, ::-1]]
    if grid.shape[0] == grid.shape[1]:
        images += [np.transpose, lambda g: g[::-1, ::-1].T]
    result = grid.copy()
    for image in images:
        result = np.where(result == hidden, image(result), result)
    return result


def complete_tiling(grid: Grid, hidden: int = 0) -> Grid:
    """Cells of color `hidden` are filled in by the smallest tile that repeats over the visible cells.

    DslError when no tile smaller than the grid fits, or the visible cells do not show all of it.
    """
    height, width = grid.shape
    visible = grid != hidden
    sizes = [(h, w) for h in range(1, height + 1) for w in range(1, width + 1) if (h, w) != (height, width)]
    for tile_height, tile_width in sorted(sizes, key=lambda size: size[0] * size[1]):
        place = (np.arange(height) % tile_height)[:, None] * tile_width + np.arange(width) % tile_width
        tile = np.full(tile_height * tile_width, -1)
        tile[place[visible]] = grid[visible]
        if (tile >= 0).all() and np.array_equal(tile[place][visible], grid[visible]):
            return tile[place]
    raise DslError(f"no tile repeats over the cells that are not {hidden}")
