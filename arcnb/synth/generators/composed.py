"""New programs by chaining one to four steps of the DSL.

A step is a function `(rng, palette) -> lines` that turn the variable `grid` into another grid; `palette` has
the colors that its input may have, and a step that brings in a color adds it. Chains that fail or change
nothing on the drawn inputs are drawn again by `rule_task`; lines that turn out irrelevant are left to
`validation`.
"""

from collections.abc import Callable

import numpy as np

from arcnb.synth import inputs
from arcnb.synth.generators.objects import random_condition
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import DIRECTIONS, TURNS, Rule, generator, program

Palette = list[int]
Step = Callable[[Rng, Palette], list[str]]


def _call(text: str) -> list[str]:
    return [f"grid = {text}"]


def _step(text: Callable[[Rng, Palette], str]) -> Step:
    """A step of one call: `text` is what the grid becomes."""
    return lambda rng, palette: _call(text(rng, palette))


def _new_color(rng: Rng, palette: Palette) -> int:
    """A color for the step to paint with, usually one not seen before."""
    unseen = [color for color in inputs.FOREGROUND if color not in palette]
    color = pick(rng, unseen if unseen and rng.random() < 0.8 else inputs.FOREGROUND)
    if color not in palette:
        palette.append(color)
    return color


# --------------------------------------------------------------------------- steps on the whole grid


turn = _step(lambda rng, palette: f"{pick(rng, TURNS)}(grid)")


def recolor(rng: Rng, palette: Palette) -> list[str]:
    old = pick(rng, palette)
    return _call(f"recolor(grid, {old}, {_new_color(rng, palette)})")


def swap(rng: Rng, palette: Palette) -> list[str]:
    a, b = rng.permutation(palette)[:2]
    return _call(f"swap_colors(grid, {a}, {b})")


drop = _step(lambda rng, palette: f"{pick(rng, ('remove_color', 'keep_color'))}(grid, {pick(rng, palette)})")


def one_color(rng: Rng, palette: Palette) -> list[str]:
    color = pick(rng, (str(_new_color(rng, palette)), "mode_color(grid)", "least_color(grid)"))
    return _call(f"set_color(grid, {color})")


recolor_mode = _step(
    lambda rng, palette: (
        f"recolor(grid, {pick(rng, ('mode_color', 'least_color'))}(grid), {_new_color(rng, palette)})"
    )
)
fall = _step(lambda rng, palette: f'gravity(grid, "{pick(rng, DIRECTIONS)}")')


def shift(rng: Rng, palette: Palette) -> list[str]:
    rows, columns = integer(rng, -2, 2), integer(rng, -2, 2)
    return _call(f"{pick(rng, ('shift', 'shift_wrap'))}(grid, {rows}, {columns})")


outline = _step(
    lambda rng, palette: f"outline(grid, {_new_color(rng, palette)}{pick(rng, ('', ', diagonal=False'))})"
)
fill = _step(lambda rng, palette: f"fill_enclosed(grid, {_new_color(rng, palette)})")


def connect(rng: Rng, palette: Palette) -> list[str]:
    color = pick(rng, palette)
    return _call(f"connect_pixels(grid, {color})")


border = _step(lambda rng, palette: f"draw_border(grid, {_new_color(rng, palette)})")


def mirror_over(rng: Rng, palette: Palette) -> list[str]:
    image = f"{pick(rng, TURNS[:3])}(grid)"
    return _call(f"overlay({pick(rng, (f'grid, {image}', f'{image}, grid'))})")


def map_two(rng: Rng, palette: Palette) -> list[str]:
    a, b = rng.permutation(palette)[:2]
    return _call(f"map_colors(grid, {{{a}: {_new_color(rng, palette)}, {b}: {_new_color(rng, palette)}}})")


def mask_of_two(rng: Rng, palette: Palette) -> list[str]:
    a, b = rng.permutation(palette)[:2]
    mask = f"color_mask(grid, {a}) | color_mask(grid, {b})"
    return [f"mask = {mask}", *_call(f"fill_mask(grid, mask, {_new_color(rng, palette)})")]


def mark_overlap(rng: Rng, palette: Palette) -> list[str]:
    image = f"{pick(rng, TURNS[:3])}(grid)"
    mask = f"(grid != 0) & ({image} {pick(rng, ('!=', '=='))} 0)"
    return [f"mask = {mask}", *_call(f"fill_mask(grid, mask, {_new_color(rng, palette)})")]


def move_color(rng: Rng, palette: Palette) -> list[str]:
    color, rows, columns = pick(rng, palette), integer(rng, -2, 2), integer(rng, -2, 2)
    return [
        f"moved = shift(keep_color(grid, {color}), {rows}, {columns})",
        *_call(f"overlay(remove_color(grid, {color}), moved)"),
    ]


def shadow(rng: Rng, palette: Palette) -> list[str]:
    rows, columns = pick(rng, ((1, 1), (1, -1), (1, 0), (0, 1), (-1, 0), (0, -1), (-1, 1), (-1, -1)))
    image = f"set_color(shift(grid, {rows}, {columns}), {_new_color(rng, palette)})"
    return _call(f"overlay({image}, grid)")


# --------------------------------------------------------------------------- steps that change the size


content = _step(lambda rng, palette: "crop_to_content(grid)")
half = _step(lambda rng, palette: f"{pick(rng, ('left', 'right', 'top', 'bottom'))}_half(grid)")
trim = _step(lambda rng, palette: "trim(grid)")
pad = _step(lambda rng, palette: f"pad(grid, 1, {_new_color(rng, palette)})")
scale = _step(lambda rng, palette: f"upscale(grid, {integer(rng, 2, 3)})")


