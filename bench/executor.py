"""How fast untrusted programs run: the protected executor beside an unprotected reference, in one run.

    python bench/executor.py                            # 2 workers, every table, a few minutes
    python bench/executor.py --workers 1,2,4,8,16       # and how the protected executor grows with workers
    python bench/executor.py --tables small --scale 0.2 # a quick look

The reference does what research code usually does: long-lived worker processes, one pickled task a program,
`exec` in the worker's own interpreter under an alarm, answers pickled back. It is written here for comparison
only; nothing in it keeps a program from anything. "bare" is the same without tasks: a worker loops over its
share of the programs and returns counts, which is as fast as Python runs them.

Rounds of the rivals alternate, so that a busy machine slows all of them; a row shows the median round, and
"ms cpu" the processor time of the whole process tree per program, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from arcnb.programs.executor import Executor, Job, Limits

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "programs"))
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
ENDLESS = "def transform(grid):\n    n = 0\n    while True:\n        n += 1\n"
BOMB = "import numpy as np\ndef transform(grid):\n    return np.ones(1 << 30)[: grid.shape[0]]\n"
ONE_SECOND = Limits(seconds=1.0, seconds_per_input=1.0, memory_mb=2048)


# ---------------------------------------------------------------- the unprotected reference


class _Alarm(Exception):
    pass


def _ring(*_: object) -> None:
    raise _Alarm


def _start_worker() -> None:
    """Once a worker: the alarm, a soft memory limit, and what programs import already loaded."""
    import warnings

    import scipy.ndimage  # noqa: F401

    from arcnb.programs import barc

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
    """Our executor, used as any caller would."""

    def __init__(self, workers: int, adaptive: bool = False) -> None:
        self.executor = Executor(workers=workers, adaptive=adaptive)

    def __call__(self, jobs: list[Job]) -> int:
        return sum(execution.status == "ok" for execution in self.executor.run(jobs))

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


def alone(n: int, salt: int) -> list[Job]:
    """The same programs, which a class definition keeps out of batches: one process each."""
    return [Job("class Own:\n    pass\n" + job.program, job.inputs) for job in small(n, salt)]


def spoilt(n: int, salt: int, endless: float = 0.0, bombs: float = 0.0) -> list[Job]:
    """Small programs under a limit of 1 s, with a share of endless loops and of 8 GB allocations."""
    jobs = small(n, salt, ONE_SECOND)
    order = np.random.default_rng(salt).permutation(n)
    for kind, source, first, share in (("endless", ENDLESS, 0, endless), ("bomb", BOMB, endless, bombs)):
        for i in order[round(first * n) : round((first + share) * n)]:
            jobs[i] = Job(source + f"# {salt} {i}\n", jobs[i].inputs, ONE_SECOND, key=kind)
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


# ---------------------------------------------------------------- measuring


def tree_seconds() -> float:
    """Processor seconds that this process and everything below it have used so far."""
    times = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                times[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    ours = {os.getpid()}
    while more := {pid for pid, (parent, _) in times.items() if parent in ours} - ours:
        ours |= more
    return sum(times[pid][1] for pid in ours if pid in times) / os.sysconf("SC_CLK_TCK")


def measure(
    rivals: dict[str, Callable], workload: Callable[[int, int], list[Job]], n: int, rounds: int
) -> list:
    """Rows (rival, programs/s, ms cpu/program, ok, of), the rivals' rounds alternating."""
    results: dict[str, list] = {name: [] for name in rivals}
    for number in range(rounds):
        for name, run in rivals.items():
            jobs = workload(n, 1000 * number + len(name))
            cpu, start = tree_seconds(), time.perf_counter()
            ok = run(jobs)
            wall = time.perf_counter() - start
            results[name].append((n / wall, (tree_seconds() - cpu) / n * 1e3, ok))
    return [
        (name, *(statistics.median(column) for column in zip(*rows, strict=True)), n)
        for name, rows in results.items()
    ]


def show(title: str, rows: list) -> None:
    print(f"\n{title}\n{'':22}{'programs/s':>12}{'ratio':>8}{'ms cpu':>9}{'ok':>8}{'of':>8}")
    for name, rate, cpu, ok, n in rows:
        print(f"{name:22}{rate:12,.0f}{rate / rows[0][1]:8.2f}{cpu:9.2f}{ok:8,.0f}{n:8,}", flush=True)


def arrivals(executor: Executor, jobs: list[Job]) -> None:
    """How soon the honest results are there although slow programs are among them."""
    start, honest = time.perf_counter(), []
    for execution in executor.run(jobs, ordered=False):
        if execution.key == "honest":
            honest.append(time.perf_counter() - start)
    total = time.perf_counter() - start
    by = [np.quantile(honest, q) for q in (0.5, 0.9, 0.99, 1.0)]
    within = np.mean(np.array(honest) <= 3.0)
    print(
        f"honest results: 50% after {by[0]:.2f} s, 90% {by[1]:.2f} s, 99% {by[2]:.2f} s, all {by[3]:.2f} s; "
        f"{within:.1%} within 3 s; everything after {total:.1f} s"
    )


