"""Pixel similarity: the reference's numbers, and the definition written down as a loop."""

import numpy as np
import pytest

from arcnb.arc.scores.similarity import pixel_similarity
from arcnb.arc.seeds import rng
from tests.arc.golden_grids import cases


def by_definition(a: np.ndarray, b: np.ndarray) -> float:
    (h1, w1), (h2, w2) = a.shape, b.shape
    if a.shape == b.shape:
        return (a == b).mean()
    best = 0
    for dx in range(-(h2 - 1), h1):
        for dy in range(-(w2 - 1), w1):
            equal = 0
            for r in range(max(dx, 0), min(h1, dx + h2)):
                for c in range(max(dy, 0), min(w1, dy + w2)):
                    equal += int(a[r, c] == b[r - dx, c - dy])
            best = max(best, equal)
    return best / (max(h1, h2) * max(w1, w2))


def test_all_golden_vectors_agree():
    for case in cases("arc25_pixel_similarity.json", "pixel_similarity_score"):
        a, b = case["args"]["a"], case["args"]["b"]
        assert pixel_similarity(a, b) == pytest.approx(case["expect"]["value"], abs=1e-12), case["id"]
        assert pixel_similarity(b, a) == pixel_similarity(a, b), case["id"]


def test_agrees_with_the_definition_on_small_grids_of_every_colour_count():
    for i in range(300):
        random = rng(i, "similarity")
        colors = int(random.integers(1, 11))
        a, b = (random.integers(0, colors, random.integers(1, 7, 2), dtype=np.uint8) for _ in range(2))
        assert pixel_similarity(a, b) == by_definition(a, b), (a.tolist(), b.tolist())


@pytest.mark.parametrize("shape", [(29, 28), (30, 29), (1, 30), (30, 1), (17, 30)])
def test_counts_are_exact_at_the_largest_sizes(shape):
    # One colour makes the counts, and with them any rounding error, as large as they get.
    ones = np.ones((30, 30), np.uint8)
    assert pixel_similarity(ones, np.ones(shape, np.uint8)) == shape[0] * shape[1] / 900
    # A cut-out is found where it was cut out, with every cell equal.
    grid = rng(0, *shape).integers(0, 10, (30, 30), dtype=np.uint8)
    part = grid[30 - shape[0] :, 30 - shape[1] :]
    assert pixel_similarity(grid, part) == shape[0] * shape[1] / 900


def test_grids_without_a_common_colour_have_nothing_in_common():
    assert pixel_similarity(np.zeros((3, 3), np.uint8), np.ones((2, 4), np.uint8)) == 0


def test_only_equal_grids_score_one():
    grid = np.ones((5, 5), np.uint8)
    assert pixel_similarity(grid, grid.copy()) == 1
    assert pixel_similarity(grid, grid[:4]) == 0.8
    other = grid.copy()
    other[2, 2] = 3
    assert pixel_similarity(grid, other) == 24 / 25