def repeat(rng: Rng, palette: Palette) -> list[str]:
    rows, columns = pick(rng, ((1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (3, 3)))
    return _call(f"tile(grid, {rows}, {columns})")


mirror = _step(lambda rng, palette: f"{pick(rng, ('mirror_horizontal', 'mirror_vertical'))}(grid)")


def beside(rng: Rng, palette: Palette) -> list[str]:
    image = f"{pick(rng, TURNS[:3])}(grid)"
    return _call(f"{pick(rng, ('stack_horizontal', 'stack_vertical'))}(grid, {image})")


# --------------------------------------------------------------------------- steps on objects


def extreme(rng: Rng, palette: Palette) -> list[str]:
    function = pick(rng, ("largest_object", "smallest_object"))
    action = pick(
        rng,
        (
            "obj.grid",
            "erase_object(grid, obj)",
            f"draw_object(grid, obj.recolor({_new_color(rng, palette)}))",
            "draw_object(create_grid(*grid.shape), obj)",
        ),
    )
    return [f"obj = {function}(find_objects(grid))", *_call(action)]


def objects_where(rng: Rng, palette: Palette) -> list[str]:
    condition = random_condition(rng, palette)
    action = pick(
        rng, ("erase_object(grid, obj)", f"draw_object(grid, obj.recolor({_new_color(rng, palette)}))")
    )
    return ["for obj in find_objects(grid):", f"    if {condition}:", f"        grid = {action}"]


def lines_through(rng: Rng, palette: Palette) -> list[str]:
    function, where = pick(rng, (("draw_horizontal_line", "row"), ("draw_vertical_line", "column")))
    color = pick(rng, palette)
    return [
        f"for obj in find_objects(keep_color(grid, {color})):",
        f"    grid = {function}(grid, obj.{where}, {pick(rng, (color, _new_color(rng, palette)))})",
    ]


def rays(rng: Rng, palette: Palette) -> list[str]:
    step = pick(rng, ((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1)))
    return [
        "for obj in find_objects(grid):",
        f"    grid = draw_ray(grid, obj.position, {step}, obj.color)",
    ]


def slide(rng: Rng, palette: Palette) -> list[str]:
    direction = pick(rng, DIRECTIONS)
    return [
        f"for obj in find_objects(keep_color(grid, {pick(rng, palette)})):",
        f'    grid = slide_object(grid, obj, "{direction}")',
    ]


def boxes(rng: Rng, palette: Palette) -> list[str]:
    color = pick(rng, ("obj.color", str(_new_color(rng, palette))))
    filled = pick(rng, ("", ", filled=False"))
    return [
        "for obj in find_objects(grid):",
        f"    grid = draw_rectangle(grid, *obj.position, *obj.size, {color}{filled})",
    ]


def turn_extreme(rng: Rng, palette: Palette) -> list[str]:
    function = pick(rng, ("largest_object", "smallest_object"))
    turned = pick(rng, ("flip_horizontal()", "flip_vertical()", "move({0}, {1})"))
    turned = turned.format(integer(rng, -2, 2), integer(rng, -2, 2))
    return [
        f"obj = {function}(find_objects(grid))",
        *_call(f"draw_object(erase_object(grid, obj), obj.{turned})"),
    ]


STEPS: tuple[Step, ...] = (
    turn, recolor, swap, drop, one_color, recolor_mode, fall, shift, outline, fill, connect, border,
    mirror_over, map_two, mask_of_two, mark_overlap, move_color, shadow, objects_where, objects_where,
    lines_through, rays, slide, boxes, turn_extreme,
)  # fmt: skip
# At most one of these in a chain, usually at its end: grids stay within 30 a side.
SIZE_STEPS: tuple[Step, ...] = (content, half, trim, pad, scale, repeat, mirror, beside, extreme)


def _draw_input(rng: Rng, palette: Palette, kind: int) -> np.ndarray:
    if kind == 0:
        return inputs.noise(rng, palette, 0.35, 4, 9)
    if kind == 1:
        return inputs.blocks(rng, (2, 4), palette, (1, 4), 7, 11, border=integer(rng, 0, 1))
    if kind == 2:
        return inputs.pixels(rng, (2, 6), palette, 6, 10)
    return inputs.objects(rng, (2, 4), palette, 5, 8, 12)


def chain(rng: Rng, colors: Palette, n_steps: int) -> str:
    """Program text of `n_steps` steps for inputs that have these colors besides 0 (two at least are best)."""
    palette = list(colors)
    steps = [pick(rng, STEPS) for _ in range(n_steps)]
    if rng.random() < 0.4:
        steps[0 if rng.random() < 0.25 else -1] = pick(rng, SIZE_STEPS)
    lines = [line for step in steps for line in step(rng, palette)]
    if lines[-1].startswith("grid = "):
        lines[-1] = lines[-1].replace("grid = ", "return ", 1)
    else:
        lines.append("return grid")
    return program(*lines)


@generator
def composed(rng: Rng) -> Rule:
    """One to four steps on scenes, noise or single cells of two or three colors."""
    colors = inputs.colors(rng, integer(rng, 2, 3))
    kind, n_steps = int(rng.integers(4)), int(rng.choice(4, p=(0.1, 0.35, 0.35, 0.2))) + 1
    return Rule(chain(rng, colors, n_steps), lambda rng: _draw_input(rng, colors, kind))
