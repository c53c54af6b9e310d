"""How fast untrusted programs run: the protected executor beside an unprotected reference, in one run.

    python bench/executor.py                            # 2 workers, every table, about six minutes
    taskset -c 0,1 python bench/executor.py             # the same on two cores of a larger machine
    python bench/executor.py --workers 1,2,4,8,16       # and how the protected executor grows with workers
    python bench/executor.py --tables small --scale 0.2 # a quick look
    python bench/executor.py --json figures.json        # every figure as data too, written after each table

Needs numpy and scipy alone. `executor_rivals.py` holds the rivals and their programs. Rounds of the rivals
alternate, so that a busy machine slows all of them; a row shows the median round, and "ms cpu" and "faults"
the processor time and the page faults of the whole process tree per program,
which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # from a checkout that is not installed
from executor_rivals import A_QUARTER, HOSTILE, Protected, Reference, realistic, small, spoilt

from arcnb.machine.processes import usable_cores
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job

SALTS = itertools.count()  # no program twice in one run: its verdict would be remembered
TABLES = "small,realistic,endless,hostile,endurance,rounds,scaling"


# ---------------------------------------------------------------- figures


class Figures:
    """What was measured so far; written to ``path`` (if any) after every table."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.data: dict = {
            "processors": os.cpu_count(),
            "usable": usable_cores(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "numpy": np.__version__,
            "load_before": os.getloadavg(),
            "tables": {},
        }

    def add(self, table: str, rows: object) -> None:
        self.data["tables"][table] = rows
        if self.path:
            partial = Path(self.path + ".partial")
            partial.write_text(json.dumps(self.data, indent=1))
            partial.replace(self.path)


def tree() -> dict[int, np.ndarray]:
    """This process and all below it: processor seconds and page faults so far, joined children included."""
    times = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                ticks, faults = sum(map(int, fields[11:15])), int(fields[7]) + int(fields[8])
                used = np.array([ticks / os.sysconf("SC_CLK_TCK"), faults])
                times[int(entry.name)] = (int(fields[1]), used)
    ours = {os.getpid()}
    while more := {pid for pid, (parent, _) in times.items() if parent in ours} - ours:
        ours |= more
    return {pid: times[pid][1] for pid in ours if pid in times}


def measure(
    rivals: dict[str, Callable], workload: Callable[[int, int], list[Job]], n: int, rounds: int
) -> list[dict]:
    """One row a rival, their rounds alternating: medians of programs a second, ms cpu, page faults, ok."""
    results: dict[str, list] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, run in rivals.items():
            jobs = workload(n, next(SALTS))
            used, start = sum(tree().values()), time.perf_counter()
            ok = run(jobs)
            wall = time.perf_counter() - start
            seconds, faults = (sum(tree().values()) - used) / n
            results[name].append((n / wall, seconds * 1e3, faults, ok))
    rows = []
    for name, rounds_of in results.items():
        rate, cpu, faults, ok = (statistics.median(column) for column in zip(*rounds_of, strict=True))
        rates = [round(one[0], 1) for one in rounds_of]
        used = {"ms_cpu": cpu, "faults": faults}
        rows.append({"rival": name, "rate": rate, "rounds": rates, **used, "ok": ok, "of": n})
    for row in rows:
        row["ratio"] = row["rate"] / rows[0]["rate"]
    return rows


def show(title: str, rows: list[dict]) -> None:
    print(f"\n{title}\n{'':22}{'programs/s':>12}{'ratio':>8}{'ms cpu':>9}{'faults':>9}{'ok':>8}{'of':>8}")
    for row in rows:
        print(
            f"{row['rival']:22}{row['rate']:12,.0f}{row['ratio']:8.2f}{row['ms_cpu']:9.2f}{row['faults']:9,.0f}"
            f"{row['ok']:8,.0f}{row['of']:8,}",
            flush=True,
        )


# ---------------------------------------------------------------- tables


def endless(rivals: dict[str, Callable], n: int, workers: int) -> list[dict]:
    """2% endless loops under a limit of 1 s: near the bound, and the honest results early."""
    ours = rivals["protected"]
    rows = measure(rivals, lambda n, salt: spoilt(n, salt, "endless loop", 0.02), n, 1)
    bound = workers / 0.02
    show(f"2% endless loops, limit 1 s (bound: {bound:.0f} a second)", rows)
    by = {f"{q:.0%}": float(np.quantile(ours.arrivals, q)) for q in (0.5, 0.9, 0.99, 1.0)}
    within = float(np.mean(np.array(ours.arrivals) <= 3.0))
    print("honest results of the protected: " + ", ".join(f"{q} after {t:.2f} s" for q, t in by.items()))
    print(f"{within:.1%} of them within 3 s; {rows[-1]['rate'] / bound:.1%} of the bound", flush=True)
    rows[-1] |= {"bound": bound, "honest_after_s": by, "honest_within_3_s": within}

    return rows


