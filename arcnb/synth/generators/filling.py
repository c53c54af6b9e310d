"""Filling holes and areas, outlining."""

from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, for_each, generator, program


def _frames(palette):
    def draw(rng: Rng):
        sprites = [inputs.frame(rng, 3, 6) * pick(rng, palette) for _ in range(integer(rng, 1, 3))]
        return inputs.scene(rng, [*sprites, inputs.blob(rng, 2, 3) * pick(rng, palette)], 10, 15)

    return draw


@generator
def fill_holes(rng: Rng) -> Rule:
    color, *palette = inputs.colors(rng, 3)
    return Rule(program(f"return fill_enclosed(grid, {color})"), _frames(palette))


@generator
def fill_holes_by_size(rng: Rng) -> Rule:
    small, large, wall = inputs.colors(rng, 3)
    limit = integer(rng, 2, 6)
    body = program(
        "result = grid",
        "for hole in find_objects(enclosed_areas(grid != 0).astype(int)):",
        f"    color = {small} if hole.area < {limit} else {large}",
        "    result = draw_object(result, hole.recolor(color))",
        "return result",
    )
    return Rule(body, _frames([wall]))


@generator
def fill_frames_with_own_color(rng: Rng) -> Rule:
    palette = inputs.colors(rng, 3)
    body = for_each(
        "if obj.n_holes > 0:",
        "    result = draw_rectangle(result, *obj.position, *obj.size, obj.color)",
    )
    return Rule(body, _frames(palette))


@generator
def fill_outside(rng: Rng) -> Rule:
    color, wall = inputs.colors(rng, 2)

    return Rule(
        program(f"return flood_fill(grid, 0, 0, {color})"),
        lambda rng: inputs.scene(rng, [inputs.frame(rng, 3, 6) * wall for _ in range(2)], 9, 14, border=1),
    )


@generator
def outline_content(rng: Rng) -> Rule:
    color, *palette = inputs.colors(rng, 4)
    diagonal = pick(rng, ("", ", diagonal=False"))
    sprites = pick(rng, (inputs.blocks, inputs.objects))
    return Rule(
        program(f"return outline(grid, {color}{diagonal})"),
        lambda rng: sprites(rng, (1, 3), palette, low=8, high=13, border=1),
    )


@generator
def outline_pixels_of_color(rng: Rng) -> Rule:
    chosen, ring, *palette = inputs.colors(rng, 4)
    diagonal = pick(rng, ("", ", diagonal=False"))
    body = program(
        f"marks = outline(keep_color(grid, {chosen}), {ring}{diagonal})",
        "return overlay(marks, grid)",
    )
    return Rule(body, lambda rng: inputs.pixels(rng, (2, 5), [chosen, *palette], 7, 13))


@generator
def fill_rows_or_columns(rng: Rng) -> Rule:
    (color,) = inputs.colors(rng, 1)
    mark = pick(rng, inputs.colors(rng, 4, (color,)))
    axis, index = pick(rng, ((1, "[:, None]"), (0, "[None, :]")))
    body = program(
        f"marked = np.any(grid == {mark}, axis={axis}){index}",
        f"return fill_mask(grid, marked & (grid == 0), {color})",
    )
    return Rule(
        body,
        lambda rng: inputs.pixels(rng, (1, 4), [mark, pick(rng, inputs.colors(rng, 3, (color,)))], 6, 12),
    )


@generator
def checkerboard(rng: Rng) -> Rule:
    a, b = inputs.colors(rng, 2)
    odd = integer(rng, 0, 1)
    body = program(
        "rows, columns = np.indices(grid.shape)",
        f"odd = (rows + columns) % 2 == {odd}",
        f"return fill_mask(grid, odd & (grid == {a}), {b})",
    )
    return Rule(body, lambda rng: inputs.blocks(rng, (1, 3), [a], (2, 5), 7, 12))
