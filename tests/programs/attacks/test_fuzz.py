"""Random hostile programs among honest ones: every verdict is in order, and every neighbour is right.

A program does a few random things, one after the other: system calls by number with random arguments, reads,
writes and closes of random descriptors, forged records, scribbles over the shared page and over its own
memory; then it returns something odd, raises, ends, dies or goes on for ever. What it may do is kill itself.
"""

# ruff: noqa: E501 (the programs' lines are theirs)

import itertools
import os
import random
import time
from collections import Counter

import numpy as np
import pytest

from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import STATUSES, Job, Limits
from arcnb.programs.sandbox import seccomp

GRIDS = tuple(np.arange(n * n, dtype=np.uint8).reshape(n, n) % 10 for n in (1, 2, 3))
TIGHT = Limits(seconds=0.3, seconds_per_input=0.2, memory_mb=128, output_mb=0.5)
ROOMY = Limits(seconds=30, seconds_per_input=30)
BUSY = 30  # seconds by the clock; a program has less than one, and its server may wait for a processor
ROUND = 60  # hostile programs, and as many honest ones
HONEST = "import numpy as np\nfrom common import *\ndef transform(grid):\n    return np.rot90(grid) * (Color.RED == 2)\n# {}"

HEAD = """
import ctypes, mmap, os, signal, struct, sys, time
import numpy as np
from arcnb.programs import wire
libc = ctypes.CDLL(None)
buffer = ctypes.create_string_buffer(4096)
kept = []
def page():
    frame = sys._getframe()
    while frame:
        if hasattr(frame.f_locals.get("self"), "page"):
            return frame.f_locals["self"].page
        frame = frame.f_back
def attempt(what):
    try:
        kept.append(what())
    except (OSError, ValueError, OverflowError, MemoryError, TypeError, ctypes.ArgumentError):
        pass
def transform(grid):
"""
ENDINGS = [
    *(
        "return grid",
        "return None",
        "return [[0.5]]",
        "return grid.astype(object)",
        "return kept",
        "return [[7]] * 31",
    ),
    *(
        "raise ValueError(chr(27) + '[31m' + chr(0x202e))",
        "raise MemoryError",
        "raise SystemExit(3)",
        "raise KeyboardInterrupt",
    ),
    *(
        "os._exit({byte})",
        "os.abort()",
        "ctypes.string_at(0)",
        "sys.exit()",
        "while True: pass",
        "time.sleep(60)",
    ),
    *(
        "os.close(3)\n    while True: pass",
        "os.closerange(0, 64)\n    time.sleep(60)",
        "os.close(3)\n    return grid",
    ),
    "while True: kept.append(bytearray(1 << 20))",
    "while True: os.write(3, bytes(4096))",
]


def act(rng: random.Random) -> str:
    """One random thing to do, as a line of Python."""
    number = rng.choice(
        [rng.randrange(0, 470), rng.randrange(0, 1100), rng.choice([9, 10, 11, 12, 25, 28, 202])]
    )
    arguments = ", ".join(
        rng.choice(
            [
                "0",
                "-1",
                "3",
                "ctypes.byref(buffer)",
                str(rng.randrange(0, 64)),
                f"ctypes.c_uint64({rng.getrandbits(64)})",
            ]
        )
        for _ in range(6)
    )
    descriptor, noise = rng.choice([3, rng.randrange(0, 32)]), rng.randbytes(rng.randrange(1, 80))
    status = rng.choice(["ok", "error", "lost", "slow", "isolate", "timeout"])
    return rng.choice(
        [
            f"libc.syscall({number}, {arguments})",
            f"libc.syscall({number}, {arguments})",
            f"os.close({descriptor})",
            f"os.write({descriptor}, {noise!r})",
            f"os.read({rng.choice([0, 3, 4])}, {rng.randrange(0, 4096)})",
            f"os.open({rng.choice(['/dev/null', '/proc/self/mem', '/proc/self/fd/3', '/tmp', '.'])!r}, {rng.randrange(0, 8)})",
            f"os.write(3, wire.encode_record({rng.randrange(0, 9)}, {status!r}, [{noise!r}] * {rng.randrange(0, 4)}))",
            f"struct.pack_into('<Idd', page(), {rng.randrange(0, 64)}, {rng.getrandbits(32)}, {rng.choice(['time.monotonic()', '1e308', '-1.0', 'float(chr(110) + chr(97) + chr(110))'])}, 0.0)",
            f"signal.signal({rng.randrange(1, 64)}, signal.SIG_IGN)",
            f"mmap.mmap(-1, {rng.randrange(1, 1 << 24)})",
            f"ctypes.memset(id(kept) + {rng.randrange(0, 4096)}, {rng.randrange(256)}, {rng.randrange(1, 64)})",
            f"np.frombuffer(buffer, np.uint8)[{rng.randrange(0, 4096)}]",
        ]
    )


def hostile(seed: int) -> str:
    rng = random.Random(seed)
    acts = [f"    attempt(lambda: {act(rng)})" for _ in range(rng.randrange(0, 7))]
    ending = rng.choice(ENDINGS).replace("{byte}", str(rng.randrange(256)))
    return f"{HEAD}{''.join(line + chr(10) for line in acts)}    {ending}\n# {seed}"


def fuzz(seconds: float, first_seed: int) -> Counter:
    """Rounds until the time is over; how often each verdict came."""
    found: Counter[str] = Counter()
    deadline, seeds = time.monotonic() + seconds, itertools.count(first_seed)
    with Executor(workers=2, limits=TIGHT) as executor:
        while time.monotonic() < deadline:
            jobs = []
            for seed in itertools.islice(seeds, ROUND):
                honest = Job(HONEST.format(seed), GRIDS, ROOMY, key="honest")
                jobs += [Job(hostile(seed), GRIDS, key=seed), honest]
            for execution in executor.run(jobs):
                check(execution)
                found[execution.status] += execution.key != "honest"
    return found


def check(execution) -> None:
    if execution.key == "honest":
        assert execution.status == "ok", execution
        assert [grid.tolist() for grid in execution.outputs] == [np.rot90(grid).tolist() for grid in GRIDS]
        return
    told = f"{execution}\n{hostile(execution.key)}"
    assert execution.status in STATUSES, told
    assert execution.cpu_seconds < TIGHT.seconds + 2, told
    assert execution.seconds < BUSY, told
    for text in (execution.error_type, execution.error_message):
        assert (text or "").replace("\n", "").replace("\t", "").isprintable(), told
    if execution.status == "ok":
        assert len(execution.outputs) == len(GRIDS), told
        assert all(1 <= side <= 30 for grid in execution.outputs for side in grid.shape), told
        assert all(grid.max() <= 9 for grid in execution.outputs), told


@pytest.mark.skipif(seccomp.filter_program(True) is None, reason="random calls need the filter")
@pytest.mark.parametrize(
    ("seconds", "first_seed"),
    [
        pytest.param(30, 1, marks=pytest.mark.long("hostile programs for thirty seconds")),
        pytest.param(
            600,
            1_000_000,
            marks=[
                pytest.mark.repetition,
                pytest.mark.long("hostile programs for ten minutes"),
                pytest.mark.timeout(1200),
            ],
        ),
    ],
)
def test_random_hostile_programs_harm_only_themselves(seconds, first_seed):
    descriptors = len(os.listdir("/proc/self/fd"))
    found = fuzz(seconds, first_seed)
    assert len(found) >= 4, "one kind of end is no fuzzing"
    assert len(os.listdir("/proc/self/fd")) == descriptors
