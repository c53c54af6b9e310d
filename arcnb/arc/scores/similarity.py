"""How right one prediction is: the six scores of its outputs, from the pixel similarity of two grids.

Grids of one shape are compared cell by cell. Otherwise one grid slides over the other and the offset with
the most equal cells counts: score = equal cells / (larger height x larger width). All offsets are counted at
once, as the sum over colours of the cross-correlation of "where is this colour", by real Fourier transforms.
Counts are below 901, far inside what float32 rounds to the right integer. The tests compare this with the
loop over offsets; listing the equal pairs of rare colours instead was no faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arcnb.arc.grids import N_COLORS, Grid
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError

# scipy transforms four float32 rows at a time and the rest of a batch one by one; a colour takes two rows, so
# an odd number of colours is faster with one more that does not occur.
_NO_COLOR = np.uint8(255)


def score(outputs: Sequence[Grid | None] | None, task: Task) -> dict[str, float | int | None]:
    """The six scores of one prediction: train_ and test_ pixel_score, correct_grids, is_correct.

    outputs: grids in the original frame, train then test, None for one that is missing; or None when the
    program gave no valid outputs, which scores 0. Scores of a partition whose expected outputs are unknown
    are None. A wrong number of outputs raises `ArcnbError`: it is no answer to this task.
    """
    expected = [pair.output for pair in (*task.train, *task.test)]
    outputs = [None] * len(expected) if outputs is None else list(outputs)
    if len(outputs) != len(expected):
        raise ArcnbError(f"task {task.task_id}: {len(outputs)} outputs for {len(expected)} inputs")
    n_train = len(task.train)
    return {
        **_partition("train", outputs[:n_train], expected[:n_train]),
        **_partition("test", outputs[n_train:], expected[n_train:]),
    }


def _partition(part: str, outputs: list[Grid | None], expected: list[Grid | None]) -> dict:
    names = (f"{part}_pixel_score", f"{part}_correct_grids", f"{part}_is_correct")
    if any(grid is None for grid in expected):
        return dict.fromkeys(names)
    pairs = zip(outputs, expected, strict=True)
    similar = [0.0 if output is None else pixel_similarity(output, grid) for output, grid in pairs]
    right = [similarity == 1 for similarity in similar]
    values = (sum(similar) / len(similar), sum(right) / len(right), int(all(right)))
    return dict(zip(names, values, strict=True))


def pixel_similarity(a: Grid, b: Grid) -> float:
    """How alike two grids are, symmetric, in [0, 1]; 1.0 only of equal grids."""
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
