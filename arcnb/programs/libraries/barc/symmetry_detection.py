"""Detecting the symmetries of a grid.

Each candidate is scored over the cells that count (color not ignored, not background): P of them fall on the
same color, O outside the canvas, X on another color that is not ignored. Scores are computed in double
precision exactly as written, because equal scores are compared.
"""

import numpy as np

from arcnb.programs.libraries.barc.symmetry import MirrorSymmetry, RotationalSymmetry, TranslationalSymmetry


class _Counts:
    """Cells of one grid that count as sources, and P, O, X of a candidate given as two aligned windows."""

    def __init__(self, grid, ignore_colors, background):
        self.grid = grid
        self.ignored = np.isin(grid, ignore_colors)  # a single color, or None for none, is understood too
        self.source = ~self.ignored if background is None else ~self.ignored & (grid != background)
        self.total = int(np.count_nonzero(self.source))

    def of(self, source, image):
        """P, O, X when the window `source` falls on `image`, a view of grid and ignored of the same shape."""
        at = self.source[source]
        colors, ignored = image(self.grid), image(self.ignored)
        same = colors == self.grid[source]
        preserved = np.count_nonzero(at & same)
        conflicts = np.count_nonzero(at & ~same & ~ignored)
        return preserved, self.total - np.count_nonzero(at), conflicts


def detect_translational_symmetry(grid, ignore_colors=[0], background=None):  # noqa: B006
    """The best shift along x and the best along y; only if neither exists, the best one along both."""
    counts = _Counts(grid, ignore_colors, background)
    n, m = grid.shape

    def score(tx, ty):
        (from_x, to_x), (from_y, to_y) = _shifted(n, tx), _shifted(m, ty)
        p, o, x = counts.of((from_x, from_y), lambda a: a[to_x, to_y])
        return p - 0.01 * o - 100000 * x

    def best(candidates):
        """Candidates come in order of preference; the first of the greatest score above 0."""
        top, found = 0, []
        for tx, ty in candidates:
            value = score(tx, ty)
            if value > top:
                top, found = value, [TranslationalSymmetry(tx, ty)]
        return found

    found = best((t, 0) for t in range(1 - n, n) if t) + best((0, t) for t in range(1 - m, m) if t)
    diagonal = ((tx, ty) for tx in range(1, n) for ty in range(1, m))
    return found or best(sorted(diagonal, key=lambda t: (t[0] + t[1], t[0])))


def detect_mirror_symmetry(grid, ignore_colors=[0], background=None):  # noqa: B006
    """All mirrors of the best score without conflict: in x, in y, then in both (point reflections)."""
    counts = _Counts(grid, ignore_colors, background)
    n, m = grid.shape
    # Twice the mirror's place, so that whole and half places are integers; None leaves the axis alone.
    doubled = [(a, None) for a in range(2 * n)] + [(None, b) for b in range(2 * m)]
    doubled += [(2 * i + z, 2 * j + z) for i in range(n) for j in range(m) for z in (0, 1)]
    top, found = 0, []
    for a, b in doubled:
        across, down = _mirrored(n, a), _mirrored(m, b)
        window = across[0], down[0]
        p, o, x = counts.of(window, lambda g, w=window, flips=(across[1], down[1]): g[w][flips])
        if x or not p:
            continue
        value = p - 0.01 * o
        if value > top:
            top, found = value, []
        if value == top:
            found.append(MirrorSymmetry(_halved(a), _halved(b)))
    return found


def detect_rotational_symmetry(grid, ignore_colors=[0], background=None):  # noqa: B006
    """The first center of the greatest score above 0 for a quarter turn; None without any."""
    counts = _Counts(grid, ignore_colors, background)
    n, m = grid.shape
    inside = np.zeros((n + 1, m + 1), dtype=int)  # inside[a, b]: sources with x < a and y < b
    inside[1:, 1:] = counts.source.cumsum(axis=0).cumsum(axis=1)
    top, found = 0, None
    for i in range(n):
        for j in range(m):
            for z in (0, 1):
                # (x, y) goes to (y + d, e - x)
                d, e = i - j, i + j + z
                x0, x1 = max(0, e - m + 1), min(n, e + 1)
                y0, y1 = max(0, -d), min(m, n - d)
                if x0 >= x1 or y0 >= y1:
                    continue
                most = inside[x1, y1] - inside[x0, y1] - inside[x1, y0] + inside[x0, y0]
                if most - 5 * (counts.total - most) <= top:
                    continue  # cannot win even if every cell inside fits
                rows, columns = slice(y0 + d, y1 + d), slice(e - x1 + 1, e - x0 + 1)
                window = slice(x0, x1), slice(y0, y1)
                p, o, x = counts.of(window, lambda g, r=rows, c=columns: g[r, c].T[::-1])
                value = p - 5 * o - 1000 * x
                if value > top:
                    top, found = value, RotationalSymmetry(_halved(2 * i + z), _halved(2 * j + z))
    return found


def _shifted(n, t):
    """Slices of the cells that stay inside when moved by t, and of where they go."""
    return slice(max(0, -t), n - max(0, t)), slice(max(0, t), n - max(0, -t))


def _mirrored(n, doubled):
    """Slice of the cells that stay inside when mirrored, and the slice that reverses it."""
    if doubled is None:
        return slice(0, n), slice(None)
    return slice(max(0, doubled - n + 1), min(n, doubled + 1)), slice(None, None, -1)


def _halved(doubled):
    if doubled is None:
        return None
    return doubled // 2 if doubled % 2 == 0 else doubled / 2
