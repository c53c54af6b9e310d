"""Symmetry objects: how a point moves, and the orbit of a point.

Every object has `apply(x, y, iters=1)`. Coordinates are scalars or arrays, both at once; arrays come back
cast to int (cut toward zero), floats rounded to int with `round`, ints as they are.
"""

import math

import numpy as np


class Symmetry:
    """What the three symmetries have in common."""

    def apply(self, x, y, iters=1):
        """The point after `iters` applications; the plain Symmetry does nothing and returns None."""


class TranslationalSymmetry(Symmetry):
    """Moves by (translate_x, translate_y); negative iters move back."""

    def __init__(self, translate_x, translate_y):
        self.translate_x, self.translate_y = translate_x, translate_y

    def apply(self, x, y, iters=1):
        return _as_cell(x + iters * self.translate_x, y + iters * self.translate_y)

    def __repr__(self):
        return f"TranslationalSymmetry(translate_x={self.translate_x}, translate_y={self.translate_y})"


class MirrorSymmetry(Symmetry):
    """Reflects at x = mirror_x and/or y = mirror_y; None leaves that axis alone."""

    def __init__(self, mirror_x, mirror_y):
        self.mirror_x, self.mirror_y = mirror_x, mirror_y

    def apply(self, x, y, iters=1):
        if iters % 2 == 0:
            return x, y
        if self.mirror_x is not None:
            x = 2 * self.mirror_x - x
        if self.mirror_y is not None:
            y = 2 * self.mirror_y - y
        return _as_cell(x, y)

    def __repr__(self):
        return f"MirrorSymmetry(mirror_x={self.mirror_x}, mirror_y={self.mirror_y})"


class RotationalSymmetry(Symmetry):
    """Quarter turns around (center_x, center_y); zero or negative iters leave the point where it is."""

    def __init__(self, center_x, center_y):
        self.center_x, self.center_y = center_x, center_y

    def apply(self, x, y, iters=1):
        for _ in range(iters):
            x, y = self.center_x + (y - self.center_y), self.center_y - (x - self.center_x)
        return _as_cell(x, y)

    def __repr__(self):
        return f"RotationalSymmetry(center_x={self.center_x}, center_y={self.center_y})"


def _as_cell(x, y):
    if isinstance(x, np.ndarray):
        x = x.astype(int)
    if isinstance(y, np.ndarray):
        y = y.astype(int)
    return (round(x) if isinstance(x, float) else x), (round(y) if isinstance(y, float) else y)


def orbit(grid, x, y, symmetries):
    """Distinct (x, y) that combinations of the symmetries reach without ever leaving the canvas.

    The symmetries are applied in list order, each some number of times; the first one's count varies slowest.
    The result has the iteration order of a set filled in that order, which is what programs were written
    against. A point reached a second time at the same stage adds nothing new, so it is followed only once:
    the work is bounded by cells times symmetries, not by the number of combinations.
    """
    n, m = grid.shape
    counts = [_counts(symmetry, n, m) for symmetry in symmetries]
    points = set()
    followed = set()
    waiting = [(0, x, y)]  # the last is next: depth first, counts in ascending order
    while waiting:
        at = stage, x, y = waiting.pop()
        if stage == len(counts):
            points.add((x, y))
        elif at not in followed:
            followed.add(at)
            reached = (symmetries[stage].apply(x, y, count) for count in counts[stage])
            inside = [(stage + 1, *to) for to in reached if 0 <= to[0] < n and 0 <= to[1] < m]
            waiting.extend(reversed(inside))
    return list(points)


def _counts(symmetry, n, m):
    if isinstance(symmetry, MirrorSymmetry):
        return range(2)
    if isinstance(symmetry, RotationalSymmetry):
        return range(4)
    t = max(
        math.ceil(n / abs(symmetry.translate_x)) if symmetry.translate_x != 0 else 0,
        math.ceil(m / abs(symmetry.translate_y)) if symmetry.translate_y != 0 else 0,
    )
    return range(-t, t + 1)
