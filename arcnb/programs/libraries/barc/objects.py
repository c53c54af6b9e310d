"""Finding and describing objects: bounding boxes, colors, connected components.

An object is an array as large as its grid: the object at its place, background elsewhere.
"""

import numpy as np

from arcnb.programs.libraries.barc.regions import components


def bounding_box(grid, background=0):
    """(x, y, w, h) of the cells that are not background; (n, m, -n, -m) when there are none."""
    n, m = grid.shape
    mask = grid != background
    # Searching bytes costs a third of numpy's reductions, on grids of this size.
    rows = mask.tobytes()
    first = rows.find(1)
    if first < 0:
        return n, m, -n, -m
    columns = mask.T.tobytes()
    x, y = first // m, columns.find(1) // n
    return x, y, rows.rfind(1) // m - x + 1, columns.rfind(1) // n - y + 1


def bounding_box_mask(grid, background=0):
    """Bool array, True inside the bounding box."""
    x, y, w, h = bounding_box(grid, background)
    mask = np.zeros(grid.shape, dtype=bool)
    if w > 0:
        mask[x : x + w, y : y + h] = True
    return mask


def crop(grid, background=0):
    """View of the part inside the bounding box; shape (0, 0) when there is nothing."""
    x, y, w, h = bounding_box(grid, background)
    return grid[x : x + w, y : y + h]


# Anchor, in lower case and without spaces -> position along x and y; 0 first, 0.5 middle, 1 last cell.
_ANCHORS = {
    "upperleft": (0, 0),
    "upperright": (1, 0),
    "lowerleft": (0, 1),
    "lowerright": (1, 1),
    "center": (0.5, 0.5),
    "uppercenter": (0.5, 0),
    "lowercenter": (0.5, 1),
    "leftcenter": (0, 0.5),
    "rightcenter": (1, 0.5),
}


def object_position(obj, background=0, anchor="upper left"):
    """(x, y) of a point of the bounding box; each an int when whole, else a float ending in .5."""
    name = anchor.lower().replace(" ", "").replace("top", "upper").replace("bottom", "lower")
    assert name in _ANCHORS, f"object_position: unknown anchor {anchor!r}"
    x, y, w, h = bounding_box(obj, background)
    along_x, along_y = _ANCHORS[name]
    return whole(x + along_x * (w - 1)), whole(y + along_y * (h - 1))


def whole(number):
    """int when the number is whole, else the number."""
    return int(number) if int(number) == number else number


def object_colors(obj, background=0):
    """The distinct colors without background, in the order that CPython's set gives them.

    Programs take the first; the original orders them by these very set operations.
    """
    cells = obj.flatten()
    if cells.dtype.kind not in "biu":
        return list(set(cells) - {background})
    # A set's order depends on what went in first, not on how often: so the distinct ones, in the same order.
    # (As a list: a set made from a dictionary starts with a larger table, and so in another order.)
    kind, distinct = cells.dtype.type, list(dict.fromkeys(cells.tolist()))
    return [kind(color) for color in set(distinct) - {background}]


def find_connected_components(grid, background=0, connectivity=4, monochromatic=True):
    """List of objects. Monochromatic: color by color (order of `object_colors`), else by the first cell."""
    masks = (
        (grid == color for color in object_colors(grid, background))
        if monochromatic
        else iter((grid != background,))
    )
    if connectivity not in (4, 8):
        raise ValueError(f"connectivity must be 4 or 8, got {connectivity!r}")
    flat = grid.flatten()
    dtype = int if grid.dtype.kind in "biu" else grid.dtype  # objects of a mask hold 0 and 1
    found = []
    for mask in masks:
        for region in components(mask, connectivity):
            obj = np.full(grid.shape, background, dtype=dtype)
            obj.reshape(-1)[region] = flat[region]
            found.append(obj)
    return found


def is_contiguous(bitmask, background=0, connectivity=4):
    """Whether the cells that are not background form exactly one component; False when there are none."""
    return len(components(bitmask != background, connectivity)) == 1
