"""Periodic patterns: completing, extending, alternating."""

import numpy as np

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, for_each, generator, program


@generator
def complete_pattern(rng: Rng) -> Rule:
    hidden = integer(rng, 0, 9)

    def draw(rng: Rng):
        grid = inputs.pattern(rng, inputs.colors(rng, 4, (hidden,)), 7, 12)
        for _ in range(integer(rng, 1, 2)):
            grid = inputs.hide(rng, grid, hidden, 4)
        return grid

    argument = f", {hidden}" if hidden else ""
    return Rule(program(f"return complete_tiling(grid{argument})"), draw)


@generator
def show_hidden_pattern(rng: Rng) -> Rule:
    hidden = integer(rng, 1, 9)

    def draw(rng: Rng):
        grid = inputs.pattern(rng, inputs.colors(rng, 4, (hidden,)), 8, 12)
        return inputs.hide(rng, grid, hidden, 4)

    body = program(
        f"hidden = find_objects(keep_color(grid, {hidden}))[0]",
        f"return crop_object(complete_tiling(grid, {hidden}), hidden)",
    )
    return Rule(body, draw)


@generator
def smallest_tile(rng: Rng) -> Rule:
    factor_rows, factor_columns = integer(rng, 1, 3), integer(rng, 2, 3)

    def draw(rng: Rng):
        tile = inputs.dense(rng, inputs.colors(rng, 3), 2, 4)
        return np.tile(tile, (factor_rows, factor_columns))

    column = f"split_columns(grid, {factor_columns})[0]"
    tile = column if factor_rows == 1 else f"split_rows({column}, {factor_rows})[0]"
    return Rule(program(f"return {tile}"), draw)


@generator
def extend_pattern_down(rng: Rng) -> Rule:
    """Rows of a pattern continue into the empty rest of the grid."""

    def draw(rng: Rng):
        unit = inputs.dense(rng, [0, *inputs.colors(rng, 3)], 2, 4)
        unit[:, 0] = unit.max()
        grid = np.zeros((3 * len(unit), unit.shape[1] + integer(rng, 0, 3)), dtype=np.int64)
        grid[: len(unit), : unit.shape[1]] = unit
        return grid

    body = program("pattern = grid[np.any(grid != 0, axis=1)]", "return tile(pattern, 3, 1)")
    return Rule(body, draw)


@generator
def alternate_rows(rng: Rng) -> Rule:
    old, new = inputs.colors(rng, 2)
    axis, start = pick(rng, ("[{0}::2]", "[:, {0}::2]")), integer(rng, 0, 1)
    place = axis.format(start)
    body = program(
        "result = grid.copy()", f"result{place} = recolor(result{place}, {old}, {new})", "return result"
    )
    return Rule(body, lambda rng: inputs.blocks(rng, (1, 4), [old], (2, 5), 7, 12))


@generator
def turn_into_checker_tiles(rng: Rng) -> Rule:
    turn = pick(rng, ("flip_horizontal", "flip_vertical", "rotate_180"))
    rows, columns = integer(rng, 2, 3), integer(rng, 1, 2)
    body = program(
        f"pair = stack_horizontal(grid, {turn}(grid))",
        f"return tile(pair, {rows}, {columns})",
    )
    return Rule(body, lambda rng: inputs.dense(rng, [0, *inputs.colors(rng, 2)], 2, 4))


@generator
def denoise_pattern(rng: Rng) -> Rule:
    (noise_color,) = inputs.colors(rng, 1)

    def draw(rng: Rng):
        grid = inputs.blocks(rng, (1, 4), inputs.colors(rng, 2, (noise_color,)), (3, 5), 9, 14)
        grid[rng.random(grid.shape) < 0.06] = noise_color
        return grid

    return Rule(program(f"return remove_color(grid, {noise_color})"), draw)


@generator
def remove_single_cells(rng: Rng) -> Rule:
    palette = inputs.colors(rng, 3)

    def draw(rng: Rng):
        grid = inputs.blocks(rng, (1, 3), palette, (2, 4), 9, 14)
        for _ in range(integer(rng, 3, 8)):
            inputs.place(rng, grid, np.full((1, 1), pick(rng, palette)))
        return grid

    body = for_each(
        "if obj.area == 1:",
        "    result = erase_object(result, obj)",
    )
    return Rule(body, draw)
