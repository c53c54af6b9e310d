"""Pixel similarity against the loop over offsets that defines it, on grids of 30x30 and 29x28.

    python bench/pixel_similarity.py

Prints the median time of both and their ratio; the acceptance mark is 50. Both are run in turn, so that a
busy machine slows them alike. The results are compared, the times are only printed.
"""

import statistics
import time

import numpy as np

from arcnb.arc.scores.similarity import pixel_similarity

REPEATS = 15


def loop_over_offsets(a: np.ndarray, b: np.ndarray) -> float:
    """The definition, written down: every offset, the overlap, the number of equal cells in it."""
    (h1, w1), (h2, w2) = a.shape, b.shape
    best = 0
    for dx in range(-(h2 - 1), h1):
        for dy in range(-(w2 - 1), w1):
            top, left = max(dx, 0), max(dy, 0)
            bottom, right = min(h1, dx + h2), min(w1, dy + w2)
            overlap = a[top:bottom, left:right] == b[top - dx : bottom - dx, left - dy : right - dy]
            best = max(best, int(overlap.sum()))
    return best / (max(h1, h2) * max(w1, w2))


def seconds(function, a: np.ndarray, b: np.ndarray, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(a, b)
    return (time.perf_counter() - start) / calls


def grids(rng: np.random.Generator, kind: int | str) -> list[np.ndarray]:
    shapes = [(30, 30), (29, 28)]
    if kind == "sparse":  # as ARC grids often are: a background and few cells of every other colour
        drawn = [rng.choice(10, shape, p=[0.82] + [0.02] * 9) for shape in shapes]
    else:
        drawn = [rng.integers(0, kind, shape) for shape in shapes]
    return [grid.astype(np.uint8) for grid in drawn]


def main() -> None:
    rng = np.random.default_rng(0)
    for kind in (2, 4, 10, "sparse"):
        a, b = grids(rng, kind)
        assert pixel_similarity(a, b) == loop_over_offsets(a, b)
        times = []
        for _ in range(REPEATS):
            times.append((seconds(loop_over_offsets, a, b, 1), seconds(pixel_similarity, a, b, 10)))
        slow, fast = (statistics.median(column) for column in zip(*times, strict=True))
        name = f"{kind} colours" if kind != "sparse" else "10 colours, 82% background"
        print(f"{name:28} loop {slow * 1e3:6.2f} ms, arcnb {fast * 1e6:4.0f} us, ratio {slow / fast:4.0f}")


if __name__ == "__main__":
    main()
