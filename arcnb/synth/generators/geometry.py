"""Whole-grid moves: flips, turns, shifts, stacking with images of itself."""

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import TURNS, Rule, generator, program

SAME_SHAPE = TURNS[:3]


def _any_grid(rng: Rng):
    """Inputs of three looks, so that a turn is not tied to one of them."""
    kind = int(rng.integers(3))
    if kind == 0:
        return inputs.noise(rng, inputs.colors(rng, 3), 0.4, 3, 10)
    if kind == 1:
        return inputs.objects(rng, (1, 4), side=4, low=5, high=12)
    return inputs.dense(rng, inputs.colors(rng, 4), 2, 6)


def _small_grid(rng: Rng):
    return inputs.dense(rng, [0, *inputs.colors(rng, 3)], 2, 5)


@generator
def turn_grid(rng: Rng) -> Rule:
    return Rule(program(f"return {pick(rng, TURNS)}(grid)"), _any_grid)


@generator
def turn_twice(rng: Rng) -> Rule:
    first, second = pick(rng, TURNS), pick(rng, TURNS)
    return Rule(program(f"grid = {first}(grid)", f"return {second}(grid)"), _any_grid)


@generator
def shift_content(rng: Rng) -> Rule:
    rows, columns = integer(rng, -3, 3), integer(rng, -3, 3)
    function = pick(rng, ("shift", "shift_wrap"))
    return Rule(program(f"return {function}(grid, {rows}, {columns})"), _any_grid)


@generator
def mirror_beside(rng: Rng) -> Rule:
    turn, stack = pick(rng, SAME_SHAPE), pick(rng, ("stack_horizontal", "stack_vertical"))
    order = pick(rng, ("grid, {0}(grid)", "{0}(grid), grid")).format(turn)
    return Rule(program(f"return {stack}({order})"), _small_grid)


@generator
def mirror_four(rng: Rng) -> Rule:
    first, second = pick(rng, SAME_SHAPE), pick(rng, SAME_SHAPE)
    return Rule(
        program(
            f"top = stack_horizontal(grid, {first}(grid))",
            f"return stack_vertical(top, {second}(top))",
        ),
        _small_grid,
    )


@generator
def repeat_row_of_turns(rng: Rng) -> Rule:
    names = [pick(rng, ("", *SAME_SHAPE)) for _ in range(3)]
    parts = ", ".join(f"{name}(grid)" if name else "grid" for name in names)
    return Rule(program(f"return {pick(rng, ('stack_horizontal', 'stack_vertical'))}({parts})"), _small_grid)
