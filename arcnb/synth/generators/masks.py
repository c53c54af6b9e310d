"""Two halves of a grid compared cell by cell; masks combined."""

import numpy as np

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, generator, program

# Which cells are painted: text on the masks a and b.
LOGIC = ("a & b", "a | b", "a ^ b", "a & ~b", "~a & b", "~(a | b)")


def _two_halves(first: int, second: int, beside: bool, line_color: int):
    """Two random masks of equal shape, side by side or stacked, with a line between them unless it is 0."""

    def draw(rng: Rng):
        height, width = integer(rng, 3, 6), integer(rng, 3, 6)
        halves = [(rng.random((height, width)) < 0.5) * color for color in (first, second)]
        if line_color:
            halves.insert(1, np.full((height, 1) if beside else (1, width), line_color))
        return np.hstack(halves) if beside else np.vstack(halves)

    return draw


def _halves(beside: bool) -> tuple[str, str]:
    return ("left_half", "right_half") if beside else ("top_half", "bottom_half")


@generator
def logic_of_halves(rng: Rng) -> Rule:
    first, second, color, line_color = inputs.colors(rng, 4)
    beside = bool(rng.random() < 0.5)
    one, two = _halves(beside)
    body = program(
        f"a = {one}(grid) != 0",
        f"b = {two}(grid) != 0",
        f"return fill_mask(create_grid(*a.shape), {pick(rng, LOGIC)}, {color})",
    )
    return Rule(body, _two_halves(first, second, beside, line_color * integer(rng, 0, 1)))


@generator
def overlay_halves(rng: Rng) -> Rule:
    first, second, line_color = inputs.colors(rng, 3)
    beside = bool(rng.random() < 0.5)
    one, two = rng.permutation(_halves(beside))
    return Rule(
        program(f"return overlay({one}(grid), {two}(grid))"),
        _two_halves(first, second, beside, line_color * integer(rng, 0, 1)),
    )


@generator
def mark_where_halves_differ(rng: Rng) -> Rule:
    color, line_color, *palette = inputs.colors(rng, 4)
    beside = bool(rng.random() < 0.5)
    one, two = _halves(beside)
    sign = pick(rng, ("==", "!="))

    def draw(rng: Rng):
        first = np.asarray(palette)[rng.integers(0, 2, (integer(rng, 3, 5), integer(rng, 3, 5)))]
        second = np.where(rng.random(first.shape) < 0.3, sum(palette) - first, first)
        line = np.full((len(first), 1) if beside else (1, first.shape[1]), line_color)
        return np.hstack([first, line, second]) if beside else np.vstack([first, line, second])

    body = program(
        f"a, b = {one}(grid), {two}(grid)",
        f"return fill_mask(create_grid(*a.shape), a {sign} b, {color})",
    )
    return Rule(body, draw)


@generator
def overlay_mirror(rng: Rng) -> Rule:
    turn = pick(rng, ("flip_horizontal", "flip_vertical", "rotate_180"))
    order = pick(rng, ("grid, {0}(grid)", "{0}(grid), grid")).format(turn)
    return Rule(
        program(f"return overlay({order})"), lambda rng: inputs.noise(rng, inputs.colors(rng, 2), 0.25, 5, 10)
    )


@generator
def recolor_mask_of_two(rng: Rng) -> Rule:
    a, b, new = inputs.colors(rng, 3)
    others = inputs.colors(rng, 2, (a, b, new))
    return Rule(
        program(
            f"mask = color_mask(grid, {a}) | color_mask(grid, {b})", f"return fill_mask(grid, mask, {new})"
        ),
        lambda rng: inputs.noise(rng, [a, b, *others], 0.6, 5, 10),
    )


@generator
def mark_overlap_with_image(rng: Rng) -> Rule:
    color, *palette = inputs.colors(rng, 3)
    turn = pick(rng, ("flip_horizontal", "flip_vertical", "rotate_180"))
    sign = pick(rng, ("!=", "=="))
    body = program(
        f"image = {turn}(grid)",
        f"mask = (grid != 0) & (image {sign} 0)",
        f"return fill_mask(grid, mask, {color})",
    )
    return Rule(body, lambda rng: inputs.noise(rng, palette, 0.4, 5, 9))
