"""Which tasks repeat an accepted one: the same program, or another program that does the same.

Two programs act alike when they give the same outputs on a fixed set of grids, the probes. Probes may not
tell two programs apart that differ on their own inputs, so an accepted program that acts alike is run on a
task before that task is called a duplicate.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from arcnb.arc.grids import Grid, as_grid
from arcnb.arc.seeds import rng as seeded_rng
from arcnb.arc.tasks.task import Task
from arcnb.programs.executor.executor import Execution, Executor, Job, Limits
from arcnb.synth import inputs
from arcnb.synth.validation.reduction import normal_form

MAX_ALIKE = 4  # programs kept for each behaviour on the probes

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


class Duplicates:
    """Programs and behaviours accepted so far."""

    def __init__(self, max_per_program: int):
        self._max_per_program = max_per_program
        self._programs: Counter[bytes] = Counter()
        self._full: set[bytes] = set()
        self._behaviours: dict[str, list[str]] = {}

    def is_full(self, program: str) -> bool:
        """Whether the program has as many tasks as it may have."""
        return self.is_known_full(program) or self._is_full(_digest(program), program)

    def is_known_full(self, program: str) -> bool:
        """Whether `is_full` can be said without reading the program: this very text was full before."""
        return _hash(program) in self._full

    def reasons(
        self, judged: Iterable[tuple[Task, str | None]], executor: Executor, limits: Limits
    ) -> list[str | None]:
        """For each (task, behaviour) why it is a duplicate, or None and it counts as accepted, one by one.

        A program run alone costs the sandbox a process, so comparisons are run together: first all with
        what was accepted before. Where one of the tasks is accepted and others of its behaviour follow, those
        wait for the next round and are compared with it too; `MAX_ALIKE` bounds the rounds.
        """
        candidates = [_Candidate(task, behaviour, _digest(task.program)) for task, behaviour in judged]
        waiting = candidates
        while waiting:
            self._compare(waiting, executor, limits)
            grown: set[str] = set()
            later = []
            for one in waiting:
                if one.behaviour in grown:
                    later.append(one)
                else:
                    one.reason = self._settle(one, grown)
            waiting = later
        return [one.reason for one in candidates]

    def _compare(self, waiting: list["_Candidate"], executor: Executor, limits: Limits) -> None:
        """Run, on each task, the programs that act alike and have not been run on it."""
        trials = []
        for one in waiting:
            if self._programs[one.digest] == 0:
                alike = self._behaviours.get(one.behaviour, [])
                trials += [(one, program) for program in alike[one.compared :]]
                one.compared = len(alike)
        jobs = [replace(one.task, program=program) for one, program in trials]
        for (one, _), outputs in zip(trials, outputs_of(jobs, executor, limits), strict=True):
            if outputs is not None and same_outputs(outputs, recorded_outputs(one.task)):
                one.is_solved = True

    def _settle(self, one: "_Candidate", grown: set[str]) -> str | None:
        """The reason against a task that was compared with all it must be, or None and it is recorded."""
        if self._is_full(one.digest, one.task.program):
            return "duplicate program"
        if self._programs[one.digest] == 0 and one.behaviour is not None:
            if one.is_solved:
                return "duplicate behaviour"
            alike = self._behaviours.setdefault(one.behaviour, [])
            if len(alike) < MAX_ALIKE:
                alike.append(one.task.program)
                grown.add(one.behaviour)
        self._programs[one.digest] += 1
        self._is_full(one.digest, one.task.program)
        return None

    def _is_full(self, digest: bytes, program: str) -> bool:
        full = self._programs[digest] >= self._max_per_program
        if full:
            self._full.add(_hash(program))
        return full


@dataclass(eq=False)
class _Candidate:
    """compared: with how many of the programs that act alike. is_solved: whether one did the same on it."""

    task: Task
    behaviour: str | None
    digest: bytes
    compared: int = 0
    is_solved: bool = False
    reason: str | None = None


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
    return tuple(as_grid(kind()) for kind in kinds)


def outputs_of(tasks: list[Task], executor: Executor, limits: Limits) -> list[tuple[Grid, ...] | None]:
    """What each task's program makes of its inputs; None where it fails."""
    jobs = (Job(task.program, tuple(task.inputs), limits) for task in tasks)
    return [execution.outputs for execution in executor.run(jobs)]


def recorded_outputs(task: Task) -> tuple[Grid | None, ...]:
    """The outputs of the train pairs, then of the test pairs; None where one is unknown."""
    return tuple(pair.output for pair in (*task.train, *task.test))


def same_outputs(a: tuple[Grid, ...], b: tuple[Grid, ...]) -> bool:
    """Whether all grids are equal, pair by pair."""
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def _digest(program: str) -> bytes:
    return _hash(normal_form(program))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]
