"""New programs on old scenes: chains of the composer on inputs of the trainable RE-ARC tasks.

The composer's own inputs are a few kinds of scenes; RE-ARC draws the inputs of 320 different tasks. One task
takes all its inputs from one of them. RE-ARC changes colors from example to example, so they are made to
agree: the most frequent color of an input becomes 0, the next ones the rule's colors in order.
"""

import numpy as np

from arcnb.synth import inputs
from arcnb.synth.generators.composed import chain
from arcnb.synth.inputs import Rng, integer, pick
from arcnb.synth.rearc.tasks import rearc_input
from arcnb.synth.rules import NoExample, Rule, generator
from arcnb.synth.splits import training_split

MAX_SIDE = 16  # of an input; outputs may be larger
TRIES = 20  # draws of an input until it has two colors and fits


@generator
def composed_on_scenes(rng: Rng) -> Rule:
    """One to four steps on inputs of one RE-ARC task."""
    task_id = pick(rng, training_split().trainable)
    difficulty = 0.1 + 0.4 * rng.random()
    colors = [int(color) for color in rng.permutation(inputs.FOREGROUND)]
    scene = _scene(rng, task_id, difficulty, colors)
    seen = colors[: max(2, len(np.unique(scene)) - 1)]  # colors go by rank, so the first ones occur most
    return Rule(chain(rng, seen, integer(rng, 1, 4)), lambda rng: _scene(rng, task_id, difficulty, colors))


def _scene(rng: Rng, task_id: str, difficulty: float, colors: list[int]) -> np.ndarray:
    """An input with at least two colors; NoExample when none came."""
    for _ in range(TRIES):
        try:
            grid = rearc_input(task_id, int(rng.integers(2**31)), difficulty, MAX_SIDE)
        except NoExample:
            continue
        found, counts = np.unique(grid, return_counts=True)
        if len(found) > 1:
            mapping = np.zeros(10, dtype=np.uint8)
            mapping[found[np.argsort(-counts, kind="stable")]] = [0, *colors][: len(found)]
            return mapping[grid]
    raise NoExample(f"RE-ARC task {task_id} has no scene of two colors and at most {MAX_SIDE} a side")
