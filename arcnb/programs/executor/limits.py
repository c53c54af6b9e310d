"""What a program may use, what is asked of the executor, and what it answers.

``Limits`` bound one program, a ``Job`` is one program with its inputs, an ``Execution`` is the verdict.
All three are frozen, so that any thread may have them. Limits are compared by value; a job and an execution,
which hold arrays, are equal to themselves alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from arcnb.errors import ArcnbError

Grid = np.ndarray

STATUSES = (
    "ok",  # every input has one valid output
    "no_code",  # there was no program to run
    "unsafe",  # it died of trying something the sandbox forbids (a file, a process, the network)
    "syntax",  # it does not compile
    "error",  # it raised, or does not define the entry function
    "timeout",  # an input or the whole program ran out of time
    "memory",  # it ran out of memory
    "output_limit",  # it wrote more than a result may hold
    "invalid_output",  # an output is no grid of 1..30 by 1..30 integers 0..9
    "nondeterministic",  # a second run, elsewhere and in another order, gave other outputs or failed
    "crashed",  # its process died or answered nonsense
)


@dataclass(frozen=True)
class Limits:
    """The bounds of one program.

    ``seconds`` is processor time for the whole program (importing, defining, all inputs),
    ``seconds_per_input`` for one call; both may be fractions. By the clock a program has three times as long,
    for it may wait for a processor on a busy machine. ``memory_mb`` is address space beyond what the warm
    interpreter holds, in MiB. ``output_mb`` bounds what one program may send back, in MiB. With
    ``check_determinism`` a program that succeeds is run again, alone, in an interpreter with another hash
    seed and other numpy and random seeds, its inputs in reverse order.

    Time is enforced by ``sandbox/time_limits.py``, memory by ``sandbox/walls.py``, output by
    ``sandbox/forks.py``.
    """

    seconds: float = 5.0
    seconds_per_input: float = 1.0
    memory_mb: int = 512
    output_mb: float = 4.0
    check_determinism: bool = False

    def __post_init__(self) -> None:
        most = dict.fromkeys(("seconds", "seconds_per_input", "memory_mb"), 10**6)
        for name, bound in (most | {"output_mb": 4096}).items():  # a message says its length in 32 bits
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < bound:
                raise ArcnbError(f"{name} must be a number above 0 and below {bound:,}, got {value!r}")
        fields = (self.seconds, self.seconds_per_input, self.memory_mb, self.output_mb)
        object.__setattr__(self, "_hash", hash((*fields, self.check_determinism)))

    @classmethod
    def by_grid(cls, seconds: float, **others: Any) -> Limits:
        """A program may take so long for one grid, and for all of them the usual time, or as long if that is
        more."""
        return cls(seconds=max(cls.seconds, seconds), seconds_per_input=seconds, **others)

    def __hash__(self) -> int:
        return self._hash  # computed once: every job is looked up by its limits several times


@dataclass(frozen=True, eq=False)
class Job:
    """One program and the grids it is called on; ``key`` is the caller's and comes back with the verdict."""

    program: str | None
    inputs: tuple[Grid, ...]
    limits: Limits | None = None
    key: object = None


@dataclass(frozen=True, eq=False)
class Execution:
    """The verdict on one job.

    ``outputs`` holds one uint8 grid an input, in order and read-only, when ``status`` is ``ok``, else None.
    ``error_line`` is a line of the program. ``seconds`` is wall time, ``cpu_seconds`` processor time,
    ``memory_mb`` the peak resident memory of the process that ran the program beyond an idle process, in
    MiB (where programs share a process, the peak of all so far).
    """

    status: str
    outputs: tuple[Grid, ...] | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_line: int | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_mb: float = 0.0
    key: object = None
