"""Small programs of our own that a server runs before its first fork, so that no child is the first to do so.

The interpreter specialises code that has run a few times, numpy fills tables of types and loops, the dynamic
linker looks functions up. Each of these writes to memory; what the server has done already, its children
find done in pages that they share.
"""

from __future__ import annotations

from arcnb.programs.sandbox import child
from arcnb.programs.sandbox.batch import Batch

PROGRAMS = (
    b"""
import numpy as np
from typing import List, Tuple

def helper(grid: np.ndarray, color: int = 3) -> List[Tuple[int, int]]:
    return [(i, j) for i in range(grid.shape[0]) for j in range(len(grid[0])) if grid[i][j] == color]

def transform(grid):
    out = np.zeros_like(grid)
    counts = {}
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            counts[int(grid[i, j])] = counts.get(int(grid[i, j]), 0) + 1
            if grid[i, j] == 3:
                out[i, j] = 5
    for i, j in helper(grid):
        out[i, j] = max(counts, key=lambda c: counts[c])
    out = np.where(out == 0, grid, out)
    return np.rot90(out, 2).copy()
""",
    b"""
from common import *
import numpy as np
from typing import *
from collections import Counter, defaultdict, deque

def transform(input_grid):
    objects = find_connected_components(input_grid, connectivity=4, monochromatic=True)
    output = np.full(input_grid.shape, Color.BLACK, dtype=int)
    for obj in sorted(objects, key=lambda o: -np.sum(o != Color.BLACK)):
        x, y, w, h = bounding_box(obj)
        blit_sprite(output, crop(obj), x=x, y=y)
    seen, todo = set(), deque([(0, 0)])
    while todo:
        i, j = todo.popleft()
        if (i, j) not in seen and 0 <= i < input_grid.shape[0] and 0 <= j < input_grid.shape[1]:
            seen.add((i, j))
            todo.extend([(i + 1, j), (i, j + 1)])
    assert len(np.unique(output)) <= 10
    return output.tolist()
""",
    b"""
class Cell:
    def __init__(self, color):
        self.color = color

def transform(grid):
    try:
        missing
    except Exception as error:
        print(f"{error}")
    return [[Cell(int(c)).color for c in row] for row in grid]
""",
)
GRIDS = [(3, 4, bytes((0, 3, 3, 0, 1, 3, 0, 0, 1, 2, 2, 9))), (10, 10, bytes(n % 10 for n in range(100)))]
TIMES = 4  # of three programs in two ways: the interpreter specialises after eight calls


def rehearse(batch: Batch, names: dict[str, object]) -> None:
    """Run each program in both ways often enough for our own code, and what it calls, to be warm."""
    for _ in range(TIMES):
        for program in PROGRAMS:
            child.run_alone(program, GRIDS, "transform", child.new_namespace(names), lambda number: None)
            batch.run_one(program, GRIDS)
