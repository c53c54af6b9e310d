"""Lines, rays, crosses, frames and borders drawn from what the input marks."""

import numpy as np

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, for_each, generator, program

STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))


def _pixels(palette, n=(1, 4)):
    return lambda rng: inputs.pixels(rng, n, palette, 7, 13)


@generator
def extend_pixels(rng: Rng) -> Rule:
    palette = inputs.colors(rng, 3)
    function, where = pick(rng, (("draw_horizontal_line", "row"), ("draw_vertical_line", "column")))
    return Rule(for_each(f"result = {function}(result, obj.{where}, obj.color)"), _pixels(palette))


@generator
def extend_by_color(rng: Rng) -> Rule:
    a, b = inputs.colors(rng, 2)
    first, second = rng.permutation(
        ["draw_horizontal_line(result, obj.row", "draw_vertical_line(result, obj.column"]
    )
    body = for_each(
        f"if obj.color == {a}:",
        f"    result = {first}, {a})",
        "else:",
        f"    result = {second}, {b})",
    )
    return Rule(body, _pixels([a, b], (2, 4)))


@generator
def cross_through_pixels(rng: Rng) -> Rule:
    line_color, *palette = inputs.colors(rng, 3)
    color = pick(rng, ("obj.color", str(line_color)))
    body = for_each(
        f"result = draw_horizontal_line(result, obj.row, {color})",
        f"result = draw_vertical_line(result, obj.column, {color})",
        at_end="overlay(result, grid)",
    )
    return Rule(body, _pixels(palette, (1, 3)))


@generator
def shoot_rays(rng: Rng) -> Rule:
    palette = inputs.colors(rng, 3)
    step = pick(rng, STEPS)
    return Rule(for_each(f"result = draw_ray(result, obj.position, {step}, obj.color)"), _pixels(palette))


@generator
def shoot_rays_of_color(rng: Rng) -> Rule:
    color, ray_color, *palette = inputs.colors(rng, 4)
    step = pick(rng, STEPS)
    body = for_each(
        f"result = draw_ray(result, obj.position, {step}, {ray_color})",
        found=f"find_objects(keep_color(grid, {color}))",
    )
    return Rule(body, _pixels([color, color, *palette], (2, 6)))


@generator
def diagonals_from_pixels(rng: Rng) -> Rule:
    palette = inputs.colors(rng, 3)
    steps = [step for step in STEPS if 0 not in step] if rng.random() < 0.6 else list(STEPS)
    body = for_each(
        f"for step in {steps}:",
        "    result = draw_ray(result, obj.position, step, obj.color)",
    )
    return Rule(body, _pixels(palette, (1, 2)))


@generator
def border_grid(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)
    return Rule(
        program(f"return draw_border(grid, {color})"), lambda rng: inputs.objects(rng, (1, 4), low=6, high=12)
    )


@generator
def border_by_its_color(rng: Rng) -> Rule:
    function = pick(rng, ("mode_color", "least_color"))
    return Rule(
        program(f"return draw_border(grid, {function}(grid))"),
        lambda rng: inputs.objects(rng, (2, 4), inputs.colors(rng, 3), low=7, high=12),
    )


@generator
def join_equal_pixels(rng: Rng) -> Rule:
    color, line_color, other = inputs.colors(rng, 3)
    arguments = pick(rng, (f"{color}", f"{color}, {line_color}"))

    def draw(rng: Rng):
        grid = inputs.pixels(rng, (2, 5), [color, color, other], 8, 13)
        rows, columns = np.nonzero(grid == color)
        for row, column in zip(rows, columns, strict=True):  # a partner in the same row or column
            if rng.random() < 0.7:
                grid[row, integer(rng, 0, grid.shape[1] - 1)] = color
            else:
                grid[integer(rng, 0, grid.shape[0] - 1), column] = color
        return grid

    return Rule(program(f"return connect_pixels(grid, {arguments})"), draw)


@generator
def line_between_two(rng: Rng) -> Rule:
    mark, color = inputs.colors(rng, 2)

    def draw(rng: Rng):
        grid = inputs.empty(rng, 8, 13)
        row, column = integer(rng, 0, 3), integer(rng, 0, 3)
        step, length = pick(rng, ((0, 1), (1, 0), (1, 1))), integer(rng, 3, 4)
        grid[row, column] = grid[row + step[0] * length, column + step[1] * length] = mark
        return grid

    body = program(
        "first, second = find_objects(grid)",
        f"result = draw_line(grid, first.position, second.position, {color})",
        "return overlay(result, grid)",
    )
    return Rule(body, draw)


@generator
def stripes(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)
    step, start = integer(rng, 2, 4), integer(rng, 0, 1)
    function, side = pick(rng, (("draw_horizontal_line", 0), ("draw_vertical_line", 1)))
    body = program(
        "result = grid",
        f"for i in range({start}, grid.shape[{side}], {step}):",
        f"    result = {function}(result, i, {color})",
        "return overlay(result, grid)",
    )
    others = [c for c in inputs.FOREGROUND if c != color]
    return Rule(body, lambda rng: inputs.pixels(rng, (1, 4), others, 6, 12))
