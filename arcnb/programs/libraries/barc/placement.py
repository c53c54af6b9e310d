"""Random places: free locations for sprites, scattered points, spaced indices."""

import math
import random

import numpy as np

from arcnb.programs.libraries.barc.regions import dilate, steps


def random_free_location_for_sprite(
    grid, sprite, background=0, border_size=0, padding=0, padding_connectivity=8
):
    """A uniformly chosen (x, y) where the sprite fits; ValueError when there is none.

    It must keep `border_size` from the sides, and no cell of the sprite may lie on an occupied cell of the
    grid or within `padding` steps of one.
    """
    places = free_locations(grid, sprite, background, border_size, padding, padding_connectivity)
    if not places:
        raise ValueError(f"no free location for a sprite of shape {sprite.shape}")
    return random.choice(places)


def random_free_location_for_object(*args, **kwargs):
    """`random_free_location_for_sprite` under another name."""
    return random_free_location_for_sprite(*args, **kwargs)


def free_locations(grid, sprite, background=0, border_size=0, padding=0, padding_connectivity=8):
    """All valid places, x outer, y inner."""
    n, m = grid.shape
    w, h = sprite.shape
    occupied = grid != background
    if padding > 0:
        steps(padding_connectivity)
        for _ in range(min(padding, n + m)):
            occupied = dilate(occupied, padding_connectivity)
    mask = sprite != background
    return [
        (x, y)
        for x in range(border_size, n - border_size - w + 1)
        for y in range(border_size, m - border_size - h + 1)
        if not (occupied[x : x + w, y : y + h] & mask).any()
    ]


def randomly_scatter_points(grid, color, density=0.5, background=0):
    """Recolor random background cells, as many as `density` of all cells; writes grid and returns it."""
    n, m = grid.shape
    count = math.ceil(density * n * m)
    free = np.argwhere(grid == background)
    if count > len(free):
        raise ValueError(f"cannot scatter {count} points: only {len(free)} cells are background")
    for x, y in random.sample(free.tolist(), max(0, count)):
        grid[x, y] = color
    return grid


def randomly_spaced_indices(max_len, n_indices, border_size=1, padding=1):
    """Ascending indices at least `padding + 1` apart, every placement equally likely.

    With a border b > 0 they lie in b .. max_len - 3, without in 0 .. max_len - 1; IndexError when they do
    not fit.
    """
    low, high = (border_size, max_len - 3) if border_size > 0 else (0, max_len - 1)
    # Taking the gaps out leaves a plain choice without repetition.
    free = high - low + 1 - padding * max(0, n_indices - 1)
    if n_indices > max(0, free):
        raise IndexError(f"{n_indices} indices do not fit into {low}..{high} with padding {padding}")
    chosen = sorted(random.sample(range(max(0, free)), n_indices))
    return np.array([low + place + i * padding for i, place in enumerate(chosen)], dtype=int)
