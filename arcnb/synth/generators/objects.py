"""Objects chosen by a property and then recolored, removed, copied, turned or kept."""

from arcnb.programs.libraries import dsl
from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rules import Rule, for_each, generator, program

# Conditions on an object, as program text, with a chance of both answers on mixed scenes.
CONDITIONS = (
    "obj.area > {n}",
    "obj.area < {n}",
    "obj.height > obj.width",
    "obj.width > obj.height",
    "obj.is_rectangle",
    "not obj.is_rectangle",
    "obj.is_square",
    "obj.is_line",
    "obj.n_holes > 0",
    "obj.n_holes == 0",
    "obj.is_symmetric_horizontal",
    "not obj.is_symmetric_vertical",
    "touches_border(grid, obj)",
    "not touches_border(grid, obj)",
    "obj.color == {color}",
    "obj.color != {color}",
)


def _mixed(palette, condition: str = ""):
    """Scenes of objects of all kinds; with a condition, both answers occur, if ten draws bring them."""
    holds = eval(f"lambda grid, obj: {condition or True}", {"touches_border": dsl.touches_border})

    def draw(rng: Rng):
        for _ in range(10):
            sprites = [inputs.shape(rng, 5) * pick(rng, palette) for _ in range(integer(rng, 3, 5))]
            grid = inputs.scene(rng, sprites, 10, 16)
            if not condition or len({holds(grid, obj) for obj in dsl.find_objects(grid)}) == 2:
                break
        return grid

    return draw


def random_condition(rng: Rng, palette) -> str:
    """A condition on `obj` as program text; colors in it come from `palette`."""
    return pick(rng, CONDITIONS).format(n=integer(rng, 4, 7), color=pick(rng, palette))


def _loop(condition: str, action: str) -> str:
    return for_each(
        f"if {condition}:",
        f"    result = {action}",
    )


@generator
def recolor_objects_where(rng: Rng) -> Rule:
    new, *palette = inputs.colors(rng, integer(rng, 2, 4))
    condition = random_condition(rng, palette)
    return Rule(_loop(condition, f"draw_object(result, obj.recolor({new}))"), _mixed(palette, condition))


@generator
def remove_objects_where(rng: Rng) -> Rule:
    palette = inputs.colors(rng, integer(rng, 2, 4))
    condition = random_condition(rng, palette)
    return Rule(_loop(condition, "erase_object(result, obj)"), _mixed(palette, condition))


@generator
def recolor_objects_either(rng: Rng) -> Rule:
    yes, no, *palette = inputs.colors(rng, integer(rng, 3, 5))
    condition = random_condition(rng, palette)
    body = for_each(
        f"color = {yes} if {condition} else {no}",
        "result = draw_object(result, obj.recolor(color))",
    )
    return Rule(body, _mixed(palette, condition))


@generator
def recolor_extreme_object(rng: Rng) -> Rule:
    new, *palette = inputs.colors(rng, integer(rng, 2, 4))
    function = pick(rng, ("largest_object", "smallest_object"))
    body = program(f"obj = {function}(find_objects(grid))", f"return draw_object(grid, obj.recolor({new}))")
    return Rule(body, _mixed(palette))


@generator
def keep_extreme_object(rng: Rng) -> Rule:
    palette = inputs.colors(rng, integer(rng, 2, 4))
    function = pick(rng, ("largest_object", "smallest_object"))
    body = program(
        f"obj = {function}(find_objects(grid))",
        "empty = create_grid(*grid.shape)",
        "return draw_object(empty, obj)",
    )
    return Rule(body, _mixed(palette))


@generator
def flip_each_object(rng: Rng) -> Rule:
    method = pick(rng, ("flip_horizontal", "flip_vertical"))

    def draw(rng: Rng):
        sprites = [
            inputs.colored(rng, inputs.blob(rng, 2, 4), inputs.colors(rng, 2))
            for _ in range(integer(rng, 2, 4))
        ]
        return inputs.scene(rng, sprites, 9, 14)

    body = program(
        "result = create_grid(*grid.shape)",
        "for obj in find_objects(grid, single_color=False):",
        f"    result = draw_object(result, obj.{method}())",
        "return result",
    )
    return Rule(body, draw)


