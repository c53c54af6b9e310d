"""How fast tasks are made and validated: RE-ARC, the DSL's generators, validation in the sandbox.

    python bench/synth.py [n_tasks]

Wall time depends on what else the machine does, so processor time is printed too: own and the sandbox's, in
milliseconds a task, and what two idle cores would make of it. The acceptance mark for validated DSL tasks is
100,000 in 20 minutes on 2 cores, 84 a second.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from arcnb.arc.tasks.task import Task
from arcnb.synth.rearc.tasks import rearc_examples, rearc_ids
from arcnb.synth.sources import SourceSettings, build_tasks
from arcnb.synth.task_sets import source_tasks
from arcnb.synth.validation.reports import TaskReport

WORKERS = 2


def processor_seconds() -> tuple[float, float]:
    """Of this process, and of its children that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


@contextmanager
def measured(what: str) -> Iterator[Callable[[int], None]]:
    """Print the rate of the block; it calls the given function with the number of items it made."""
    made = 0

    def count(n: int) -> None:
        nonlocal made
        made = n

    start, before = time.perf_counter(), processor_seconds()
    yield count
    wall = time.perf_counter() - start
    own, children = (after - then for after, then in zip(processor_seconds(), before, strict=True))
    two_cores = WORKERS * made / (own + children) if children else made / own * WORKERS
    print(
        f"{what:34} {made:6} in {wall:6.1f} s = {made / wall:6.0f}/s; "
        f"{1e3 * own / made:5.2f} + {1e3 * children / made:5.2f} ms each, {two_cores:6.0f}/s on 2 idle cores"
    )


def made(source: str, n: int, settings: SourceSettings = SourceSettings()) -> list[Task]:
    with measured(f"{source}, max_cells {settings.max_cells}" if "rearc" in source else source) as count:
        tasks = list(build_tasks(source, n, settings))
        count(len(tasks))
    return tasks


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    rearc_examples(rearc_ids()[0], 1, seed=0)  # loads the generators
    with measured("rearc examples") as count:
        count(sum(len(rearc_examples(task_id, 4, seed=0)) for task_id in rearc_ids()))
    for max_cells in (4500, 1500):
        made("rearc", 320, SourceSettings(max_cells=max_cells))
    made("dsl", n)
    made("composed", n)
    for source in ("dsl", "composed"):
        report = TaskReport()
        with measured(f"{source}, validated") as count:
            count(len(list(source_tasks(source, n, SourceSettings(), workers=WORKERS, report=report))))
        print(f"{'':34} {dict(report.rows())}, {report.lines_removed} lines removed")


if __name__ == "__main__":
    main()