def hostile(ours: Protected, n: int, rounds: int) -> list[dict]:
    """1% of one hostile kind at a time, limit 0.25 s: when the last honest answer comes, and the last of all.

    The first row is the honest programs alone; each kind has a turn in every round, and a row its median.
    """

    def last(jobs: list[Job]) -> tuple[float, float]:
        start = time.perf_counter()
        ours(jobs)
        return ours.arrivals[-1], time.perf_counter() - start

    turns: dict[str, list] = {kind: [] for kind in ("none", *HOSTILE)}
    for _ in range(rounds):
        for kind, of in turns.items():
            salt = next(SALTS)
            jobs = small(n, salt, A_QUARTER) if kind == "none" else spoilt(n, salt, kind, 0.01, A_QUARTER)
            of.append(last(jobs))
    rows = []
    print(f"\n1% of a hostile kind among {n:,}\n{'':22}{'last honest':>12}{'delayed':>9}{'last of all':>13}")
    for kind, of in turns.items():
        honest, every = (statistics.median(column) for column in zip(*of, strict=True))
        delayed = honest / (rows[0]["honest_s"] if rows else honest) - 1
        rows.append({"kind": kind, "honest_s": honest, "all_s": every, "delayed": delayed})
        print(f"{kind:22}{honest:10.2f} s{delayed:9.0%}{every:11.2f} s", flush=True)
    worst = max(rows, key=lambda row: row["delayed"])
    print(f"most by {worst['kind']}: {worst['delayed']:.0%} (a quarter is the promise)", flush=True)
    return rows


