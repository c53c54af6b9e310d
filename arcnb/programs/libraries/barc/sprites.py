"""Random sprites with symmetries, and the deterministic symmetry writers."""

import random

import numpy as np

from arcnb.programs.libraries.barc.regions import components, steps

SYMMETRIES = ("horizontal", "vertical", "mirror", "diagonal", "radial", "not_symmetric")
_SQUARE = ("diagonal", "radial")
_ATTEMPTS = 20  # sprites grown before one that is fuller than asked is accepted


def random_sprite(n, m, density=0.5, symmetry=None, color_palette=None, connectivity=4, background=0):
    """Array in one piece that touches all four sides.

    n, m: a size, or a list or range to choose from; square sizes only for `diagonal` and `radial` (IndexError
    when there is none). symmetry: one of SYMMETRIES or None for any. density: share of filled cells, about;
    color_palette None: a few of the ten colors, never the background.
    """
    steps(connectivity)
    if symmetry is not None and symmetry not in SYMMETRIES:
        raise ValueError(f"random_sprite: unknown symmetry {symmetry!r}, expected one of {SYMMETRIES}")
    shapes = [(a, b) for a in _sizes(n) for b in _sizes(m)]
    square = [shape for shape in shapes if shape[0] == shape[1]]
    if symmetry is None:
        symmetry = random.choice(SYMMETRIES if square else [s for s in SYMMETRIES if s not in _SQUARE])
    n, m = random.choice(square if symmetry in _SQUARE else shapes)

    side = min(n, m)
    if side == 1 or density >= 1:
        least, aim = 1.0, 1.0
    elif side <= 3:
        least = aim = max(density, 0.6 if side == 2 else 0.5)
    else:
        least = aim = min(0.95, max(0.4, density + random.uniform(-0.1, 0.1)))

    palette = _few(color_palette, background)
    for attempt in range(_ATTEMPTS):
        sprite = _grow(n, m, symmetry, aim, palette, connectivity, background)
        while not _complete(sprite, least, connectivity, background):
            sprite = _grow(
                n, m, symmetry, _filled(sprite, background) + 0.05, palette, connectivity, background
            )
        if _filled(sprite, background) <= aim + 0.15 or attempt == _ATTEMPTS - 1:
            return sprite
    return sprite


def generate_sprite(
    n, m, symmetry_type, fill_percentage=0.5, max_colors=9, color_palate=None, connectivity=4, background=0
):
    """One random walk of fixed size and symmetry; it need not touch the sides."""
    steps(connectivity)
    if symmetry_type not in SYMMETRIES:
        raise ValueError(f"generate_sprite: unknown symmetry {symmetry_type!r}, expected one of {SYMMETRIES}")
    assert symmetry_type != "radial" or n == m, f"generate_sprite: radial needs a square, got {n} x {m}"
    if symmetry_type == "diagonal" and n != m:
        raise ValueError(f"generate_sprite: diagonal needs a square, got {n} x {m}")
    palette = _few(color_palate, background)[:max_colors]
    return _grow(n, m, symmetry_type, fill_percentage, palette, connectivity, background)


def apply_symmetry(sprite, symmetry_type, background=0):
    """Make the sprite equal to its mirror image along x (`horizontal`) or y (`vertical`), and return it.

    Of each pair of cells the one in the first half decides, unless it is background.
    """
    if symmetry_type == "horizontal":
        _agree(sprite, sprite[::-1], sprite.shape[0] // 2, background)
    elif symmetry_type == "vertical":
        _agree(sprite.T, sprite.T[::-1], sprite.shape[1] // 2, background)
    else:
        raise ValueError(f"apply_symmetry: expected horizontal or vertical, got {symmetry_type!r}")
    return sprite


def apply_diagonal_symmetry(sprite, background=0):
    """Make the sprite equal to its transpose; writes and returns it. (x, y) with x < y decides, as above."""
    n, m = sprite.shape
    if n != m:
        raise ValueError(f"apply_diagonal_symmetry: the sprite must be square, got {n} x {m}")
    for x in range(n):
        for y in range(x + 1, n):
            color = sprite[x, y] if sprite[x, y] != background else sprite[y, x]
            sprite[x, y] = sprite[y, x] = color
    return sprite


def _agree(cells, mirrored, half, background):
    first, second = cells[:half], mirrored[:half]
    color = np.where(first != background, first, second)
    first[...] = color
    second[...] = color


def _sizes(size):
    return [size] if isinstance(size, int | np.integer) else list(size)


def _few(palette, background):
    """Colors to paint with: the palette, or one of the ten, and one more at 0.3 each time."""
    colors = [c for c in (range(10) if palette is None else palette) if c != background]
    if not colors:
        raise ValueError(f"the color palette {palette!r} holds nothing but the background {background}")
    random.shuffle(colors)
    if palette is not None:
        return colors
    count = 1
    while count < len(colors) and random.random() < 0.3:
        count += 1
    return colors[:count]


def _images(n, m, symmetry):
    """Function from a cell to the cells that must look the same, itself included."""
    x_last, y_last = n - 1, m - 1
    if symmetry == "diagonal":
        symmetry = random.choice(("transpose", "anti-transpose"))
    return {
        "not_symmetric": lambda x, y: {(x, y)},
        "horizontal": lambda x, y: {(x, y), (x_last - x, y)},
        "vertical": lambda x, y: {(x, y), (x, y_last - y)},
        "mirror": lambda x, y: {(x, y), (x_last - x, y), (x, y_last - y), (x_last - x, y_last - y)},
        "transpose": lambda x, y: {(x, y), (y, x)},
        "anti-transpose": lambda x, y: {(x, y), (y_last - y, x_last - x)},
        "radial": lambda x, y: {(x, y), (y, x_last - x), (x_last - x, y_last - y), (y_last - y, x)},
    }[symmetry]


def _grow(n, m, symmetry, share, palette, connectivity, background):
    """Grow from a random cell, all images of a cell at once, until `share` of the array is filled.

    The seed lies on the axis of symmetry often enough for one piece: neighbours of any filled cell are added
    at random. The color changes now and then along the way.
    """
    images = _images(n, m, symmetry)
    sprite = np.full((n, m), background, dtype=int)
    offsets = steps(connectivity)
    start = random.randrange(n), random.randrange(m)
    frontier, filled, color = [start], set(), random.choice(palette)
    while frontier and len(filled) < share * n * m - 1e-9:
        at = random.randrange(len(frontier))
        frontier[at], frontier[-1] = frontier[-1], frontier[at]
        cell = frontier.pop()
        if cell in filled:
            continue
        if random.random() < 0.2:
            color = random.choice(palette)
        for x, y in images(*cell):
            filled.add((x, y))
            sprite[x, y] = color
            frontier.extend(
                (x + dx, y + dy)
                for dx, dy in offsets
                if 0 <= x + dx < n and 0 <= y + dy < m and (x + dx, y + dy) not in filled
            )
    return sprite


def _filled(sprite, background):
    return np.count_nonzero(sprite != background) / sprite.size


def _complete(sprite, least, connectivity, background):
    """Filled enough, touching all four sides, in one piece; a full sprite always is."""
    mask = sprite != background
    touches = mask[0].any() and mask[-1].any() and mask[:, 0].any() and mask[:, -1].any()
    return mask.mean() >= least - 1e-9 and touches and len(components(mask, connectivity)) == 1
