"""Outputs that count: bars, single cells, sizes."""

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, generator, program


@generator
def count_objects_as_bar(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)
    size = pick(rng, ("1, n", "n, 1"))
    return Rule(
        program("n = len(find_objects(grid))", f"return create_grid({size}, {color})"),
        lambda rng: inputs.blocks(rng, (1, 7), inputs.colors(rng, 2), (1, 3), 8, 14),
    )


@generator
def count_color_as_bar(rng: Rng) -> Rule:
    color, *others = inputs.colors(rng, 3)
    size = pick(rng, ("1, n", "n, 1", "n, n"))
    return Rule(
        program(f"n = color_count(grid, {color})", f"return create_grid({size}, {color})"),
        lambda rng: inputs.pixels(rng, (3, 9), [color, color, *others], 6, 10),
    )


@generator
def count_in_fixed_row(rng: Rng) -> Rule:
    color, *palette = inputs.colors(rng, 3)
    length = integer(rng, 5, 8)
    body = program(
        "n = len(find_objects(grid))",
        f"result = create_grid(1, {length})",
        f"result[0, :n] = {color}",
        "return result",
    )
    return Rule(body, lambda rng: inputs.blocks(rng, (1, 6), palette, (1, 3), 8, 14))


@generator
def most_frequent_cell(rng: Rng) -> Rule:
    function = pick(rng, ("mode_color", "least_color"))
    size = pick(rng, ("1, 1", "2, 2", "3, 3", "*grid.shape"))
    return Rule(
        program(f"return create_grid({size}, {function}(grid))"),
        lambda rng: inputs.noise(rng, inputs.colors(rng, 3), 0.5, 4, 9),
    )


@generator
def color_histogram(rng: Rng) -> Rule:
    body = program(
        "present = colors(grid)",
        "longest = max(color_count(grid, color) for color in present)",
        "result = create_grid(len(present), longest)",
        "for row, color in enumerate(present):",
        "    result[row, :color_count(grid, color)] = color",
        "return result",
    )
    return Rule(body, lambda rng: inputs.pixels(rng, (4, 10), inputs.colors(rng, 4), 6, 11))


@generator
def diagonal_of_count(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)
    body = program(
        "n = len(find_objects(grid))",
        "result = create_grid(n, n)",
        f"return draw_line(result, (0, 0), (n - 1, n - 1), {color})",
    )
    return Rule(body, lambda rng: inputs.blocks(rng, (2, 7), inputs.colors(rng, 3), (1, 3), 8, 14))


@generator
def color_of_most_objects(rng: Rng) -> Rule:
    body = program(
        "found = [obj.color for obj in find_objects(grid)]",
        f"color = {pick(rng, ('max', 'min'))}(colors(grid), key=found.count)",
        f"return {pick(rng, ('create_grid(1, 1, color)', 'keep_color(grid, color)'))}",
    )
    return Rule(body, lambda rng: inputs.blocks(rng, (3, 8), inputs.colors(rng, 3), (1, 3), 9, 14))
