"""Cheap forks: gaps in the server's memory are filled, and rehearsed programs leave nothing behind."""

# ruff: noqa: E501 (the programs' lines are theirs)

import subprocess
import sys

import numpy as np
import pytest

from arcnb.programs.executor.executor import Executor, Job
from arcnb.programs.sandbox import rehearsal
from arcnb.programs.sandbox.child import new_namespace, run_alone
from arcnb.programs.sandbox.preload import program_names


def in_fresh_interpreter(source: str) -> str:
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.skipif(not hasattr(sys, "_debugmallocstats"), reason="CPython only")
def test_gaps_between_objects_are_filled():
    before, after = map(
        int,
        in_fresh_interpreter(
            "import numpy, gc\n"
            "from arcnb.programs.sandbox import heap\n"
            "junk = [bytes(n % 400) for n in range(20000)]; junk = junk[::3]; gc.collect()\n"
            "print(sum(heap._pool_gaps().values()))\n"
            "heap.fill_gaps()\n"
            "print(sum(heap._pool_gaps().values()))"
        ).split(),
    )
    assert before > 10_000
    assert after < before / 5


def test_filling_gaps_takes_no_memory_beyond_them():
    grown = int(
        in_fresh_interpreter(
            "import numpy, resource\n"
            "from arcnb.programs.sandbox import heap\n"
            "pages = lambda: int(open('/proc/self/statm').read().split()[1])\n"
            "before = pages(); heap.keep_freed_memory(); heap.fill_gaps(); print(pages() - before)"
        )
    )
    assert grown < 512  # pages of 4 KiB


@pytest.mark.parametrize("number", range(len(rehearsal.PROGRAMS)))
def test_rehearsed_programs_are_honest_and_work(number):
    import arcnb.programs.libraries.barc as barc

    sys.modules["common"] = barc
    try:
        namespace = new_namespace(program_names({"common": barc}))
        status, outputs, *error = run_alone(
            rehearsal.PROGRAMS[number], rehearsal.GRIDS, "transform", namespace, lambda n: None
        )
    finally:
        del sys.modules["common"], sys.modules["program"]
    assert status == "ok", error
    assert len(outputs) == len(rehearsal.GRIDS)


def test_nothing_of_a_rehearsed_program_is_left_for_others():
    source = (
        "import gc, sys\ndef transform(grid):\n    names = {'helper', 'Cell', 'objects', 'seen'}\n"
        "    kept = [o for o in gc.get_objects() if type(o) is dict and o.get('__name__') == 'program' and names & set(o)]\n"
        "    kinds = [k for k in object.__subclasses__() if k.__name__ == 'Cell']\n"
        "    return [[len(kept), len(kinds), int('helper' in globals())]]"
    )
    with Executor(workers=1) as executor:
        execution = executor.submit(Job(source, (np.ones((1, 1), np.uint8),))).result()
    assert execution.status == "ok", execution
    assert execution.outputs[0].tolist() == [[0, 0, 0]]
