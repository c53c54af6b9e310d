"""Random input grids for task generators: sprites, scenes of objects, noise, lines, patterns, partitions.

Every function takes a numpy Generator first and returns a fresh int64 array (rows, columns) of colors 0..9;
color 0 is background.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Rng: TypeAlias = np.random.Generator

FOREGROUND = tuple(range(1, 10))


def integer(rng: Rng, low: int, high: int) -> int:
    """An integer in low..high, both included."""
    return int(rng.integers(low, high + 1))


def pick(rng: Rng, options: Sequence):
    """One of `options`."""
    return options[int(rng.integers(len(options)))]


def colors(rng: Rng, n: int, without: Sequence[int] = ()) -> list[int]:
    """`n` different foreground colors, none of them in `without`."""
    options = [color for color in FOREGROUND if color not in without]
    return [int(color) for color in rng.permutation(options)[:n]]


# --------------------------------------------------------------------------- sprites


def rectangle(rng: Rng, low: int = 2, high: int = 4) -> np.ndarray:
    """A full rectangle mask (0 and 1) with sides low..high."""
    return np.ones((integer(rng, low, high), integer(rng, low, high)), dtype=np.int64)


def frame(rng: Rng, low: int = 3, high: int = 6) -> np.ndarray:
    """A hollow rectangle, one cell thick, with sides low..high (at least 3)."""
    mask = rectangle(rng, max(low, 3), max(high, 3))
    mask[1:-1, 1:-1] = 0
    return mask


def line(rng: Rng, low: int = 2, high: int = 5) -> np.ndarray:
    """A horizontal or vertical line of low..high cells."""
    length = integer(rng, low, high)
    return np.ones(pick(rng, [(1, length), (length, 1)]), dtype=np.int64)


def blob(rng: Rng, low: int = 2, high: int = 4) -> np.ndarray:
    """A connected random shape that touches all four sides of its box; sides low..high."""
    height, width = integer(rng, low, high), integer(rng, low, high)
    mask = np.zeros((height, width), dtype=np.int64)
    row, column = integer(rng, 0, height - 1), integer(rng, 0, width - 1)
    mask[row, column] = 1
    rows, columns = {row}, {column}
    # A random walk is connected by construction; it ends when it has seen every side.
    for _ in range(5000):  # far more than any walk needs
        if {0, height - 1} <= rows and {0, width - 1} <= columns:
            break
        step = int(rng.integers(4))
        row = min(max(row + (0, 0, 1, -1)[step], 0), height - 1)
        column = min(max(column + (1, -1, 0, 0)[step], 0), width - 1)
        mask[row, column] = 1
        rows.add(row)
        columns.add(column)
    return mask


LETTERS = (
    ((1, 0), (1, 0), (1, 1)),
    ((1, 1, 1), (0, 1, 0)),
    ((0, 1, 0), (1, 1, 1), (0, 1, 0)),
    ((1, 1, 0), (0, 1, 1)),
    ((1, 0, 1), (1, 1, 1)),
    ((1, 0, 1), (0, 1, 0), (1, 0, 1)),
    ((1, 1), (1, 0)),
    ((1, 1, 1), (1, 0, 0), (1, 0, 0)),
)


def letter(rng: Rng) -> np.ndarray:
    """A small letter-like shape (L, T, plus, S, U, X, ...), turned and flipped at random."""
    mask = np.rot90(np.array(pick(rng, LETTERS)), integer(rng, 0, 3))
    return mask[:, ::-1].copy() if rng.random() < 0.5 else mask.copy()


def shape(rng: Rng, high: int = 4) -> np.ndarray:
    """A mask of a random kind: rectangle, frame, line, blob or letter; sides up to `high`."""
    kind = int(rng.integers(5 if high >= 3 else 3))
    if kind == 3:
        return letter(rng)
    if kind == 4:
        return frame(rng, 3, high)
    return (rectangle, line, blob)[kind](rng, 2, high)


def symmetric_sprite(rng: Rng, high: int = 5, palette: Sequence[int] = (1,)) -> np.ndarray:
    """A left-right symmetric sprite of `palette` colors on background, sides 3..high."""
    half = colored(rng, blob(rng, 2, max(2, (high + 1) // 2)), palette)
    odd = bool(rng.random() < 0.5)
    return np.hstack([half, half[:, ::-1][:, int(odd) :]])


def colored(rng: Rng, mask: np.ndarray, palette: Sequence[int]) -> np.ndarray:
    """The mask's cells in random colors of `palette`."""
    return np.where(mask > 0, np.asarray(palette)[rng.integers(len(palette), size=mask.shape)], 0)


# --------------------------------------------------------------------------- scenes


def empty(rng: Rng, low: int = 6, high: int = 14) -> np.ndarray:
    """A background grid with sides low..high."""
    return np.zeros((integer(rng, low, high), integer(rng, low, high)), dtype=np.int64)


def place(rng: Rng, grid: np.ndarray, sprite: np.ndarray, gap: int = 1, border: int = 0) -> bool:
    """Draw the sprite (0 is transparent) where its box and `gap` cells around it are background.

    border: free cells kept at the grid's edge. False, and nothing drawn, when 20 random places are taken.
    """
    height, width = sprite.shape
    rows, columns = grid.shape[0] - height - 2 * border, grid.shape[1] - width - 2 * border
    if rows < 0 or columns < 0:
        return False
    for _ in range(20):
        row, column = integer(rng, 0, rows) + border, integer(rng, 0, columns) + border
        around = grid[max(row - gap, 0) : row + height + gap, max(column - gap, 0) : column + width + gap]
        if not around.any():
            target = grid[row : row + height, column : column + width]
            target[sprite != 0] = sprite[sprite != 0]
            return True
    return False


