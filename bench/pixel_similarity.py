"""Pixel similarity against the loop over offsets that defines it, on grids of 30x30 and 29x28.

    python bench/pixel_similarity.py

Prints the median time of both and their ratio; the acceptance mark is 50. Both are run in turn, so that a busy
machine slows them alike. Nothing here is a test: the results are compared, the times are only printed.
"""

import statistics
import time

import numpy as np

from arcnb.arc.similarity import pixel_similarity

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
            best = max(best, int(np.count_nonzero(overlap)))
    return best / (max(h1, h2) * max(w1, w2))


def seconds(function, *args) -> float:
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def main() -> None:
    rng = np.random.default_rng(0)
    for n_colors in (2, 4, 10):
        a = rng.integers(0, n_colors, (30, 30), dtype=np.uint8)
        b = rng.integers(0, n_colors, (29, 28), dtype=np.uint8)
        assert pixel_similarity(a, b) == loop_over_offsets(a, b)
        times = [(seconds(loop_over_offsets, a, b), seconds(pixel_similarity, a, b)) for _ in range(REPEATS)]
        slow, fast = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"{n_colors:2d} colours: loop {slow * 1e3:6.2f} ms, arcnb {fast * 1e6:4.0f} us, ratio {slow / fast:4.0f}"
        )


if __name__ == "__main__":
    main()
