"""Pixel similarity: how alike two grids look, 1.0 only for equal grids.

Grids of one shape are compared cell by cell. Otherwise one grid slides over the other and the offset with
the most equal cells counts: score = equal cells / (larger height x larger width). All offsets are counted at
once, as the sum over colours of the cross-correlation of "where is this colour", by real Fourier transforms.
Counts are below 901, far inside what float32 rounds to the right integer. `bench/pixel_similarity.py`
compares this with the loop over offsets; listing the equal pairs of rare colours instead was no faster.
"""

import numpy as np

from arcnb.arc.grids import N_COLORS, Grid

# scipy transforms four float32 rows at a time and the rest of a batch one by one; a colour takes two rows, so
# an odd number of colours is faster with one more that does not occur.
_NO_COLOR = np.uint8(255)


def pixel_similarity(a: Grid, b: Grid) -> float:
    """Similarity of two grids, symmetric, in [0, 1]."""
    a, b = np.asarray(a, np.uint8), np.asarray(b, np.uint8)
    if a.shape == b.shape:
        return int(np.count_nonzero(a == b)) / a.size
    return _most_equal_cells(a, b) / (max(a.shape[0], b.shape[0]) * max(a.shape[1], b.shape[1]))


def _most_equal_cells(a: Grid, b: Grid) -> int:
    """The largest number of equal cells over all offsets of `b` against `a`."""
    shared = _present(a) & _present(b)
    if not shared.any():
        return 0
    from scipy import fft

    colors = np.flatnonzero(shared).astype(np.uint8)
    if len(colors) % 2:
        colors = np.append(colors, _NO_COLOR)
    n = len(colors)
    # Rows are padded to the widest overlap and laid end to end: the two-dimensional correlation becomes a
    # one-dimensional one, whose transform is faster than the two-dimensional one.
    width = a.shape[1] + b.shape[1] - 1
    length = fft.next_fast_len((a.shape[0] + b.shape[0] - 1) * width, real=True)
    masks = np.zeros((2 * n, length), np.float32)
    for part, grid in ((masks[:n], a), (masks[n:], b[::-1, ::-1])):
        rows = part[:, : grid.shape[0] * width].reshape(n, grid.shape[0], width)
        rows[:, :, : grid.shape[1]] = grid == colors[:, None, None]
    spectra, others = np.split(fft.rfft(masks), 2)
    spectra *= others
    return round(float(fft.irfft(spectra.sum(axis=0), length).max()))


def _present(grid: Grid) -> np.ndarray:
    return np.bincount(grid.ravel(), minlength=N_COLORS) > 0
