"""What `bench/executor.py` compares: an unprotected reference, our executor, and the programs both run.

The reference does what research code usually does: long-lived worker processes, one pickled task a program,
`exec` in the worker's own interpreter under an alarm, answers pickled back. It is written here for comparison
only; nothing in it keeps a program from anything. "bare" is the same without tasks: a worker loops over its
share of the programs and returns counts, which is as fast as Python runs them.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import resource
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job, Limits

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "programs" / "attacks"))
from honest_programs import PROGRAMS

SMALL = """
import numpy as np
from typing import List, Tuple

def transform(grid):
    out = grid.copy()
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            if grid[i, j] == {color}:
                out[i, j] = 5
    return out
"""
# What programs do that harm others where nothing keeps them from it: lines of a `transform`.
HOSTILE = {
    "endless loop": "while True: pass",
    "endless in C": "max(itertools.repeat(1))",
    "endless sleep": "time.sleep(1e6)",
    "closed pipe, endless": "os.close(3)\n    while True: pass",
    "closed pipe, sleep": "os.close(3)\n    time.sleep(1e6)",
    "trickle": "while True: os.write(3, b'x'), time.sleep(0.001)",
    "flood": "while True: os.write(3, bytes(1 << 16))",
    "8 GB at once": "np.ones(1 << 30)",
    "memory, bit by bit": "kept = []\n    while True: kept.append(bytearray(b'x') * (1 << 20))",
    "memory errors caught": "while True:\n        try: np.ones(1 << 30)\n        except MemoryError: pass",
    "forks": "while True:\n        try: os.fork()\n        except OSError: pass",
    "deep recursion": "sys.setrecursionlimit(10**9)\n    f = lambda: f()\n    f()",
    "segmentation fault": "ctypes.string_at(0)",
    "exit": "os._exit(0)",
    "long error": "raise ValueError('x' * (1 << 26))",
}
HOSTILE_HEAD = "import ctypes, itertools, os, sys, time\nimport numpy as np\ndef transform(grid):\n    "
ONE_SECOND = Limits(seconds=1.0, seconds_per_input=1.0, memory_mb=2048)
A_QUARTER = Limits(seconds=0.25, seconds_per_input=0.25)


# ---------------------------------------------------------------- the unprotected reference


class _Alarm(Exception):
    pass


def _ring(*_: object) -> None:
    raise _Alarm


def _start_worker() -> None:
    """Once a worker: the alarm, a soft memory limit, and what programs import already loaded."""
    import warnings

    import scipy.ndimage  # noqa: F401

    from arcnb.programs.libraries import barc

    sys.modules["common"] = barc
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _ring)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))


def reference_run(task: tuple[str, tuple, float]) -> list[np.ndarray] | str:
    """One program in this very process: strip prints, exec, call on copies, check; or the error's name."""
    program, grids, seconds = task
    kept = [
        line for line in program.split("\n") if "print(" not in line and "from common import *" not in line
    ]
    source = (
        "from typing import List, Tuple\nimport numpy as np\nimport numpy\nfrom common import *\n"
        + "\n".join(kept)
    )
    if "except:" in source or "random" in "\n".join(kept) or "time." in source:
        return "UnsafeCode"
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            namespace: dict = {}
            exec(source, namespace)
            outputs = [namespace["transform"](grid.copy()) for grid in grids]
        outputs = [np.array(output, dtype=int) for output in outputs]
        for output in outputs:
            if output.ndim != 2 or max(output.shape) > 30 or output.min() < 0 or output.max() > 9:
                return "ValueError"
        return outputs
    except BaseException as error:
        return type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def bare_run(tasks: list[tuple]) -> int:
    return sum(isinstance(reference_run(task), list) for task in tasks)


class Reference:
    """A pool of unprotected workers; ``chunk`` tasks travel together when ``bare``."""

    def __init__(self, workers: int, bare: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.workers, self.bare = workers, bare
        self.pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)

    def __call__(self, jobs: list[Job]) -> int:
        tasks = [
            (
                job.program,
                tuple(g.astype(np.int64) for g in job.inputs),
                job.limits.seconds if job.limits else 1.0,
            )
            for job in jobs
        ]
        if self.bare:
            return sum(self.pool.map(bare_run, [tasks[n :: self.workers] for n in range(self.workers)]))
        return sum(isinstance(outputs, list) for outputs in self.pool.map(reference_run, tasks))

    def close(self) -> None:
        self.pool.shutdown()


