"""Writing into grids: fills, lines, pasting, scaling, moving.

`flood_fill`, `draw_line` and the `blit` family write into the grid that they get. x is the first index.
"""

import operator

import numpy as np

from arcnb.programs.libraries.barc.regions import region_of


def flood_fill(grid, x, y, color, connectivity=4):
    """Recolor the connected region of equal color that holds (x, y); writes grid, returns None."""
    old = grid[x, y]
    assert connectivity in (4, 8), "flood_fill: connectivity must be 4 or 8"
    if old != color:
        grid[region_of(grid == old, x, y, connectivity)] = color


def draw_line(
    grid,
    x,
    y,
    end_x=None,
    end_y=None,
    length=None,
    direction=None,
    color=None,
    stop_at_color=[],  # noqa: B006 (the signature that programs know; never modified)
):
    """Paint cells from (x, y) on, step by step, each coordinate changing by -1, 0 or 1.

    With an end point, length and direction follow from it: a line that is neither straight nor diagonal runs
    diagonally and misses its end. Steps outside the canvas are skipped. A cell whose color is in
    `stop_at_color` ends the line unpainted. Returns the last painted cell, else the start.
    """
    assert (int(x), int(y)) == (x, y), f"draw_line: x and y must be whole, got {x}, {y}"
    x, y = int(x), int(y)
    assert (end_x is None) == (end_y is None), "draw_line: end_x and end_y belong together"
    if end_x is not None:
        length = max(abs(end_x - x), abs(end_y - y)) + 1
        direction = (end_x - x, end_y - y)
    elif length is None:
        length = 2 * max(grid.shape)
    step_x, step_y = direction
    dx, dy = _sign(step_x), _sign(step_y)
    n, m = grid.shape
    last = (x, y)
    for i in range(length):
        at = (x + i * dx, y + i * dy)
        if 0 <= at[0] < n and 0 <= at[1] < m:
            if grid[at] in stop_at_color:
                break
            grid[at] = color
            last = at
    return last


def _sign(step):
    """-1, 0 or 1; a fraction stays a float, so that using it as an index fails as it does in the original."""
    return 0 if step == 0 else step // abs(step)


def blit(grid, sprite, x=0, y=0, background=None):
    """Copy the sprite's cells that differ from background (None: all) to (x, y); what sticks out is clipped.

    Writes grid and returns it. A sprite that is a view of the same grid is copied cell by cell in reading
    order, so that a cell just written can be read again.
    """
    x, y = int(x), int(y)
    n, m = grid.shape
    if sprite.ndim != 2:
        raise IndexError(f"blit: the sprite must be 2-d, it has shape {sprite.shape}")
    w, h = sprite.shape
    first_x, first_y = max(0, -x), max(0, -y)
    last_x, last_y = min(w, n - x), min(h, m - y)
    if first_x >= last_x or first_y >= last_y:
        return grid
    if np.may_share_memory(grid, sprite):
        for i in range(first_x, last_x):
            for j in range(first_y, last_y):
                if background is None or sprite[i, j] != background:
                    grid[x + i, y + j] = sprite[i, j]
        return grid
    part = sprite[first_x:last_x, first_y:last_y]
    place = grid[x + first_x : x + last_x, y + first_y : y + last_y]
    if background is None:
        place[...] = part
    else:
        np.copyto(place, part, where=part != background, casting="unsafe")
    return grid


def blit_sprite(grid, sprite, x, y, background=0):
    """`blit` with a required place; background cells of the sprite are transparent."""
    return blit(grid, sprite, x, y, background)


def blit_object(grid, obj, background=0):
    """`blit` of an object that is as large as its grid: it appears at its own place."""
    return blit(grid, obj, 0, 0, background)


def scale_sprite(sprite, factor):
    """New array in which each cell is a factor x factor block."""
    factor = operator.index(factor)  # numpy would take 2.0
    return np.repeat(np.repeat(sprite, factor, axis=0), factor, axis=1)


def scale_pattern(pattern, scale_factor):
    """`scale_sprite` under its older name."""
    return scale_sprite(pattern, scale_factor)


def translate(obj, x, y, background=0):
    """New array of the same shape with every cell moved by (x, y); cells that appear are background."""
    n, m = obj.shape
    moved = np.full_like(obj, background)
    to_x = slice(max(0, x), min(n, n + x))
    to_y = slice(max(0, y), min(m, m + y))
    if to_x.start >= to_x.stop or to_y.start >= to_y.stop:
        return moved
    if int(x) != x or int(y) != y or isinstance(x, float) or isinstance(y, float):
        raise IndexError(f"translate: offsets must be integers, got {x}, {y}")
    moved[to_x, to_y] = obj[to_x.start - x : to_x.stop - x, to_y.start - y : to_y.stop - y]
    return moved