@generator
def move_objects(rng: Rng) -> Rule:
    rows, columns = integer(rng, -2, 2), integer(rng, -2, 2)
    color, *palette = inputs.colors(rng, 3)
    body = for_each(
        f"if obj.color == {color}:",
        "    result = erase_object(result, obj)",
        f"    result = draw_object(result, obj.move({rows}, {columns}))",
    )
    return Rule(body, _mixed([color, color, *palette]))


@generator
def copy_object(rng: Rng) -> Rule:
    rows, columns = pick(rng, ((0, 1), (1, 0), (1, 1), (0, -1), (-1, 0)))
    gap = integer(rng, 0, 1)
    move = f"obj.height + {gap}" if gap else "obj.height"
    across = f"obj.width + {gap}" if gap else "obj.width"
    down_text = {0: "0", 1: move, -1: f"-({move})" if gap else f"-{move}"}[rows]
    across_text = {0: "0", 1: across, -1: f"-({across})" if gap else f"-{across}"}[columns]

    def draw(rng: Rng):
        return inputs.scene(rng, [inputs.shape(rng, 4) * pick(rng, inputs.FOREGROUND)], 9, 14, border=1)

    body = program(
        "obj = largest_object(find_objects(grid))",
        f"return draw_object(grid, obj.move({down_text}, {across_text}))",
    )
    return Rule(body, draw)


@generator
def recolor_by_area_of(rng: Rng) -> Rule:
    sizes = rng.permutation([1, 2, 3, 4])[:3]
    table = {int(size): color for size, color in zip(sorted(sizes), inputs.colors(rng, 3, (5,)), strict=True)}

    def draw(rng: Rng):
        sprites = [inputs.line(rng, size, size) * 5 for size in rng.choice(list(table), integer(rng, 3, 5))]
        return inputs.scene(rng, sprites, 8, 13)

    body = program(
        f"new_color = {table}",
        "result = grid",
        "for obj in find_objects(grid):",
        "    result = draw_object(result, obj.recolor(new_color[obj.area]))",
        "return result",
    )
    return Rule(body, draw)


@generator
def recolor_same_shape(rng: Rng) -> Rule:
    new, base = inputs.colors(rng, 2)

    def draw(rng: Rng):
        sprite = inputs.letter(rng)
        copies = [sprite * base for _ in range(integer(rng, 1, 2))]
        others = [inputs.shape(rng, 4) * base for _ in range(integer(rng, 1, 3))]
        return inputs.scene(rng, [sprite * new, *copies, *others], 11, 16)

    body = program(
        f"key = find_objects(keep_color(grid, {new}))[0]",
        "result = grid",
        "for obj in find_objects(grid):",
        "    if obj.same_shape(key):",
        f"        result = draw_object(result, obj.recolor({new}))",
        "return result",
    )
    return Rule(body, draw)


@generator
def fill_bounding_boxes(rng: Rng) -> Rule:
    color, *palette = inputs.colors(rng, 4)
    body = for_each(
        f"result = draw_rectangle(result, *obj.position, *obj.size, {color})",
        at_end="overlay(result, grid)",
    )

    def draw(rng: Rng):
        sprites = [pick(rng, (inputs.blob, inputs.frame))(rng, 3, 4) * pick(rng, palette) for _ in range(3)]
        return inputs.scene(rng, sprites, 9, 14)

    return Rule(body, draw)


@generator
def box_objects(rng: Rng) -> Rule:
    color, *palette = inputs.colors(rng, 4)
    body = for_each(
        "row, column, height, width = obj.row - 1, obj.column - 1, obj.height + 2, obj.width + 2",
        f"result = draw_rectangle(result, row, column, height, width, {color}, filled=False)",
    )
    return Rule(body, lambda rng: inputs.blocks(rng, (1, 4), palette, (1, 3), 9, 14, border=1))
