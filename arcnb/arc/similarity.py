"""Pixel similarity: how alike two grids look, 1.0 only for equal grids.

Grids of one shape are compared cell by cell. Otherwise one grid slides over the other and the offset with
the most equal cells counts: score = equal cells / (larger height x larger width). All offsets are counted at
once, colour by colour (`bench/pixel_similarity.py` compares this with the loop over offsets):

* a colour of few cells: each cell of one grid with each of the other is one equal cell at one offset;
* a colour of many cells: the cross-correlation of "where is this colour", by real Fourier transforms. The
  counts are below 901, far inside what float32 rounds to the right integer.
"""

import numpy as np

from arcnb.arc.grids import N_COLORS, Grid

# From about this many pairs of equal cells on, the transform of a colour is faster than its list of pairs.
_MANY_PAIRS = 8000


def pixel_similarity(a: Grid, b: Grid) -> float:
    """Similarity of two grids, symmetric, in [0, 1]."""
    a, b = np.asarray(a, np.uint8), np.asarray(b, np.uint8)
    if a.shape == b.shape:
        return int(np.count_nonzero(a == b)) / a.size
    return _most_equal_cells(a, b) / (max(a.shape[0], b.shape[0]) * max(a.shape[1], b.shape[1]))


def _most_equal_cells(a: Grid, b: Grid) -> int:
    """The largest number of equal cells over all offsets of `b` against `a`."""
    pairs = np.bincount(a.ravel(), minlength=N_COLORS) * np.bincount(b.ravel(), minlength=N_COLORS)
    rare = np.flatnonzero((pairs > 0) & (pairs < _MANY_PAIRS))
    common = np.flatnonzero(pairs >= _MANY_PAIRS)
    if not rare.size and not common.size:
        return 0
    # With rows padded to the widest overlap and laid end to end, and b turned around, a cell of a and a cell
    # of b lie over each other at the offset that is the sum of their positions.
    b = b[::-1, ::-1]
    width, height = a.shape[1] + b.shape[1] - 1, a.shape[0] + b.shape[0] - 1
    counts = np.zeros(height * width)
    if common.size:
        counts += _correlation(a, b, common.astype(np.uint8), width, height)
    if rare.size:
        counts += _pair_counts(a, b, rare, width, height)
    return round(float(counts.max()))


def _correlation(a: Grid, b: Grid, colors: np.ndarray, width: int, height: int) -> np.ndarray:
    from scipy import fft

    n = len(colors)
    length = fft.next_fast_len(height * width, real=True)
    masks = np.zeros((2 * n, length), np.float32)
    for part, grid in ((masks[:n], a), (masks[n:], b)):
        rows = part[:, : grid.shape[0] * width].reshape(n, grid.shape[0], width)
        rows[:, :, : grid.shape[1]] = grid == colors[:, None, None]
    spectra = fft.rfft(masks)
    return fft.irfft((spectra[:n] * spectra[n:]).sum(axis=0), length)[: height * width]


def _pair_counts(a: Grid, b: Grid, colors: np.ndarray, width: int, height: int) -> np.ndarray:
    places_a, places_b = (
        np.arange(grid.shape[0])[:, None] * width + np.arange(grid.shape[1]) for grid in (a, b)
    )
    sums = [np.add.outer(places_a[a == color], places_b[b == color]).ravel() for color in colors]
    return np.bincount(np.concatenate(sums), minlength=height * width)
