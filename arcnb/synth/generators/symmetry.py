"""Making and completing symmetric grids."""

import numpy as np

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, generator, program


@generator
def mirror_out(rng: Rng) -> Rule:
    function = pick(
        rng, ("mirror_horizontal(grid)", "mirror_vertical(grid)", "mirror_vertical(mirror_horizontal(grid))")
    )
    return Rule(
        program(f"return {function}"), lambda rng: inputs.dense(rng, [0, *inputs.colors(rng, 3)], 2, 6)
    )


@generator
def complete_hidden(rng: Rng) -> Rule:
    (hidden,) = inputs.colors(rng, 1)

    def draw(rng: Rng):
        grid = inputs.symmetric(rng, inputs.colors(rng, 4, (hidden,)), 4, 7)
        return inputs.hide(rng, grid, hidden, 4)

    return Rule(program(f"return complete_symmetry(grid, {hidden})"), draw)


@generator
def show_hidden_part(rng: Rng) -> Rule:
    (hidden,) = inputs.colors(rng, 1)

    def draw(rng: Rng):
        grid = inputs.symmetric(rng, inputs.colors(rng, 4, (hidden,)), 4, 7)
        return inputs.hide(rng, grid, hidden, 4)

    body = program(
        f"hidden = find_objects(keep_color(grid, {hidden}))[0]",
        f"return crop_object(complete_symmetry(grid, {hidden}), hidden)",
    )
    return Rule(body, draw)


@generator
def keep_symmetric_objects(rng: Rng) -> Rule:
    side = pick(rng, ("is_symmetric_horizontal", "is_symmetric_vertical"))
    wanted = pick(rng, ("", "not "))
    turn = side == "is_symmetric_vertical"

    def draw(rng: Rng):
        palette = inputs.colors(rng, 2)
        sprites = [inputs.symmetric_sprite(rng, 5, palette) for _ in range(integer(rng, 1, 2))]
        sprites = [sprite.T if turn else sprite for sprite in sprites]
        sprites += [inputs.colored(rng, inputs.blob(rng, 3, 4), palette) for _ in range(integer(rng, 1, 3))]
        return inputs.scene(rng, sprites, 11, 15)

    body = program(
        "result = create_grid(*grid.shape)",
        "for obj in find_objects(grid, single_color=False):",
        f"    if {wanted}obj.{side}:",
        "        result = draw_object(result, obj)",
        "return result",
    )
    return Rule(body, draw)


@generator
def mirror_half_over(rng: Rng) -> Rule:
    """One half is empty and gets the mirror image of the other."""
    turn, axis = pick(rng, (("flip_horizontal", 1), ("flip_vertical", 0)))
    new = pick(rng, (None, *inputs.colors(rng, 1)))

    def draw(rng: Rng):
        grid = inputs.noise(rng, inputs.colors(rng, 3, () if new is None else (new,)), 0.5, 4, 10)
        half = grid.shape[axis] // 2
        cut = (slice(None), slice(half, None)) if axis else (slice(half, None),)
        grid[cut] = 0
        return grid

    image = f"{turn}(grid)" if new is None else f"set_color({turn}(grid), {new})"
    return Rule(program(f"return overlay({image}, grid)"), draw)


@generator
def is_symmetric_answer(rng: Rng) -> Rule:
    yes, no = inputs.colors(rng, 2)
    name, axis = pick(rng, (("is_symmetric_horizontal", 1), ("is_symmetric_vertical", 0)))

    def draw(rng: Rng):
        grid = inputs.dense(rng, [0, *inputs.colors(rng, 2)], 3, 6)
        return grid if rng.random() < 0.5 else _mirrored(grid, axis)

    return Rule(program(f"color = {yes} if {name}(grid) else {no}", "return create_grid(1, 1, color)"), draw)


def _mirrored(grid: np.ndarray, axis: int) -> np.ndarray:
    half = np.array_split(grid, 2, axis)[0]
    return np.concatenate([half, np.flip(half, axis)], axis)
