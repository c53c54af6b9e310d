"""Outputs that are a part of the input."""

import numpy as np

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, generator, program

HALVES = ("left_half", "right_half", "top_half", "bottom_half")


def _one_object(rng: Rng):
    palette = inputs.colors(rng, 3)
    sprite = inputs.colored(rng, inputs.blob(rng, 2, 6), palette)
    return inputs.scene(rng, [sprite], 8, 14, border=1)


def _different_objects(rng: Rng):
    """Objects of clearly different areas."""
    sides = rng.permutation([2, 3, 4, 5])[: integer(rng, 2, 4)]
    sprites = [inputs.blob(rng, side, side) * pick(rng, inputs.FOREGROUND) for side in sorted(sides)[::-1]]
    return inputs.scene(rng, sprites, 10, 15)


@generator
def crop_content(rng: Rng) -> Rule:
    return Rule(program("return crop_to_content(grid)"), _one_object)


@generator
def crop_content_turned(rng: Rng) -> Rule:
    turn = pick(rng, ("flip_horizontal", "flip_vertical", "rotate_180", "rotate_clockwise", "transpose"))
    return Rule(program("grid = crop_to_content(grid)", f"return {turn}(grid)"), _one_object)


@generator
def crop_corner(rng: Rng) -> Rule:
    height, width = integer(rng, 2, 4), integer(rng, 2, 4)
    row, column = integer(rng, 0, 2), integer(rng, 0, 2)
    return Rule(
        program(f"return crop(grid, {row}, {column}, {height}, {width})"),
        lambda rng: inputs.noise(rng, density=0.6, low=6, high=11),
    )


@generator
def crop_half(rng: Rng) -> Rule:
    return Rule(
        program(f"return {pick(rng, HALVES)}(grid)"),
        lambda rng: inputs.noise(rng, density=0.6, low=4, high=12),
    )


@generator
def crop_quarter(rng: Rng) -> Rule:
    first, second = pick(rng, HALVES[:2]), pick(rng, HALVES[2:])
    return Rule(
        program(f"return {second}({first}(grid))"), lambda rng: inputs.noise(rng, density=0.6, low=4, high=12)
    )


@generator
def crop_extreme_object(rng: Rng) -> Rule:
    function = pick(rng, ("largest_object", "smallest_object"))
    return Rule(
        program("objects = find_objects(grid)", f"return {function}(objects).grid"), _different_objects
    )


@generator
def crop_object_of_color(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)

    def draw(rng: Rng):
        others = inputs.colors(rng, 3, (color,))
        sprites = [inputs.blob(rng, 2, 5) * color, *(inputs.shape(rng, 4) * other for other in others)]
        return inputs.scene(rng, sprites, 9, 14)

    return Rule(program(f"return crop_to_content(keep_color(grid, {color}))"), draw)


@generator
def crop_inside_frame(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)

    def draw(rng: Rng):
        inside = inputs.noise(rng, inputs.colors(rng, 2, (color,)), 0.6, 3, 6)
        grid = inputs.scene(rng, [_framed(inside, color)], 10, 14)
        for _ in range(integer(rng, 2, 6)):
            inputs.place(rng, grid, inputs.line(rng, 1, 2) * pick(rng, inputs.colors(rng, 3, (color,))))
        return grid

    body = program(
        f"frame = largest_object(find_objects(keep_color(grid, {color})))",
        "return trim(crop_object(grid, frame))",
    )
    return Rule(body, draw)


@generator
def crop_by_position(rng: Rng) -> Rule:
    choice, key = pick(rng, ("min", "max")), pick(rng, ("row", "column", "height", "width"))
    return Rule(
        program(
            "objects = find_objects(grid)",
            f"chosen = {choice}(objects, key=lambda obj: obj.{key})",
            "return chosen.grid",
        ),
        _different_objects,
    )


def _framed(grid, color: int):
    result = np.full((grid.shape[0] + 2, grid.shape[1] + 2), color)
    result[1:-1, 1:-1] = grid
    return result
