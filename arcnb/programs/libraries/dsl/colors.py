"""Colors: which there are, masks of them, exchanging them."""

from collections.abc import Mapping

import numpy as np

from .grids import DslError, Grid


def colors(grid: Grid, background: int | None = 0) -> list[int]:
    """Colors present, ascending, without `background` (None: all of them)."""
    return [int(color) for color in np.unique(grid) if color != background]


def color_count(grid: Grid, color: int) -> int:
    """Number of cells of `color`."""
    return int(np.count_nonzero(grid == color))


def mode_color(grid: Grid, background: int | None = 0) -> int:
    """The most frequent color other than `background` (None: of all); the smallest of equals.

    DslError when no cell has another color.
    """
    present = colors(grid, background)
    if not present:
        raise DslError(f"no color other than the background {background}")
    return max(present, key=lambda color: color_count(grid, color))


def least_color(grid: Grid, background: int | None = 0) -> int:
    """The rarest color other than `background`; the smallest of equals. DslError as for `mode_color`."""
    present = colors(grid, background)
    if not present:
        raise DslError(f"no color other than the background {background}")
    return min(present, key=lambda color: color_count(grid, color))


def color_mask(grid: Grid, color: int) -> np.ndarray:
    """Boolean array of the grid's shape: where the cell has `color`."""
    return grid == color


def fill_mask(grid: Grid, mask: np.ndarray, color: int) -> Grid:
    """`color` where `mask` (boolean, the grid's shape) is true. DslError when shapes differ."""
    if mask.shape != grid.shape:
        raise DslError(f"mask of shape {mask.shape} for a grid of shape {grid.shape}")
    return np.where(mask, color, grid)


def recolor(grid: Grid, old: int, new: int) -> Grid:
    """Cells of color `old` become `new`."""
    return np.where(grid == old, new, grid)


def map_colors(grid: Grid, mapping: Mapping[int, int]) -> Grid:
    """Every color that `mapping` names becomes its value, all at once; other colors stay."""
    result = grid.copy()
    for old, new in mapping.items():
        result[grid == old] = new
    return result


def swap_colors(grid: Grid, a: int, b: int) -> Grid:
    """Colors `a` and `b` exchanged."""
    return map_colors(grid, {a: b, b: a})


def keep_color(grid: Grid, color: int, background: int = 0) -> Grid:
    """Only cells of `color`; the others become `background`."""
    return np.where(grid == color, grid, background)


def remove_color(grid: Grid, color: int, background: int = 0) -> Grid:
    """Cells of `color` become `background`."""
    return np.where(grid == color, background, grid)


def set_color(grid: Grid, color: int, background: int = 0) -> Grid:
    """Every cell that is not `background` becomes `color`."""
    return np.where(grid != background, color, grid)