def scene(
    rng: Rng, sprites: Sequence[np.ndarray], low: int = 8, high: int = 15, border: int = 0
) -> np.ndarray:
    """A grid with the sprites placed apart from each other; those that find no place are left out."""
    grid = empty(rng, low, high)
    for sprite in sprites:
        place(rng, grid, sprite, border=border)
    return grid


def objects(
    rng: Rng,
    n: tuple[int, int] = (2, 5),
    palette: Sequence[int] = FOREGROUND,
    side: int = 4,
    low: int = 8,
    high: int = 15,
    border: int = 0,
) -> np.ndarray:
    """A scene of n[0]..n[1] objects of one color each and random kinds, sides up to `side`."""
    count = integer(rng, *n)
    return scene(rng, [shape(rng, side) * pick(rng, palette) for _ in range(count)], low, high, border)


def blocks(
    rng: Rng,
    n: tuple[int, int] = (2, 5),
    palette: Sequence[int] = FOREGROUND,
    side: tuple[int, int] = (1, 4),
    low: int = 8,
    high: int = 15,
    border: int = 0,
) -> np.ndarray:
    """A scene of full rectangles of one color each."""
    count = integer(rng, *n)
    sprites = [rectangle(rng, *side) * pick(rng, palette) for _ in range(count)]
    return scene(rng, sprites, low, high, border)


def frames(
    rng: Rng, n: tuple[int, int] = (1, 3), palette: Sequence[int] = FOREGROUND, low: int = 9, high: int = 15
) -> np.ndarray:
    """A scene of hollow rectangles, sides 3..6."""
    count = integer(rng, *n)
    return scene(rng, [frame(rng, 3, 6) * pick(rng, palette) for _ in range(count)], low, high)


def pixels(
    rng: Rng,
    n: tuple[int, int] = (2, 6),
    palette: Sequence[int] = FOREGROUND,
    low: int = 6,
    high: int = 12,
) -> np.ndarray:
    """Single cells, none next to another."""
    count = integer(rng, *n)
    return scene(rng, [np.full((1, 1), pick(rng, palette)) for _ in range(count)], low, high)


def noise(
    rng: Rng, palette: Sequence[int] = FOREGROUND, density: float = 0.3, low: int = 5, high: int = 12
) -> np.ndarray:
    """Each cell independently one of `palette` with probability `density`."""
    grid = empty(rng, low, high)
    return colored(rng, rng.random(grid.shape) < density, palette)


def dense(rng: Rng, palette: Sequence[int] = FOREGROUND, low: int = 2, high: int = 6) -> np.ndarray:
    """A small grid without background."""
    return noise(rng, palette, 2.0, low, high)


def pattern(rng: Rng, palette: Sequence[int], low: int = 8, high: int = 14, tile: int = 3) -> np.ndarray:
    """A tile with sides 2..tile repeated over the whole grid, cut at its edges."""
    grid, unit = empty(rng, low, high), dense(rng, palette, 2, tile)
    rows, columns = np.indices(grid.shape)
    return unit[rows % unit.shape[0], columns % unit.shape[1]]


def symmetric(rng: Rng, palette: Sequence[int] = FOREGROUND, low: int = 3, high: int = 6) -> np.ndarray:
    """A dense grid that is left-right and top-bottom symmetric, twice low..high a side."""
    quarter = dense(rng, palette, low, high)
    half = np.hstack([quarter, quarter[:, ::-1]])
    return np.vstack([half, half[::-1]])


def lines(
    rng: Rng, across: Sequence[int], down: Sequence[int], low: int = 7, high: int = 13, most: int = 2
) -> np.ndarray:
    """1..most full rows of colors `across`, over them 1..most full columns of `down`, none side by side."""
    grid = empty(rng, low, high)
    for palette, view in ((across, grid), (down, grid.T)):
        places = rng.permutation(np.arange(integer(rng, 0, 1), len(view), 2))[: integer(rng, 1, most)]
        for place in places:
            view[place] = pick(rng, palette)
    return grid


def hide(rng: Rng, grid: np.ndarray, color: int = 0, high: int = 4) -> np.ndarray:
    """A copy with a random rectangle, sides 2..high, covered by `color`."""
    height, width = integer(rng, 2, min(high, grid.shape[0])), integer(rng, 2, min(high, grid.shape[1]))
    row, column = integer(rng, 0, grid.shape[0] - height), integer(rng, 0, grid.shape[1] - width)
    result = grid.copy()
    result[row : row + height, column : column + width] = color
    return result


def partition(parts: Sequence[Sequence[np.ndarray]], line_color: int) -> np.ndarray:
    """Parts of equal shape (rows of parts) put together with lines of `line_color` between them."""
    height, width = parts[0][0].shape
    rows, columns = len(parts), len(parts[0])
    grid = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), line_color, dtype=np.int64)
    for i, row in enumerate(parts):
        for j, part in enumerate(row):
            grid[i * (height + 1) :, j * (width + 1) :][:height, :width] = part
    return grid
