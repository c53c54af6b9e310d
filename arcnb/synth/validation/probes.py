"""What a program does on a fixed set of grids: a key that finds different programs which act alike."""

import hashlib
from functools import cache

import numpy as np

from arcnb.arc.grids import Grid, as_grid
from arcnb.arc.seeds import rng as seeded_rng
from arcnb.programs.executor.executor import Execution, Job, Limits
from arcnb.synth import inputs

N_PROBES = 6

# A probe on which the program fails, or whose output is too large, counts as the output [[0]].
_GUARD = """

_unguarded = transform

def transform(grid):
    try:
        result = np.asarray(_unguarded(grid))
        return result if max(result.shape) <= 30 else [[0]]
    except Exception:
        return [[0]]
"""


def behaviour_job(program: str, limits: Limits) -> Job:
    """The job whose answer `behaviour` reads."""
    return Job(f"{program}{_GUARD}", probe_grids(), limits)


def behaviour(execution: Execution) -> str | None:
    """A key of the outputs on the probes, or None when the program could not be run on them."""
    if execution.outputs is None:
        return None
    digest = hashlib.sha256()
    for grid in execution.outputs:
        digest.update(b"%dx%d" % grid.shape + grid.tobytes())
    return digest.hexdigest()[:24]


@cache
def probe_grids() -> tuple[Grid, ...]:
    """Small grids of many kinds that between them hold every color; always the same."""
    rng = seeded_rng(0, "probes")
    kinds = (
        lambda: inputs.noise(rng, density=0.5, low=6, high=9),
        lambda: inputs.objects(rng, (3, 6), side=5, low=10, high=12),
        lambda: inputs.blocks(rng, (3, 6), low=9, high=11),
        lambda: inputs.pixels(rng, (5, 9), low=7, high=9),
        lambda: inputs.dense(rng, low=3, high=5),
        lambda: inputs.frames(rng, (2, 3), low=10, high=12),
    )
    return tuple(as_grid(np.asarray(kinds[i % len(kinds)]())) for i in range(N_PROBES))
