"""Moving cells and objects."""

import numpy as np

from .drawing import draw_object, erase_object
from .grids import DslError, Grid
from .objects import Object

STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def gravity(grid: Grid, direction: str = "down", background: int = 0) -> Grid:
    """Every cell that is not `background` falls to the end of its row or column, keeping the order.

    direction: "down", "up", "left" or "right".
    """
    rows, columns = _step(direction)
    lines = grid if columns else grid.T
    towards_end = rows + columns > 0
    # A stable sort by "is content" moves content to the end and keeps its order.
    order = np.argsort((lines != background) == towards_end, axis=1, kind="stable")
    fallen = np.take_along_axis(lines, order, axis=1)
    return (fallen if columns else fallen.T).copy()


def shift(grid: Grid, rows: int, columns: int, background: int = 0) -> Grid:
    """The grid's content moved down by `rows` and right by `columns`; what leaves the grid is lost."""
    height, width = grid.shape
    result = np.full_like(grid, background)
    if abs(rows) < height and abs(columns) < width:
        target = (_span(rows, height), _span(columns, width))
        source = (_span(-rows, height), _span(-columns, width))
        result[target] = grid[source]
    return result


def shift_wrap(grid: Grid, rows: int, columns: int) -> Grid:
    """As `shift`, but what leaves the grid on one side comes in on the other."""
    return np.roll(grid, (rows, columns), axis=(0, 1))


def slide_object(grid: Grid, obj: Object, direction: str) -> Grid:
    """The object slides until its next step would meet another cell or leave the grid.

    direction: "down", "up", "left" or "right". The object must be part of the grid.
    """
    rows, columns = _step(direction)
    emptied = erase_object(grid, obj)
    while _is_free(emptied, obj.move(rows, columns)):
        obj = obj.move(rows, columns)
    return draw_object(emptied, obj)


def _is_free(grid: Grid, obj: Object) -> bool:
    if obj.row < 0 or obj.column < 0 or obj.bottom >= grid.shape[0] or obj.right >= grid.shape[1]:
        return False
    below = grid[obj.row : obj.bottom + 1, obj.column : obj.right + 1]
    return bool(np.all(below[obj.mask] == obj.background))


def _span(offset: int, length: int) -> slice:
    return slice(max(offset, 0), length + min(offset, 0))


def _step(direction: str) -> tuple[int, int]:
    if direction not in STEPS:
        raise DslError(f"direction must be one of {', '.join(STEPS)}, not {direction!r}")
    return STEPS[direction]
