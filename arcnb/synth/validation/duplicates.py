"""Which tasks repeat an accepted one: the same program, or another program that does the same.

Two programs act alike when they give the same outputs on a fixed set of grids, the probes. Probes may not
tell two programs apart that differ on their own inputs, so an accepted program that acts alike is run on a
task before that task is called a duplicate.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from arcnb.arc.grids import Grid, as_grid, same_grids
from arcnb.arc.predictions.normal_form import normal_form
from arcnb.arc.predictions.prediction import output_fingerprint
from arcnb.arc.seeds import rng as seeded_rng
from arcnb.arc.tasks.task import Task
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Execution, Job, Limits
from arcnb.synth import inputs

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

    def __init__(self):
        self._programs: set[bytes] = set()
        self._texts: set[bytes] = set()
        self._behaviours: dict[str, list[str]] = {}

    def has(self, program: str) -> bool:
        """Whether the program was accepted, in whatever layout."""
        return self.has_text(program) or self._has(_digest(program), program)

    def has_text(self, program: str) -> bool:
        """Whether that can be said without reading the program: this very text was found accepted before."""
        return _hash(program) in self._texts

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
            if one.digest not in self._programs:
                alike = self._behaviours.get(one.behaviour, [])
                trials += [(one, program) for program in alike[one.compared :]]
                one.compared = len(alike)
        jobs = (Job(program, tuple(one.task.inputs), limits) for one, program in trials)
        for (one, _), execution in zip(trials, executor.run(jobs), strict=True):
            outputs = execution.outputs
            if outputs is not None and same_grids(outputs, recorded_outputs(one.task)):
                one.is_solved = True

    def _settle(self, one: "_Candidate", grown: set[str]) -> str | None:
        """The reason against a task that was compared with all it must be, or None and it is recorded."""
        if self._has(one.digest, one.task.program):
            return "duplicate program"
        if one.behaviour is not None:
            if one.is_solved:
                return "duplicate behaviour"
            alike = self._behaviours.setdefault(one.behaviour, [])
            if len(alike) < MAX_ALIKE:
                alike.append(one.task.program)
                grown.add(one.behaviour)
        self._programs.add(one.digest)
        self._texts.add(_hash(one.task.program))
        return None

    def _has(self, digest: bytes, program: str) -> bool:
        found = digest in self._programs
        if found:
            self._texts.add(_hash(program))
        return found


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
    return None if execution.outputs is None else output_fingerprint(execution.outputs)


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


def recorded_outputs(task: Task) -> tuple[Grid, ...]:
    """The outputs of the train pairs, then of the test pairs."""
    return tuple(pair.output for pair in (*task.train, *task.test))


def _digest(program: str) -> bytes:
    return _hash(normal_form(program))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]
