"""Grids of full lines and of segments: crossings, directions, spaces between."""

import numpy as np

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, for_each, generator, program


@generator
def mark_crossings(rng: Rng) -> Rule:
    color, new = inputs.colors(rng, 2)
    body = program(
        f"rows = np.all(grid == {color}, axis=1)[:, None]",
        f"columns = np.all(grid == {color}, axis=0)[None, :]",
        f"return fill_mask(grid, rows & columns, {new})",
    )
    return Rule(body, lambda rng: inputs.lines(rng, [color], [color]))


@generator
def keep_lines_one_way(rng: Rng) -> Rule:
    palette = inputs.colors(rng, 2)
    axis, place = pick(rng, ((1, "[:, None]"), (0, "[None, :]")))
    body = program(
        f"full = np.all(grid != 0, axis={axis}){place}",
        f"return np.where({pick(rng, ('full', '~full'))}, grid, 0)",
    )
    return Rule(body, lambda rng: inputs.lines(rng, palette, palette))


@generator
def areas_between_lines(rng: Rng) -> Rule:
    color, new = inputs.colors(rng, 2)
    body = program(
        f"parts = split_grid(grid, {color})",
        f"return create_grid(len(parts), len(parts[0]), {new})",
    )
    return Rule(body, lambda rng: inputs.lines(rng, [color], [color], most=3))


@generator
def extend_segments(rng: Rng) -> Rule:
    palette = inputs.colors(rng, 3)
    body = for_each(
        "if obj.width > obj.height:",
        "    result = draw_horizontal_line(result, obj.row, obj.color)",
        "else:",
        "    result = draw_vertical_line(result, obj.column, obj.color)",
    )

    def draw(rng: Rng) -> np.ndarray:
        return inputs.scene(
            rng, [inputs.line(rng, 2, 4) * pick(rng, palette) for _ in range(integer(rng, 1, 3))]
        )

    return Rule(body, draw)


@generator
def fill_between_two_lines(rng: Rng) -> Rule:
    line_color, new = inputs.colors(rng, 2)
    across = bool(rng.random() < 0.5)
    box = (
        "first.row + 1, 0, second.row - first.row - 1, grid.shape[1]"
        if across
        else "0, first.column + 1, grid.shape[0], second.column - first.column - 1"
    )
    body = program("first, second = find_objects(grid)", f"return draw_rectangle(grid, {box}, {new})")

    def draw(rng: Rng) -> np.ndarray:
        grid = inputs.empty(rng, 6, 13)
        places = sorted(rng.permutation(grid.shape[0 if across else 1])[:2].tolist())
        for place in places:
            grid[(place, slice(None)) if across else (slice(None), place)] = line_color
        return grid

    return Rule(body, draw)


@generator
def color_segments_by_direction(rng: Rng) -> Rule:
    base, level, upright = inputs.colors(rng, 3)
    body = for_each(
        f"color = {level} if obj.width > obj.height else {upright}",
        "result = draw_object(result, obj.recolor(color))",
    )

    return Rule(
        body,
        lambda rng: inputs.scene(rng, [inputs.line(rng, 2, 5) * base for _ in range(integer(rng, 2, 5))]),
    )
