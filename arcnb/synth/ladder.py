"""Toy tasks with a known ladder of difficulty: the same step, taken once more on every rung.

    ladder_task("lines", 4, seed=0)     # 4 vertical lines, each in its own column and color
    ladder_tasks("squares", 3)          # rungs 1 to 3: one square, 2 x 2 squares, 3 x 3 squares

A rung's program is a chain of equal steps with constants of its own, and each further step has to be guessed
right along with all others: the chance of a whole program by sampling alone falls geometrically from rung to
rung. A learner that takes what a wrong program drew for its answer sees each constant written down, so it
can climb. That is what the ladder is for: to show learning where sampling has nothing left to find.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from arcnb.arc.grids import as_grid
from arcnb.arc.seeds import rng as seeded_rng
from arcnb.arc.tasks.task import Pair, Task
from arcnb.errors import ArcnbError
from arcnb.synth import inputs
from arcnb.synth.inputs import Rng, integer
from arcnb.synth.rules import compiled, program

N_TRAIN = 3
PIXELS = (2, 5)  # pixels in an input: outputs of a task differ, so that it is not a constant


def _lines(n: int, rng: Rng) -> tuple[list[str], int, int]:
    """n vertical lines: the steps, and the smallest height and width of an input."""
    width = 2 * n + 2
    columns = sorted((2 * rng.permutation(n + 1)[:n] + integer(rng, 0, 1)).tolist())
    colors = _colors(rng, n)
    steps = [f"draw_vertical_line(grid, {c}, {k})" for c, k in zip(columns, colors, strict=True)]
    return steps, 4, width


def _squares(n: int, rng: Rng) -> tuple[list[str], int, int]:
    """n x n squares of one size, each in a color of its own as far as nine colors reach."""
    side, top, left = integer(rng, 2, 3), integer(rng, 0, 1), integer(rng, 0, 1)
    pitch = side + 1
    places = [(top + pitch * row, left + pitch * column) for row in range(n) for column in range(n)]
    colors = _colors(rng, n * n)
    steps = [
        f"draw_rectangle(grid, {row}, {column}, {side}, {side}, {k})"
        for (row, column), k in zip(places, colors, strict=True)
    ]
    return steps, top + pitch * n, left + pitch * n


def _colors(rng: Rng, n: int) -> list[int]:
    """n foreground colors, none twice before all were there."""
    drawn: list[int] = []
    while len(drawn) < n:
        drawn += inputs.colors(rng, 9)
    return drawn[:n]


# name -> (steps of a rung, highest rung whose grids fit). A new ladder is one function and one line.
LADDERS: dict[str, tuple[Callable[[int, Rng], tuple[list[str], int, int]], int]] = {
    "lines": (_lines, 9),
    "squares": (_squares, 5),
}


def ladder_task(ladder: str, rung: int, seed: int = 0) -> Task:
    """The task on one rung, counted from 1: a function of (ladder, rung, seed), with its program."""
    steps_of, highest = _ladder(ladder)
    if not 1 <= rung <= highest:
        raise ArcnbError(f"ladder {ladder} has rungs 1 to {highest}, not {rung}")
    rng = seeded_rng(seed, "ladder", ladder, rung)
    steps, height, width = steps_of(rung, rng)
    text = program(*(f"grid = {step}" for step in steps), "return grid")
    transform = compiled(text)
    pairs = [_pair(transform, rng, height, width) for _ in range(N_TRAIN + 1)]
    return Task(
        f"ladder_{ladder}_{rung}_{seed}",
        tuple(pairs[:-1]),
        tuple(pairs[-1:]),
        source="ladder",
        program=text,
        meta={"ladder": ladder, "rung": rung, "steps": len(steps), "seed": seed},
    )


def ladder_tasks(ladder: str, highest: int = 0, seed: int = 0) -> list[Task]:
    """Rungs 1 to `highest` of a ladder, lowest first; 0 takes all."""
    return [ladder_task(ladder, rung, seed) for rung in range(1, (highest or _ladder(ladder)[1]) + 1)]


def _ladder(name: str) -> tuple[Callable[[int, Rng], tuple[list[str], int, int]], int]:
    if name not in LADDERS:
        raise ArcnbError(f"no ladder {name!r}; there are {', '.join(LADDERS)}")
    return LADDERS[name]


def _pair(transform: Callable, rng: Rng, height: int, width: int) -> Pair:
    """A dark grid with some pixels, at least `height` x `width`, and what the steps draw over it."""
    grid = np.zeros((height + integer(rng, 1, 3), width + integer(rng, 0, 2)), dtype=np.int64)
    for _ in range(integer(rng, *PIXELS)):
        grid[integer(rng, 0, grid.shape[0] - 1), integer(rng, 0, grid.shape[1] - 1)] = integer(rng, 1, 9)
    return Pair(as_grid(grid), as_grid(transform(grid.copy())))