class Protected:
    """Our executor, used as any caller would.

    Of the last call, ``arrivals`` are when the honest results came, ``caller_ms`` this process's own
    processor time a program, which no number of workers makes less.
    """

    def __init__(self, workers: int, shared: bool = False) -> None:
        self.executor = Executor(workers=workers, shared=shared)
        self.arrivals: list[float] = []
        self.caller_ms = 0.0

    def __call__(self, jobs: list[Job]) -> int:
        start, cpu, ok = time.perf_counter(), time.process_time(), 0
        self.arrivals = []
        for execution in self.executor.run(jobs, ordered=False):
            ok += execution.status == "ok"
            if execution.key == "honest":
                self.arrivals.append(time.perf_counter() - start)
        self.caller_ms = (time.process_time() - cpu) / len(jobs) * 1e3
        return ok

    def close(self) -> None:
        self.executor.close()


# ---------------------------------------------------------------- workloads


def grids(seed: int, sides: int | None, n: int = 4) -> tuple[np.ndarray, ...]:
    """Four grids, ``sides`` a side or of ARC's sizes."""
    rng = np.random.default_rng(seed)
    shapes = [(sides, sides) if sides else tuple(rng.integers(3, 22, 2)) for _ in range(n)]
    return tuple(rng.integers(0, 10, shape).astype(np.uint8) for shape in shapes)


def small(n: int, salt: int, limits: Limits | None = None) -> list[Job]:
    """Small honest programs on 10x10 grids, all different, so that none is answered from memory."""
    inputs = grids(1, 10)
    return [
        Job(SMALL.format(color=i % 10) + f"# {salt} {i}\n", inputs, limits, key="honest") for i in range(n)
    ]


def spoilt(n: int, salt: int, kind: str, share: float, limits: Limits = ONE_SECOND) -> list[Job]:
    """Small programs, a share of them hostile in the way of ``HOSTILE[kind]``."""
    jobs = small(n, salt, limits)
    for i in np.random.default_rng(salt).permutation(n)[: round(share * n)]:
        source = f"{HOSTILE_HEAD}{HOSTILE[kind]}\n    return grid\n# {salt} {i}\n"
        jobs[i] = Job(source, jobs[i].inputs, limits, key=kind)
    return jobs


# What the unprotected reference loses: a bare except, a harmless word, a print that was a block's only line.
# A seventh of the mix, as was found among programs that models wrote.
_LOST = """bare_except future_import dataclass_with_future seeded_random seeded_numpy_random default_generator
    words_that_look_dangerous prints_in_branches times_itself"""
# What both can run and models write now and then: 3% of the mix.
_UNUSUAL = """dataclass class_with_state inheritance enum typing_namedtuple exceptions_of_its_own type_of
    string_formatting numpy_object_array numpy_tour swallows_base_exception harmless_os_and_sys
    scipy_signal"""
# Not one in a hundred: left out.
_RARE = """scipy_spatial scipy_mode unused_imports memory_for_a_moment masked_and_matrix callable_object
    async_function context_manager main_guard common_shared_lists"""


LOST, UNUSUAL, RARE = (names.split() for names in (_LOST, _UNUSUAL, _RARE))


def realistic(n: int, salt: int) -> list[Job]:
    """Honest programs of the kinds that models write, on grids of ARC's sizes."""
    ordinary = sorted(set(PROGRAMS) - {*LOST, *UNUSUAL, *RARE})
    cycle = [LOST, ordinary, ordinary, ordinary, ordinary, ordinary, ordinary] * 5
    cycle[1] = UNUSUAL
    kinds = [cycle[i % len(cycle)] for i in range(n)]
    names = [
        kind[i // 7 % len(kind)] if kind is not ordinary else kind[i % len(kind)]
        for i, kind in enumerate(kinds)
    ]
    order = np.random.default_rng(salt).permutation(n)
    return [
        Job(PROGRAMS[names[i]] + f"\n# {salt} {i}\n", grids(int(i) % 97, None), key="honest") for i in order
    ]
