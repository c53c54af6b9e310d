"""Objects, rows or columns put in order."""

import numpy as np

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, generator, program


def _bars(horizontal: bool):
    """Bars of different lengths from one edge, in random order and colors."""

    def draw(rng: Rng):
        n, longest = integer(rng, 3, 5), integer(rng, 5, 8)
        lengths = rng.permutation(np.arange(1, longest + 1))[:n]
        grid = np.zeros((n, longest), dtype=np.int64)
        for row, (length, color) in enumerate(zip(lengths, inputs.colors(rng, n), strict=True)):
            grid[row, :length] = color
        return grid if horizontal else grid.T[::-1].copy()

    return draw


@generator
def sort_rows_by_length(rng: Rng) -> Rule:
    sign = pick(rng, ("", "-"))
    body = program("lengths = np.count_nonzero(grid, axis=1)", f"return grid[np.argsort({sign}lengths)]")
    return Rule(body, _bars(True))


@generator
def sort_columns_by_length(rng: Rng) -> Rule:
    sign = pick(rng, ("", "-"))
    body = program("lengths = np.count_nonzero(grid, axis=0)", f"return grid[:, np.argsort({sign}lengths)]")
    return Rule(body, _bars(False))


@generator
def colors_by_area(rng: Rng) -> Rule:
    reverse = pick(rng, ("", ", reverse=True"))
    shape = pick(rng, ("[[obj.color for obj in objects]]", "[[obj.color] for obj in objects]"))

    def draw(rng: Rng):
        sides = rng.permutation([(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3), (3, 4)])[
            : integer(rng, 2, 4)
        ]
        sprites = [
            np.full(side, color) for side, color in zip(sides, inputs.colors(rng, len(sides)), strict=True)
        ]
        return inputs.scene(rng, sprites, 9, 13)

    body = program(
        f'objects = sort_objects(find_objects(grid), "area"{reverse})', f"return np.array({shape})"
    )
    return Rule(body, draw)


@generator
def colors_by_position(rng: Rng) -> Rule:
    by = pick(rng, ("row", "column"))
    shape = pick(rng, ("[[obj.color for obj in objects]]", "[[obj.color] for obj in objects]"))

    def draw(rng: Rng):
        n = integer(rng, 2, 5)
        grid = inputs.empty(rng, 10, 13)
        places = rng.permutation(5)[:n] * 2, rng.permutation(5)[:n] * 2
        for row, column, color in zip(*places, inputs.colors(rng, n), strict=True):
            grid[row, column] = color
        return grid

    body = program(f'objects = sort_objects(find_objects(grid), "{by}")', f"return np.array({shape})")
    return Rule(body, draw)


@generator
def colors_by_count(rng: Rng) -> Rule:
    reverse = pick(rng, ("", ", reverse=True"))

    def draw(rng: Rng):
        counts = rng.permutation(np.arange(1, 9))[: integer(rng, 2, 4)]
        grid = inputs.empty(rng, 6, 10)
        cells = rng.permutation(grid.size)[: counts.sum()]
        grid.flat[cells] = np.repeat(inputs.colors(rng, len(counts)), counts)
        return grid

    body = program(
        f"ordered = sorted(colors(grid), key=lambda color: color_count(grid, color){reverse})",
        "return np.array([ordered])",
    )
    return Rule(body, draw)


@generator
def stack_objects_in_order(rng: Rng) -> Rule:
    by = pick(rng, ("column", "area", "color"))
    side = integer(rng, 2, 3)

    def draw(rng: Rng):
        sprites = []
        for color in inputs.colors(rng, integer(rng, 2, 3)):
            sprite = inputs.blob(rng, side, side)
            sprites.append(sprite * color)
        return inputs.scene(rng, sprites, 9, 13)

    body = program(
        f'objects = sort_objects(find_objects(grid), "{by}")',
        "return stack_horizontal(*[obj.grid for obj in objects])",
    )
    return Rule(body, draw)


@generator
def recolor_by_rank(rng: Rng) -> Rule:
    base, *ranks = inputs.colors(rng, 4)
    reverse = pick(rng, ("", ", reverse=True"))

    def draw(rng: Rng):
        lengths = rng.permutation(np.arange(1, 7))[:3]
        return inputs.scene(rng, [inputs.line(rng, int(n), int(n)) * base for n in lengths], 9, 13)

    body = program(
        f'objects = sort_objects(find_objects(grid), "area"{reverse})',
        "result = grid",
        f"for obj, color in zip(objects, {ranks}):",
        "    result = draw_object(result, obj.recolor(color))",
        "return result",
    )
    return Rule(body, draw)