def endurance(executor: Executor, n: int) -> None:
    """Many programs in a row; descriptors, processes and memory before and after."""

    def state() -> tuple[int, int, float]:
        pids = [os.getpid(), *(server.process.pid for server in executor._service._servers)]
        descriptors = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        resident = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        return len(pids), descriptors, resident * os.sysconf("SC_PAGE_SIZE") / 2**20

    sum(1 for _ in executor.run(small(8192, 4242)))  # fill what is remembered
    time.sleep(0.5)
    before, start = state(), time.perf_counter()
    for number in range(0, n, 10_000):
        sum(1 for _ in executor.run(small(10_000, 5000 + number)))
    seconds = time.perf_counter() - start
    time.sleep(0.5)
    print(f"\n{n:,} programs in a row, {n / seconds:,.0f}/s: processes, descriptors, MB resident")
    for when, (processes, descriptors, resident) in (("before", before), ("after", state())):
        print(f"{when:8}{processes:6}{descriptors:6}{resident:10.1f}")


def service_memory(executor: Executor) -> str:
    """Proportional memory of the servers now, shared pages counted once, and their number."""
    total = count = 0
    for server in executor._service._servers:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{server.process.pid}/smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
            count += 1
    return f"{total / 1024:.0f} MB in {count} servers (shared pages counted once)"


# ---------------------------------------------------------------- tables


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers", default="2", help="workers; a list such as 1,2,4 adds the table of scaling"
    )
    parser.add_argument(
        "--tables", default="small,alone,realistic,spoilt,bombs,endurance,scaling", help="which tables"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the programs in each table")
    arguments = parser.parse_args()
    counts = [int(number) for number in arguments.workers.split(",")]
    workers, rounds, tables = (
        counts[-1] if len(counts) == 1 else 2,
        arguments.rounds,
        arguments.tables.split(","),
    )

    def size(n: int) -> int:
        return max(100, round(n * arguments.scale))

    print(f"{os.cpu_count()} processors, {workers} workers, Python {sys.version.split()[0]}")
    ours, theirs, bare = Protected(workers), Reference(workers), Reference(workers, bare=True)
    rivals = {"reference": theirs, "bare": bare, "protected": ours}
    try:
        for run in rivals.values():  # start the processes before the clock
            run(small(200, 999) + realistic(400, 999))
        if "small" in tables:
            show("small honest programs, batches", measure(rivals, small, size(4000), rounds))
        if "alone" in tables:
            show("small honest programs, one process each", measure(rivals, alone, size(1500), rounds))
        if "realistic" in tables:
            show("realistic honest programs", measure(rivals, realistic, size(1850), rounds))
        two = {"reference": theirs, "protected": ours}
        if "spoilt" in tables:
            n = size(2000)
            rows = measure(two, lambda n, salt: spoilt(n, salt, endless=0.02), n, 1)
            show(f"2% endless loops, limit 1 s (bound: {workers / 0.02:.0f} a second)", rows)
            arrivals(ours.executor, spoilt(n, 77, endless=0.02))
            adaptive = Protected(workers, adaptive=True)
            adaptive(small(1500, 78))  # what it learns from
            show(
                "the same with an adaptive limit",
                measure({"protected": adaptive}, lambda n, salt: spoilt(n, salt, endless=0.02), n, 1),
            )
            adaptive.close()
        if "bombs" in tables:
            n = size(2000)
            show("1% allocate 8 GB", measure(two, lambda n, salt: spoilt(n, salt, bombs=0.01), n, rounds))
            show("2% endless, 1% 8 GB", measure(two, lambda n, salt: spoilt(n, salt, 0.02, 0.01), n, 1))
        if "endurance" in tables:
            endurance(ours.executor, size(100_000))
        print(f"\nservice: {service_memory(ours.executor)}")
    finally:
        for run in rivals.values():
            run.close()
    if "scaling" in tables and len(counts) > 1:
        scaling(counts, rounds, size)


def scaling(counts: list[int], rounds: int, size: Callable[[int], int]) -> None:
    """Programs a second against workers; efficiency is the rate per worker relative to the first row."""
    for title, workload, n in (("small", small, 3000), ("alone", alone, 500), ("realistic", realistic, 900)):
        print(f"\nscaling, {title}\n{'workers':>10}{'programs/s':>12}{'per worker':>12}{'efficiency':>12}")
        first = None
        for workers in counts:
            run = Protected(workers)
            run(workload(size(n) * workers, 999))
            total = size(n) * workers
            ((_, rate, _, _, _),) = measure({"protected": run}, workload, total, rounds)
            run.close()
            first = first or rate / workers
            print(
                f"{workers:10}{rate:12,.0f}{rate / workers:12,.0f}{rate / workers / first:12.0%}", flush=True
            )


if __name__ == "__main__":
    main()