def endurance(executor: Executor, n: int) -> list[dict]:
    """Many programs in one stream; what is held on the way."""

    def state() -> dict:
        servers = [os.getpid(), *(server.process.pid for server in executor._service.pool.servers)]
        return {
            "processes": len(tree()),
            "servers": len(servers) - 1,
            "descriptors": [len(os.listdir(f"/proc/{pid}/fd")) for pid in servers],
            "rss_mb": [resident_mb(pid) for pid in servers],
            "servers_pss_mb": service_mb(executor),
        }

    def stream():
        for start in range(0, n, 1000):
            yield from small(1000, 10_000 + start)

    sum(1 for _ in executor.run(small(8192, 4242)))  # fill what is remembered
    time.sleep(0.5)
    rows = [{"programs": 0, **state()}]
    start, right = time.perf_counter(), 0
    for number, execution in enumerate(executor.run(stream()), 1):
        right += execution.status == "ok"
        if number % max(1, n // 10) == 0 and number < n:
            rows.append({"programs": number, **state()})
    seconds = time.perf_counter() - start
    time.sleep(0.5)
    rows.append({"programs": n, **state(), "ok": right, "rate": n / seconds})
    print(f"\n{n:,} programs in a row, {n / seconds:,.0f}/s, {right:,} ok")
    print(f"{'programs':>10}{'processes':>11}{'descriptors (caller, servers)':>33}  MB resident (same order)")
    for row in rows:
        rss = ", ".join(f"{mb:.1f}" for mb in row["rss_mb"])
        print(f"{row['programs']:10,}{row['processes']:11}{row['descriptors']!s:>33}  {rss}", flush=True)
    return rows


def first_rounds(workers: int) -> list[dict]:
    """Rounds of 128 small programs to runners that are new, with scipy.ndimage in one of the first round, two
    of the second, and so on; a second between two rounds, in which a model would sample. `warm`: an executor
    that was warmed half a minute before, as GRPO's is while the model loads."""
    print("\nrounds of 128 programs to runners that are new, seconds")
    runners = {"reference": Reference(workers), "protected": Protected(workers), "warm": Protected(workers)}
    runners["warm"].executor.warm()
    time.sleep(30)
    print(f"{'round':>10}" + "".join(f"{name:>12}" for name in runners))
    rows: list[dict] = []
    try:
        for number in range(1, 9):
            row: dict = {"round": number}
            for name, run in runners.items():
                jobs = small(128, next(SALTS))
                jobs[:number] = [
                    replace(job, program=f"from scipy import ndimage\n{job.program}") for job in jobs[:number]
                ]
                start = time.perf_counter()
                run(jobs)
                row[name] = time.perf_counter() - start
            rows.append(row)
            print(f"{number:10}" + "".join(f"{row[name]:12.2f}" for name in runners), flush=True)
            time.sleep(1)
    finally:
        for run in runners.values():
            run.close()
    return rows


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def service_mb(executor: Executor) -> float:
    """Proportional memory of the servers now, in MB: pages they share are counted once."""
    total = 0
    for server in executor._service.pool.servers:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{server.process.pid}/smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def scaling(counts: list[int], rounds: int, size: Callable[[int], int], figures: Figures) -> None:
    """Programs a second against workers; efficiency is the rate per worker relative to the first row.

    "caller ms" is what is done in one process whatever the workers, so the rate stays below 1,000 over it.
    """
    for title, workload, n in (("realistic", realistic, 400), ("small", small, 400)):
        heads = "".join(f"{head:>12}" for head in ("programs/s", "per worker", "efficiency", "caller ms"))
        print(f"\nscaling, {title}\n{'workers':>10}{heads}")
        rows: list[dict] = []
        for workers in counts:
            run, total = Protected(workers), size(n) * workers
            try:
                run(workload(min(total, 4096), 999))
                (row,) = measure({"protected": run}, workload, total, rounds)
            finally:
                run.close()
            first = rows[0] if rows else row | {"workers": workers}
            efficiency = row["rate"] / workers / (first["rate"] / first["workers"])
            rows.append(row | {"workers": workers, "efficiency": efficiency, "caller_ms": run.caller_ms})
            rate = row["rate"]
            columns = f"{rate:12,.0f}{rate / workers:12,.0f}{efficiency:12.0%}{run.caller_ms:12.3f}"
            print(f"{workers:10}{columns}", flush=True)
            figures.add(f"scaling, {title}", rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers", default="2", help="workers; a list such as 1,2,4 adds the table of scaling"
    )
    parser.add_argument("--tables", default=TABLES, help=f"which of {TABLES}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the programs in each table")
    parser.add_argument("--json", help="where to write every figure as data")
    arguments = parser.parse_args()
    counts = [int(number) for number in arguments.workers.split(",")]
    rounds, tables = arguments.rounds, arguments.tables.split(",")
    if unknown := set(tables) - set(TABLES.split(",")):
        parser.error(f"--tables: {', '.join(sorted(unknown))} not among {TABLES}")
    workers = counts[0] if len(counts) == 1 else 2
    figures = Figures(arguments.json)

    def size(n: int) -> int:
        return max(100, round(n * arguments.scale))

    print(
        f"{os.cpu_count()} processors, {usable_cores()} usable, load {os.getloadavg()[0]:.1f}, "
        f"{workers} workers, Python {platform.python_version()}, numpy {np.__version__}"
    )
    began = time.perf_counter()
    if set(tables) - {"rounds", "scaling"}:
        two_workers(tables, workers, rounds, size, figures)
    if "rounds" in tables:
        figures.add("rounds", first_rounds(workers))
    if "scaling" in tables and len(counts) > 1:
        scaling(counts, rounds, size, figures)
    print(f"\n{time.perf_counter() - began:.0f} s, load {os.getloadavg()[0]:.1f}")


def two_workers(
    tables: list[str], workers: int, rounds: int, size: Callable[[int], int], figures: Figures
) -> None:
    """The tables that compare rivals with one number of workers."""
    ours, theirs, bare = Protected(workers), Reference(workers), Reference(workers, bare=True)
    rivals = {"reference": theirs, "bare": bare, "shared": Protected(workers, shared=True), "protected": ours}
    two = {"reference": theirs, "protected": ours}
    honest = {
        "small": ("small honest programs", small, 1500),
        "realistic": ("realistic honest programs", realistic, 1850),
    }
    try:
        for run in rivals.values():  # start the processes before the clock
            run(small(200, 999) + realistic(400, 999))
        for table, (title, workload, n) in honest.items():
            if table in tables:
                rows = measure(rivals, workload, size(n), rounds)
                show(title, rows)
                figures.add(table, rows)
        if "endless" in tables:
            figures.add("endless", endless(two, size(2000), workers))
        if "hostile" in tables:
            figures.add("hostile", hostile(ours, size(2000), rounds))
        if "endurance" in tables:
            figures.add("endurance", endurance(ours.executor, size(100_000)))
        memory = service_mb(ours.executor)
        figures.add("memory", {"servers_pss_mb": memory, "servers": len(ours.executor._service.pool.servers)})
        print(f"\nservice: {memory:.0f} MB (shared pages counted once)")
    finally:
        for run in rivals.values():
            run.close()


if __name__ == "__main__":
    main()
