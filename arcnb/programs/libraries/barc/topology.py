"""Position, collision, inside and outside."""

import numpy as np

from arcnb.programs.libraries.barc.objects import bounding_box
from arcnb.programs.libraries.barc.regions import dilate, region_of, steps


def collision(_=None, object1=None, object2=None, x1=0, y1=0, x2=0, y2=0, background=0):
    """Whether object1 with its corner at (x1, y1) and object2 at (x2, y2) share a cell.

    The first positional parameter is a dummy: the objects are passed by keyword.
    """
    return _overlap(
        object1 != background, object2 != background, x2 - x1, y2 - y1, object1.shape, object2.shape
    )


def contact(_=None, object1=None, object2=None, x1=0, y1=0, x2=0, y2=0, background=0, connectivity=4):
    """As `collision`, but neighbouring cells are enough."""
    steps(connectivity)
    n, m = object1.shape
    grown = np.zeros((n + 2, m + 2), dtype=bool)
    grown[1:-1, 1:-1] = object1 != background
    grown = dilate(grown, connectivity)
    dx, dy = int(x2 - x1) + 1, int(y2 - y1) + 1
    return _overlap(grown, object2 != background, dx, dy, grown.shape, object2.shape)


def _overlap(mask1, mask2, dx, dy, shape1, shape2):
    """Whether two masks share a True cell when mask2 is moved by (dx, dy)."""
    dx, dy = int(dx), int(dy)
    (n1, m1), (n2, m2) = shape1, shape2
    left, right = max(0, dx), min(n1, n2 + dx)
    upper, lower = max(0, dy), min(m1, m2 + dy)
    if left >= right or upper >= lower:
        return False
    return bool(
        (mask1[left:right, upper:lower] & mask2[left - dx : right - dx, upper - dy : lower - dy]).any()
    )


def check_between_objects(obj1, obj2, x, y, padding=0, background=0):
    """Whether (x, y) lies in the corridor between the bounding boxes of two objects, in x or in y."""
    box1, box2 = bounding_box(obj1, background), bounding_box(obj2, background)
    for a, b in ((box1, box2), (box2, box1)):
        if a[0] + a[2] <= x < b[0] and _within(y, padding, a[1], a[3], b[1], b[3]):
            return True
        if a[1] + a[3] <= y < b[1] and _within(x, padding, a[0], a[2], b[0], b[2]):
            return True
    return False


def _within(at, padding, start1, extent1, start2, extent2):
    low, high = max(start1, start2), min(start1 + extent1, start2 + extent2)
    return bool(at - padding >= low and at + padding < high)


def object_interior(grid, background=0):
    """Bool array: the object's own cells and the holes that it encloses (4-neighbour steps)."""
    return ~_outside(grid, background)[1:-1, 1:-1]


def object_boundary(grid, background=0):
    """Bool array: cells of the object that touch the outside or the rim of the canvas by an edge."""
    return (grid != background) & dilate(_outside(grid, background), 4)[1:-1, 1:-1]


def object_neighbors(grid, background=0, connectivity=4):
    """Bool array: background cells next to a boundary cell."""
    return (grid == background) & dilate(object_boundary(grid, background), connectivity)


def _outside(grid, background):
    """Mask of the canvas with a ring of background around it: what the ring reaches through background."""
    n, m = grid.shape
    empty = np.ones((n + 2, m + 2), dtype=bool)
    empty[1:-1, 1:-1] = grid == background
    outside = np.zeros_like(empty)
    outside[region_of(empty, 0, 0, 4)] = True
    return outside
