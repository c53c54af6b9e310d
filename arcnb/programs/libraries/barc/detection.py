"""`detect_objects`: objects by connectivity or by the size of a window, chosen so that none overlap."""

import numpy as np

from arcnb.programs.libraries.barc.objects import bounding_box, crop, find_connected_components

MAX_STEPS = 1_000_000  # objects looked at when choosing; one or two seconds


def detect_objects(
    grid,
    _=None,
    predicate=None,
    background=0,
    monochromatic=False,
    connectivity=None,
    allowed_dimensions=None,
    colors=None,
    can_overlap=False,
):
    """List of objects.

    With `connectivity`, the connected components (optionally only of `colors`, only those whose crop
    satisfies `predicate`). With `allowed_dimensions`, every non-empty window of one of those (w, h); the
    components then stay only if the whole grid has an allowed shape. Without either the list is empty. The
    second positional parameter is a dummy. Unless `can_overlap`, a set without shared cells is chosen (see
    `choose_disjoint`).
    """
    found = []
    if connectivity:
        found = find_connected_components(grid, background, connectivity, monochromatic)
        if colors:
            found = [obj for obj in found if _only(obj, colors, background)]
        if predicate:
            found = [obj for obj in found if predicate(crop(obj, background))]
    if allowed_dimensions:
        found = found if grid.shape in allowed_dimensions else []
        found = found + list(_windows(grid, found, predicate, background, allowed_dimensions, colors))
    return found if can_overlap else choose_disjoint(found, background)


def _windows(grid, components, predicate, background, dimensions, colors):
    n, m = grid.shape
    for w, h in dimensions:
        for x in range(n - w + 1):
            for y in range(m - h + 1):
                window = grid[x : x + w, y : y + h]
                if not (window != background).any():
                    continue
                if colors is not None and not _only(window, colors, background):
                    continue
                if predicate and not predicate(window):
                    continue
                obj = np.full(grid.shape, background, dtype=int)
                obj[x : x + w, y : y + h] = window
                if not any(np.array_equal(obj, component) for component in components):
                    yield obj


def _only(cells, colors, background):
    fits = cells == background
    for color in colors:
        fits = fits | (cells == color)
    return bool(fits.all())


def choose_disjoint(objects, background):
    """Objects without shared cells that cover the most.

    Sorted by bounding-box area, then by cells, both descending. Objects that meet no other come first. The
    others are decided one after another: if some choice covers every cell that any of them covers, an object
    is taken whenever such a choice holds it; else it is left out whenever that loses nothing. ValueError when
    the overlaps are too many to decide (the original would search for hours).
    """
    ordered = sorted(objects, key=lambda obj: (-_area(obj, background), -_size(obj, background)))
    cells = [_bits(obj != background) for obj in ordered]
    meets = [
        sum(1 << j for j, other in enumerate(cells) if j != i and own & other) for i, own in enumerate(cells)
    ]
    alone = [obj for obj, neighbours in zip(ordered, meets, strict=True) if not neighbours]
    crowd = sum(1 << i for i, neighbours in enumerate(meets) if neighbours)
    return alone + [ordered[i] for i in _best_choice(crowd, cells, meets)]


def _best_choice(crowd, cells, meets):
    """Indices of the chosen among `crowd` (a bit set of indices), ascending."""
    solver = _Cover(cells, meets)
    target = solver.best(crowd)
    exact = target == solver.union(crowd).bit_count()
    chosen, left = [], crowd
    while left:
        i = (left & -left).bit_length() - 1
        without = left & ~(1 << i)
        if exact:
            take = solver.best(without & ~meets[i]) + cells[i].bit_count() == target
        else:
            take = solver.best(without) < target
        if take:
            chosen.append(i)
            target -= cells[i].bit_count()
            left = without & ~meets[i]
        else:
            left = without
    return chosen


class _Cover:
    """Largest number of cells that disjoint objects of a set can cover, with memory and without recursion.

    A set is a bit set of object indices. Sets fall apart into groups whose objects meet; of a group, the
    object that lies first in the grid is either in or out. Deciding in the order of places keeps the number
    of different groups small: only the frontier between decided and open cells varies.
    """

    def __init__(self, cells, meets):
        self.cells, self.meets = cells, meets
        self.known = {}
        self.steps = 0

    def union(self, group):
        covered = 0
        for i in _members(group):
            covered |= self.cells[i]
        return covered

    def best(self, objects):
        groups = self._groups(objects)
        open_groups = list(groups)
        while open_groups:
            group = open_groups[-1]
            missing = [] if group in self.known else self._decide(group)
            if missing:
                open_groups.extend(missing)
            else:
                open_groups.pop()
        return sum(self.known[group] for group in groups)

    def _decide(self, group):
        """Enter the group's value into `known`; or the groups that have to be known before."""
        members = list(_members(group))
        first = max(members, key=self.cells.__getitem__)  # the bit of the first cell is the highest
        rest = group & ~(1 << first)
        inner = self._groups(rest & ~self.meets[first])
        missing = [g for g in inner if g not in self.known]
        if missing:
            return missing
        value = self.cells[first].bit_count() + sum(self.known[g] for g in inner)
        if value < self.union(group).bit_count():
            outer = self._groups(rest)
            missing = [g for g in outer if g not in self.known]
            if missing:
                return missing
            value = max(value, sum(self.known[g] for g in outer))
        self.known[group] = value
        return []

    def _groups(self, objects):
        """The set split into groups that do not meet each other."""
        groups = []
        while objects:
            group = frontier = objects & -objects
            while frontier:
                reached = 0
                for i in _members(frontier):
                    reached |= self.meets[i]
                    self.steps += 1
                frontier = reached & objects & ~group
                group |= frontier
            objects &= ~group
            groups.append(group)
        if self.steps > MAX_STEPS:
            raise ValueError("detect_objects: too many overlapping objects to choose from")
        return groups


def _members(bits):
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _bits(mask):
    return int.from_bytes(np.packbits(mask).tobytes(), "big")


def _area(obj, background):
    _, _, w, h = bounding_box(obj, background)
    return w * h


def _size(obj, background):
    return int(np.count_nonzero(obj != background))
