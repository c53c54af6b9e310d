"""Changing the size: up, down, tiling, padding, trimming, framing."""

import numpy as np

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, generator, program


def _small(rng: Rng):
    return inputs.dense(rng, [0, *inputs.colors(rng, 3)], 2, 5)


@generator
def scale_up(rng: Rng) -> Rule:
    return Rule(program(f"return upscale(grid, {integer(rng, 2, 5)})"), _small)


@generator
def scale_down(rng: Rng) -> Rule:
    factor = integer(rng, 2, 4)

    def draw(rng: Rng):
        small = inputs.noise(rng, inputs.colors(rng, 3), 0.5, 2, 6)
        return np.repeat(np.repeat(small, factor, axis=0), factor, axis=1)

    return Rule(program(f"return downscale(grid, {factor})"), draw)


@generator
def tile_grid(rng: Rng) -> Rule:
    return Rule(program(f"return tile(grid, {integer(rng, 1, 3)}, {integer(rng, 2, 4)})"), _small)


@generator
def pad_grid(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)
    n = integer(rng, 1, 2)
    return Rule(program(f"return pad(grid, {n}, {color})"), lambda rng: inputs.noise(rng, low=3, high=9))


@generator
def pad_by_its_color(rng: Rng) -> Rule:
    n = integer(rng, 1, 2)
    function = pick(rng, ("mode_color", "least_color"))
    return Rule(
        program(f"color = {function}(grid)", f"return pad(grid, {n}, color)"),
        lambda rng: inputs.noise(rng, inputs.colors(rng, 3), 0.6, 3, 8),
    )


@generator
def trim_grid(rng: Rng) -> Rule:
    n = integer(rng, 1, 2)
    return Rule(
        program(f"return trim(grid, {n})"), lambda rng: inputs.noise(rng, density=0.5, low=6, high=11)
    )


@generator
def self_pattern(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)

    def draw(rng: Rng):
        side = integer(rng, 2, 4)
        return (rng.random((side, side)) < 0.5) * color

    return Rule(
        program(
            "height, width = grid.shape",
            "big = np.repeat(np.repeat(grid, height, axis=0), width, axis=1)",
            "small = tile(grid, height, width)",
            "return fill_mask(small, big == 0, 0)",
        ),
        draw,
    )


@generator
def scale_up_by_number_of_colors(rng: Rng) -> Rule:
    return Rule(
        program("factor = len(colors(grid))", "return upscale(grid, factor)"),
        lambda rng: inputs.dense(rng, [0, *inputs.colors(rng, integer(rng, 2, 4))], 2, 4),
    )
