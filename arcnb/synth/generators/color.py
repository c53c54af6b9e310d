"""Changing colors by fixed rules or by how often they occur."""

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, generator, program


def _with(palette):
    """Inputs in which the given colors are frequent, of two looks."""

    def draw(rng: Rng):
        if rng.random() < 0.5:
            return inputs.noise(rng, palette, 0.5, 4, 10)
        return inputs.objects(rng, (2, 5), palette, side=4, low=7, high=13)

    return draw


def _palette(rng: Rng, without=(), n: int = 4):
    return inputs.colors(rng, n, without)


@generator
def recolor_one(rng: Rng) -> Rule:
    old, new = inputs.colors(rng, 2)
    return Rule(
        program(f"return recolor(grid, {old}, {new})"), _with([old, old, *_palette(rng, (old, new), 2)])
    )


@generator
def recolor_two(rng: Rng) -> Rule:
    a, b, c, d = inputs.colors(rng, 4)
    body = program(f"grid = recolor(grid, {a}, {b})", f"return recolor(grid, {c}, {d})")
    return Rule(body, _with([a, c, *_palette(rng, (a, b, c, d), 1)]))


@generator
def swap_two_colors(rng: Rng) -> Rule:
    a, b = inputs.colors(rng, 2)
    return Rule(program(f"return swap_colors(grid, {a}, {b})"), _with([a, b]))


@generator
def map_colors_by_table(rng: Rng) -> Rule:
    n = integer(rng, 2, 4)
    old, new = inputs.colors(rng, n), inputs.colors(rng, n)
    return Rule(program(f"return map_colors(grid, {dict(zip(old, new, strict=True))})"), _with(old))


@generator
def drop_color(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)
    return Rule(program(f"return remove_color(grid, {color})"), _with([color, *_palette(rng, (color,), 2)]))


@generator
def keep_one_color(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)
    return Rule(program(f"return keep_color(grid, {color})"), _with([color, *_palette(rng, (color,), 2)]))


@generator
def keep_color_by_count(rng: Rng) -> Rule:
    function = pick(rng, ("mode_color", "least_color"))
    return Rule(
        program(f"color = {function}(grid)", "return keep_color(grid, color)"),
        lambda rng: _with(_palette(rng, n=3))(rng),
    )


@generator
def recolor_by_count(rng: Rng) -> Rule:
    function = pick(rng, ("mode_color", "least_color"))
    (new,) = inputs.colors(rng, 1)
    return Rule(
        program(f"color = {function}(grid)", f"return recolor(grid, color, {new})"),
        lambda rng: _with(_palette(rng, (new,), 3))(rng),
    )


@generator
def everything_one_color(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)
    return Rule(program(f"return set_color(grid, {color})"), lambda rng: _with(_palette(rng))(rng))


@generator
def everything_mode_color(rng: Rng) -> Rule:
    function = pick(rng, ("mode_color", "least_color"))
    return Rule(
        program(f"return set_color(grid, {function}(grid))"), lambda rng: _with(_palette(rng, n=3))(rng)
    )


@generator
def swap_most_and_least(rng: Rng) -> Rule:
    return Rule(
        program("return swap_colors(grid, mode_color(grid), least_color(grid))"),
        lambda rng: _with(_palette(rng, n=3))(rng),
    )


@generator
def change_background(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)
    palette = _palette(rng, (color,), 3)
    return Rule(program(f"return recolor(grid, 0, {color})"), _with(palette))
