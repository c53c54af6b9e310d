"""Augmentation: another view of the same task, with an exact inverse.

An `Augmentation` mirrors a grid left-right (`hflip`), then turns it counter-clockwise `n_rot90` times,
then maps its colours. A program written for the augmented task produces augmented outputs; `invert`
brings them back to the original frame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.grids import N_COLORS, Grid, as_grid
from arcnb.errors import ArcnbError

if TYPE_CHECKING:
    from arcnb.arc.tasks.task import Pair, Task

# Most draws keep 0, which is the background in most tasks; some do not, so that no model relies on it.
_P_MOVE_BACKGROUND = 0.1


@dataclass(frozen=True)
class Augmentation:
    """Mirror, rotation and colour map, applied in this order.

    hflip: mirror left-right. n_rot90: 0..3 quarter turns counter-clockwise. color_map: ten colours, a
    permutation of 0..9 (cell value v becomes color_map[v]), or None to leave the colours alone.
    """

    hflip: bool = False
    n_rot90: int = 0
    color_map: tuple[int, ...] | None = None

    def __post_init__(self):
        if self.n_rot90 not in (0, 1, 2, 3):
            raise ArcnbError(f"n_rot90 is 0, 1, 2 or 3, not {self.n_rot90!r}")
        object.__setattr__(self, "hflip", bool(self.hflip))
        object.__setattr__(self, "n_rot90", int(self.n_rot90))
        if self.color_map is not None:
            color_map = tuple(self.color_map)
            if sorted(color_map) != list(range(N_COLORS)):
                raise ArcnbError(f"color_map is a permutation of 0..9, not {color_map!r}")
            object.__setattr__(self, "color_map", tuple(map(int, color_map)))

    def apply(self, grid: Grid) -> Grid:
        """The grid in the augmented frame. `grid` may be anything `as_grid` accepts; it is not changed."""
        grid = as_grid(grid)
        if self.hflip:
            grid = np.fliplr(grid)
        grid = np.rot90(grid, self.n_rot90)
        return _frozen(grid if self.color_map is None else np.array(self.color_map, np.uint8)[grid])

    def invert(self, grid: Grid) -> Grid:
        """The grid back in the original frame: `invert(apply(grid))` equals `grid`."""
        grid = as_grid(grid)
        if self.color_map is not None:
            grid = np.argsort(self.color_map).astype(np.uint8)[grid]
        grid = np.rot90(grid, -self.n_rot90)
        return _frozen(np.fliplr(grid) if self.hflip else grid)

    def apply_task(self, task: Task) -> Task:
        """The task with every grid augmented. The copy has no `program`: it solved the original frame."""
        return replace(
            task,
            train=tuple(map(self._apply_pair, task.train)),
            test=tuple(map(self._apply_pair, task.test)),
            program=task.program if self == Augmentation() else None,
        )

    def _apply_pair(self, pair: Pair) -> Pair:
        output = None if pair.output is None else self.apply(pair.output)
        return replace(pair, input=self.apply(pair.input), output=output)

    @staticmethod
    def sample(rng: np.random.Generator) -> Augmentation:
        """Draw mirror and rotation uniformly (the identity included) and always a colour permutation.

        With probability 0.1 all ten colours are permuted, else 0 keeps its place.
        """
        hflip, n_rot90 = bool(rng.integers(2)), int(rng.integers(4))
        if rng.random() < _P_MOVE_BACKGROUND:
            colors = rng.permutation(N_COLORS)
        else:
            colors = np.concatenate([[0], 1 + rng.permutation(N_COLORS - 1)])
        return Augmentation(hflip, n_rot90, tuple(colors.tolist()))


def content(pairs: Sequence[Pair]) -> str:
    """SHA-256 (hex) over a task's pairs: the same for all its augmentations, and in any order of the pairs.

    Colours are numbered in each pair as they come, which no permutation of them changes.
    """
    turned = (
        b"".join(sorted(_outline(pair, hflip, n_rot90) for pair in pairs))
        for hflip, n_rot90 in product((False, True), range(4))
    )
    return hashlib.sha256(min(turned)).hexdigest()


def _outline(pair: Pair, hflip: bool, n_rot90: int) -> bytes:
    """Sizes and cells of a turned pair, whatever its colours."""
    grids = [
        np.rot90(np.fliplr(grid) if hflip else grid, n_rot90)
        for grid in (pair.input, pair.output)
        if grid is not None
    ]
    cells = b"".join(grid.tobytes() for grid in grids)
    colors = bytes(dict.fromkeys(cells))
    sizes = b"".join(b"%dx%d:" % grid.shape for grid in grids)
    return sizes + cells.translate(bytes.maketrans(colors, bytes(range(len(colors)))))


def _frozen(grid: np.ndarray) -> Grid:
    grid = np.array(grid, order="C")
    grid.flags.writeable = False
    return grid
