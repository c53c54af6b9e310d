"""Falling, sliding, shifting."""

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import DIRECTIONS, Rule, generator, program


@generator
def fall(rng: Rng) -> Rule:
    direction = pick(rng, DIRECTIONS)
    arguments = pick(rng, ("grid", f'grid, "{direction}"'))
    return Rule(
        program(f"return gravity({arguments})"),
        lambda rng: inputs.noise(rng, inputs.colors(rng, 3), 0.25, 4, 10),
    )


@generator
def fall_and_keep(rng: Rng) -> Rule:
    fixed, *palette = inputs.colors(rng, 3)
    direction = pick(rng, DIRECTIONS)
    side = {
        "down": (-1, slice(None)),
        "up": (0, slice(None)),
        "left": (slice(None), 0),
        "right": (slice(None), -1),
    }

    def draw(rng: Rng):
        grid = inputs.noise(rng, palette, 0.2, 5, 10)
        grid[side[direction]] = fixed
        return grid

    return Rule(program(f'return gravity(grid, "{direction}")'), draw)


@generator
def slide_objects(rng: Rng) -> Rule:
    direction = pick(rng, DIRECTIONS)
    key, reverse = {
        "down": ("bottom", True),
        "up": ("row", False),
        "left": ("column", False),
        "right": ("right", True),
    }[direction]
    order = f', "{key}", reverse=True' if reverse else f', "{key}"'
    body = program(
        f"for obj in sort_objects(find_objects(grid){order}):",
        f'    grid = slide_object(grid, obj, "{direction}")',
        "return grid",
    )
    return Rule(body, lambda rng: inputs.blocks(rng, (2, 4), side=(1, 3), low=8, high=12))


@generator
def slide_object_of_color(rng: Rng) -> Rule:
    moving, *others = inputs.colors(rng, 3)
    direction = pick(rng, DIRECTIONS)

    def draw(rng: Rng):
        sprites = [inputs.shape(rng, 3) * color for color in (moving, *others)]
        return inputs.scene(rng, sprites, 9, 13)

    body = program(
        f"for obj in find_objects(keep_color(grid, {moving})):",
        f'    grid = slide_object(grid, obj, "{direction}")',
        "return grid",
    )
    return Rule(body, draw)


@generator
def move_color(rng: Rng) -> Rule:
    moving, *others = inputs.colors(rng, 4)
    rows, columns = integer(rng, -2, 2), integer(rng, -2, 2)
    body = program(
        f"moved = shift(keep_color(grid, {moving}), {rows}, {columns})",
        f"return overlay(remove_color(grid, {moving}), moved)",
    )
    return Rule(body, lambda rng: inputs.objects(rng, (2, 5), [moving, *others], 3, 8, 13, border=1))


@generator
def shadow(rng: Rng) -> Rule:
    color, *palette = inputs.colors(rng, 4)
    rows, columns = pick(rng, ((1, 1), (1, -1), (1, 0), (0, 1), (-1, 1), (2, 2)))
    body = program(
        f"shadow = set_color(shift(grid, {rows}, {columns}), {color})", "return overlay(shadow, grid)"
    )
    return Rule(body, lambda rng: inputs.objects(rng, (1, 4), palette, 4, 8, 13))


@generator
def move_to_corner(rng: Rng) -> Rule:
    row = pick(rng, ("0", "grid.shape[0] - obj.height"))
    column = pick(rng, ("0", "grid.shape[1] - obj.width"))

    def draw(rng: Rng):
        return inputs.scene(rng, [inputs.colored(rng, inputs.blob(rng, 2, 4), inputs.colors(rng, 2))], 7, 12)

    body = program(
        "obj = find_objects(grid, single_color=False)[0]",
        f"return draw_object(erase_object(grid, obj), obj.move_to({row}, {column}))",
    )
    return Rule(body, draw)
