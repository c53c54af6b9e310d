"""Grids divided by lines or into equal parts: choosing, combining, comparing the parts."""

import numpy as np

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, generator, program


def _parts(rng: Rng, rows: int, columns: int, palette, density=(0.2, 0.8)):
    """Parts of equal shape and clearly different amounts of content."""
    height, width = integer(rng, 2, 4), integer(rng, 2, 4)
    amounts = np.linspace(*density, rows * columns)[rng.permutation(rows * columns)]
    parts = [inputs.colored(rng, rng.random((height, width)) < amount, palette) for amount in amounts]
    return [parts[i * columns : (i + 1) * columns] for i in range(rows)]


@generator
def choose_part(rng: Rng) -> Rule:
    line_color, *palette = inputs.colors(rng, 3)
    rows, columns = integer(rng, 1, 2), integer(rng, 2, 3)
    choice = pick(rng, ("max", "min"))
    what = pick(rng, ("np.count_nonzero(part)", "len(find_objects(part))", "len(colors(part))"))
    body = program(
        f"parts = [part for row in split_grid(grid, {line_color}) for part in row]",
        f"return {choice}(parts, key=lambda part: {what})",
    )
    return Rule(body, lambda rng: inputs.partition(_parts(rng, rows, columns, palette), line_color))


@generator
def part_at(rng: Rng) -> Rule:
    (line_color,) = inputs.colors(rng, 1)
    rows, columns = integer(rng, 2, 3), integer(rng, 2, 3)
    palette = inputs.colors(rng, 3, (line_color,))
    row, column = integer(rng, 0, rows - 1), integer(rng, 0, columns - 1)
    body = program(f"parts = split_grid(grid, {line_color})", f"return parts[{row}][{column}]")
    return Rule(body, lambda rng: inputs.partition(_parts(rng, rows, columns, palette), line_color))


@generator
def overlay_parts(rng: Rng) -> Rule:
    line_color, *palette = inputs.colors(rng, 4)
    n = integer(rng, 2, 4)
    body = program(
        f"parts = split_grid(grid, {line_color})[0]",
        "result = parts[0]",
        "for part in parts[1:]:",
        "    result = overlay(result, part)",
        "return result",
    )

    def draw(rng: Rng):
        height, width = integer(rng, 3, 5), integer(rng, 3, 5)
        parts = [(rng.random((height, width)) < 0.3) * color for color in (palette * 2)[:n]]
        return inputs.partition([parts], line_color)

    return Rule(body, draw)


@generator
def odd_part_out(rng: Rng) -> Rule:
    n = integer(rng, 3, 4)
    split, beside = pick(rng, (("split_columns", True), ("split_rows", False)))

    def draw(rng: Rng):
        side = (integer(rng, 2, 4), integer(rng, 2, 4))
        palette = np.asarray([0, *inputs.colors(rng, 2)])
        common, odd = (palette[rng.integers(3, size=side)] for _ in range(2))
        parts = [common] * n
        parts[int(rng.integers(n))] = odd
        return np.hstack(parts) if beside else np.vstack(parts)

    body = program(
        f"parts = {split}(grid, {n})",
        "return min(parts, key=lambda part: sum(np.array_equal(part, other) for other in parts))",
    )
    return Rule(body, draw)


@generator
def summary_of_parts(rng: Rng) -> Rule:
    line_color, *palette = inputs.colors(rng, 4)
    rows, columns = integer(rng, 2, 3), integer(rng, 2, 3)

    def draw(rng: Rng):
        side = integer(rng, 2, 3)
        cells = rng.choice([0, *palette], (rows, columns))
        return inputs.partition(
            [[np.full((side, side), color) for color in row] for row in cells], line_color
        )

    body = program(
        f"parts = split_grid(grid, {line_color})",
        "return np.array([[part[0, 0] for part in row] for row in parts])",
    )
    return Rule(body, draw)


@generator
def color_parts_by_count(rng: Rng) -> Rule:
    line_color, mark, new = inputs.colors(rng, 3)
    rows, columns = integer(rng, 2, 3), integer(rng, 2, 3)
    extreme = pick(rng, ("max", "min"))
    body = program(
        f"parts = split_grid(grid, {line_color})",
        f"counts = np.array([[color_count(part, {mark}) for part in row] for row in parts])",
        f"return fill_mask(create_grid(*counts.shape), counts == counts.{extreme}(), {new})",
    )
    return Rule(body, lambda rng: inputs.partition(_parts(rng, rows, columns, [mark]), line_color))


@generator
def reverse_parts(rng: Rng) -> Rule:
    n = integer(rng, 2, 4)
    split, stack, beside = pick(
        rng, (("split_columns", "stack_horizontal", True), ("split_rows", "stack_vertical", False))
    )

    def draw(rng: Rng):
        side = (integer(rng, 2, 4), integer(rng, 2, 4))
        parts = [(rng.random(side) < 0.6) * color for color in inputs.colors(rng, n)]
        return np.hstack(parts) if beside else np.vstack(parts)

    return Rule(program(f"parts = {split}(grid, {n})", f"return {stack}(*parts[::-1])"), draw)
