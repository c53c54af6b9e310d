"""What one program does to its interpreter, no other program ever sees."""

# ruff: noqa: E501 (the programs' lines are theirs)

import os
import secrets
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job, Limits
from tests.paths import ROOT

GRIDS = tuple(np.arange(n * n, dtype=np.uint8).reshape(n, n) % 10 for n in (1, 2, 3, 4))
LIMITS = Limits(seconds=20, seconds_per_input=10)
STRICT = Limits(seconds=20, seconds_per_input=10, check_determinism=True)

VICTIM = """
import numpy as np, sys, random, math, collections, dsl
from common import *
def transform(grid):
    if dsl.gravity(np.array([[1], [0]]), "down").tolist() != [[0], [1]]:
        return [[9, 9]]
    total = int(np.sum(np.array([1, 2]))) + len([1, 2]) + Color.RED + len(Color.NOT_BLACK) + math.floor(2.5)
    total += len(collections.Counter("aab")) + int(np.zeros(3).sum()) + min(sys.getrecursionlimit(), 3)
    seen = hasattr(np, "stolen") or hasattr(sys, "stolen") or "stolen" in globals()
    return [[int(seen), total % 10]]
"""

# What a program changes, each as the body of its transform.
CONTAMINATIONS = {
    "a replaced numpy function": "np.sum = lambda a: 99",
    "a replaced numpy constructor": "np.zeros = np.ones",
    "a deleted numpy function": "del np.sum",
    "a replaced builtin": "import builtins; builtins.len = lambda x: 7",
    "a replaced builtin through __builtins__": "__builtins__['len'] = lambda x: 7",
    "a new attribute of numpy": "np.stolen = 1",
    "a new attribute of sys": "import sys; sys.stolen = 1",
    "a new global": "global stolen; stolen = 1",
    "a changed color": "import common; common.Color.RED = 9",
    "a changed shared list": "import common; common.Color.NOT_BLACK.append(1)",
    "a cleared shared list without import": "Color.NOT_BLACK.clear()",
    "a replaced library function": "import common; common.flood_fill = None",
    "a poisoned module table": "import sys; sys.modules['numpy'] = None; sys.modules['common'] = None",
    "an emptied module": "import math; vars(math).clear()",
    "a new recursion limit": "import sys; sys.setrecursionlimit(200000); sys.setrecursionlimit(50)",
    "numpy's error state": "np.seterr(all='raise')",
    "numpy's print options": "np.set_printoptions(threshold=0)",
    "the warnings filter": "import warnings; warnings.simplefilter('error')",
    "a trace function": "import sys; sys.settrace(lambda *a: 1 / 0)",
    "a profile function": "import sys; sys.setprofile(lambda *a: None)",
    "an audit hook": "import sys\n    def stop(*a): raise RuntimeError\n    sys.addaudithook(stop)",
    "an import hook": "import sys; sys.meta_path.clear()",
    "the module search path": "import sys; sys.path.clear()",
    "the garbage collector": "import gc; gc.disable(); gc.callbacks.append(lambda *a: 1 / 0)",
    "an exit handler": "import atexit; atexit.register(lambda: 1 / 0)",
    "a signal handler": "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)",
    "a replaced exception hook": "import sys; sys.excepthook = None; sys.unraisablehook = None",
    "the environment": "import os; os.environ['stolen'] = '1'",
    "the locale": "import locale; locale.setlocale(locale.LC_ALL, 'C')",
    "a patched class in the standard library": "import collections; collections.Counter.__len__ = lambda s: 7",
    "a generator left open": "g = (x for x in (yield_nothing(),)); globals()['keep'] = g",
    "a library's table of directions": "import dsl; dsl.motion.STEPS['down'] = (-1, 0)",
    "a library's emptied table": "import dsl; dsl.motion.STEPS.clear()",
    "our own functions": "import arcnb.programs.sandbox.child as c; c.run_code = None; c.output_bytes = None",
    "an emptied dictionary of every object": (
        "import gc\n    for o in gc.get_objects():\n        if type(o) is dict and 'zeros' in o: o.clear()"
    ),
}


@pytest.fixture(scope="module")
def executor():
    with Executor(workers=1, limits=LIMITS) as executor:
        yield executor


@pytest.mark.parametrize("what", CONTAMINATIONS)
def test_no_program_sees_what_another_changed(executor, what):
    body = CONTAMINATIONS[what].replace("yield_nothing()", "0")
    attack = (
        f"import numpy as np\nfrom common import *\ndef transform(grid):\n    {body}\n    return grid\n# "
    )
    programs = [VICTIM + "# ", attack] * 8
    jobs = [Job(program + f"{what} {n}", GRIDS) for n, program in enumerate(programs)]
    executions = list(executor.run(jobs))
    for victim in executions[::2]:
        assert victim.status == "ok", victim
        assert [output.tolist() for output in victim.outputs] == [[[0, 3]]] * len(GRIDS)


# Leaves its process nearly full: 400 MB in a cycle that only the collector would find.
HOARD = """
import numpy as np
def transform(grid):
    box = [np.ones(50_000_000)]
    box.append(box)
    try:
        while True:
            box.append(np.ones(1_000_000))
    except MemoryError:
        return grid
# {}
"""
ROOM = """
import numpy as np
def transform(grid):
    try:
        return grid if np.zeros((1000, 1000), int).sum() == 0 and np.ones(20_000_000).sum() > 0 else [[9]]
    except Exception:
        return [[9]]
# {}
"""


def test_memory_that_one_program_holds_is_not_missing_to_another(executor):
    jobs = [Job((ROOM if n % 2 else HOARD).format(n), GRIDS) for n in range(8)]
    for execution in list(executor.run(jobs))[1::2]:
        assert execution.status == "ok", execution
        assert [o.tolist() for o in execution.outputs] == [g.tolist() for g in GRIDS]


def test_no_process_runs_a_second_program(executor):
    program = "import sys, gc\ndef transform(grid):\n    met = hasattr(sys, 'met')\n    sys.met = 1\n    return [[int(met)]]\n# "
    for execution in executor.run(Job(program + str(n), GRIDS[:1]) for n in range(40)):
        assert execution.outputs[0].tolist() == [[0]]


def test_random_numbers_of_one_program_do_not_depend_on_another(executor):
    draw = "import random\nimport numpy as np\ndef transform(grid):\n    return [[random.randint(0, 9), int(np.random.randint(10))]]\n# "
    first, *others = [e.outputs for e in executor.run(Job(draw + str(n), GRIDS) for n in range(8))]
    for outputs in others:
        assert [o.tolist() for o in outputs] == [o.tolist() for o in first]


LEFT_OPEN = """
import random, sys
def generator(box):
    try:
        yield
    finally:
        {late}
def transform(grid):
    for _ in range(3):
        box = []
        g = generator(box)
        box.append(g)
        next(g)
    return grid
"""
LATE = {
    "a new seed": "random.seed(12345)",
    "a lower recursion limit": (
        "n = 4\n        while n < 200:\n            n += 1\n            try:\n                sys.setrecursionlimit(n)\n"
        "                break\n            except RecursionError:\n                pass"
    ),
}
# Makes so many lists that the garbage collector runs in the middle of it.
COLLECTING = """
import random
def fill(n):
    return [] if n == 0 else [[n]] + fill(n - 1)
def transform(grid):
    random.seed(7)
    kept = [fill(30) for _ in range(120)]
    return [[random.randint(0, 9) for _ in range(10)]]
"""


@pytest.mark.parametrize("what", LATE)
def test_a_generator_left_open_runs_in_no_later_program(executor, what):
    """The collector frees it, and its `finally` runs, whenever it likes: that has to be in a process of its own."""
    alone = executor.submit(Job(COLLECTING + f"# {what}", GRIDS)).result()
    attack = LEFT_OPEN.format(late=LATE[what])
    jobs = [Job((COLLECTING if n % 2 else attack) + f"# {what} {n}", GRIDS) for n in range(80)]
    for execution in list(executor.run(jobs))[1::2]:
        assert execution.status == "ok", execution
        assert [o.tolist() for o in execution.outputs] == [o.tolist() for o in alone.outputs]


# Counts in the page of memory by which a child tells its parent how far it is.
COUNTING_IN_THE_PAGE = """
import sys
def transform(grid):
    progress = sys._getframe(1).f_locals["progress"]
    page = progress.__self__
    count = page[2000]
    page[24:] = bytes([count + 1]) * (len(page) - 24)
    return [[count]]
"""


def test_no_program_finds_a_message_in_the_page_of_progress(executor):
    for n in range(4):
        other = executor.submit(Job(COUNTING_IN_THE_PAGE + f"# {n}", GRIDS[:1], LIMITS)).result()
        assert [o.tolist() for o in other.outputs] == [[[0]]]


def test_a_changed_input_changes_no_other_call(executor):
    program = (
        "kept = []\ndef transform(grid):\n    for g in kept:\n        g[:] = 9\n    kept.append(grid)\n"
        "    first = int(grid[0, 0])\n    grid[:] = 8\n    return [[first, len(grid)]]"
    )
    outputs = executor.submit(Job(program, GRIDS)).result().outputs
    assert [o.tolist() for o in outputs] == [[[0, n]] for n in (1, 2, 3, 4)]


COUNTING = "calls = 0\ndef transform(grid):\n    global calls\n    calls += 1\n    return [[calls]]"


def test_state_outlives_the_calls_of_one_job_and_no_longer(executor):
    for n in range(2):
        execution = executor.submit(Job(COUNTING + f"\n# {n}", GRIDS)).result()
        assert [o.tolist() for o in execution.outputs] == [[[n]] for n in (1, 2, 3, 4)]


def test_counting_calls_is_found_by_the_second_run(executor):
    execution = executor.submit(Job(COUNTING, GRIDS, STRICT)).result()
    assert execution.status == "nondeterministic"
    assert "inputs 1, 2, 3, 4" in execution.error_message
    assert execution.outputs is None


@pytest.mark.parametrize(
    "expression",
    [
        "abs(hash('a')) % 10",
        "next(iter({'red', 'green', 'blue', 'yellow', 'pink', 'gray'})).__len__() % 10",
        "__import__('random').randint(0, 9)",
        "int(np.random.randint(10))",
        "int(np.random.default_rng().integers(10))",
        "int.from_bytes(__import__('os').urandom(2)) % 10",
        "__import__('time').time_ns() // 1000 % 10",
    ],
)
def test_dependence_on_chance_is_found_by_the_second_run(executor, expression):
    program = f"import numpy as np\ndef transform(grid):\n    return [[{expression} for _ in range(30)]]"
    assert executor.submit(Job(program, GRIDS, STRICT)).result().status == "nondeterministic"


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("while True: pass", "timeout"),
        ("bytearray(1 << 40)", "memory"),
        ("raise ValueError", "nondeterministic"),
        ("return [[10]]", "nondeterministic"),
    ],
)
def test_a_second_run_out_of_time_or_memory_is_no_nondeterminism(executor, end, status):
    program = (
        "calls = 0\ndef transform(grid):\n    global calls\n    calls += 1\n"
        f"    if calls == 1 and len(grid) == {len(GRIDS[-1])}:\n        {end}\n    return grid"
    )
    limits = replace(STRICT, seconds_per_input=1)
    execution = executor.submit(Job(program, GRIDS, limits)).result()
    assert (execution.status, execution.outputs) == (status, None)


def test_a_second_run_that_fails_without_a_message_is_said_by_its_type(executor):
    program = (
        "calls = 0\ndef transform(grid):\n    global calls\n    calls += 1\n"
        f"    assert calls > 1 or len(grid) != {len(GRIDS[-1])}\n    return grid"
    )
    execution = executor.submit(Job(program, GRIDS, STRICT)).result()
    assert execution.error_message == "a second run ended with error: AssertionError"


def test_a_deterministic_program_passes_the_second_run(executor):
    execution = executor.submit(Job("def transform(grid):\n    return grid.T", GRIDS, STRICT)).result()
    assert execution.status == "ok"
    assert [o.tolist() for o in execution.outputs] == [g.T.tolist() for g in GRIDS]


def test_expected_outputs_are_nowhere_in_the_process_of_a_program(executor):
    answer = np.array(
        [[7, 1, 8, 2, 8, 1, 8, 2, 8, 4]] * 3, dtype=np.uint8
    )  # in our frame, as a grader's would be
    search = f"""
import sys, gc
import numpy as np
wanted = bytes({[9 - int(c) for c in answer[0]]})
wanted = bytes(9 - c for c in wanted)
def found(value):
    if isinstance(value, (bytes, bytearray)):
        return wanted in bytes(value)
    return isinstance(value, np.ndarray) and value.dtype != object and value.nbytes < 10**6 and (
        wanted in value.astype(np.uint8).tobytes())
def transform(grid):
    frame = sys._getframe()
    values = []
    while frame:
        values += list(frame.f_locals.values()) + list(frame.f_globals.values())
        frame = frame.f_back
    values += gc.get_objects()
    for value in values:
        if value is not wanted and found(value):
            return [[7]]
    return [[len(values) > 0 and 1]]
"""
    execution = executor.submit(Job(search, GRIDS)).result()
    assert execution.status == "ok", execution
    assert {o.tolist()[0][0] for o in execution.outputs} == {1}
    assert answer.any()


def test_a_program_does_not_see_its_neighbours_in_the_queue(executor):
    secret = "secret" + secrets.token_hex(8)
    search = f"""
import gc, sys
head, tail = "{secret[:6]}", "{secret[6:]}"
def transform(grid):
    frame, values = sys._getframe(), []
    while frame:
        values += list(frame.f_locals.values())
        frame = frame.f_back
    wanted = (head + tail).encode()
    for value in values + gc.get_objects():
        if isinstance(value, (bytes, bytearray)) and wanted in bytes(value) and value is not wanted:
            return [[7]]
    return [[1]]
"""
    neighbour = f"def transform(grid):\n    return grid\n# {secret}"
    jobs = [Job((search if n % 2 else neighbour) + f" # {n}", GRIDS) for n in range(10)]
    for execution in list(executor.run(jobs))[1::2]:
        assert execution.status == "ok", execution
        assert {o.tolist()[0][0] for o in execution.outputs} == {1}


def test_our_environment_is_not_a_programs(monkeypatch):
    monkeypatch.setenv("ARCNB_CANARY", "swordfish")
    with Executor(workers=1, limits=LIMITS) as executor:
        program = (
            "import os, ctypes\ndef transform(grid):\n    names = list(os.environ) + [str(v) for v in os.environ.values()]\n"
            "    libc = ctypes.CDLL(None)\n    libc.getenv.restype = ctypes.c_char_p\n"
            "    return [[7 if 'swordfish' in names or libc.getenv(b'ARCNB_CANARY') else 1, len(names) % 10]]"
        )
        execution = executor.submit(Job(program, GRIDS)).result()
    assert execution.outputs[0].tolist() == [[1, 0]], execution


def test_nothing_of_the_caller_is_in_a_programs_process():
    """Neither its pids nor its folders, but for those of the libraries, which every `__file__` tells."""
    program = f"""
import os, sys
def transform(grid):
    texts = [*sys.argv, *sys.orig_argv, *os.environ, *os.environ.values(), os.getcwd(), *(v for v in vars(sys.modules['__main__']).values() if type(v) is str)]
    for name in ('cwd', 'exe', 'root', *(f'fd/{{d}}' for d in range(8))):
        try:
            texts.append(os.readlink('/proc/self/' + name))
        except OSError:
            pass
    numbers, frame = [], sys._getframe(1)
    while frame:
        for value in frame.f_locals.values():
            numbers += [value] if type(value) is int else []
            numbers += [v for v in getattr(value, '__dict__', {{}}).values() if type(v) is int]
            texts += [value] if type(value) is str else []
        texts += [c for c in frame.f_code.co_consts if type(c) is str and 'exec' in c]
        frame = frame.f_back
    found = [t for t in texts if {str(ROOT)!r} in t or '{os.getpid()}' in t] + [n for n in numbers if n == {os.getpid()}]
    if found:
        raise AssertionError(repr(found))
    return [[int('lazy_loader' in sys.modules or 'arcnb.errors' in sys.modules)]]
"""
    with Executor(workers=1, limits=LIMITS) as executor:
        execution = executor.submit(Job(program, GRIDS[:1])).result()
    assert execution.status == "ok", execution
    assert execution.outputs[0].tolist() == [[0]], "the server loaded more than it needs"


def test_an_error_brings_no_control_characters():
    hostile = "".join(chr(n) for n in [*range(32), *range(127, 160), 0x202E, 0x2028, 0xFEFF, 0xE000, 0xD800])
    program = f"class E(Exception): pass\nE.__name__ = {hostile[1:-1]!r}\ndef transform(grid):\n    raise E({hostile!r})"
    with Executor(workers=1, limits=LIMITS) as executor:
        execution = executor.submit(Job(program, GRIDS[:1])).result()
    assert execution.status == "error"
    for text in (execution.error_type, execution.error_message):
        assert "\\x1b" in text
        assert text.replace("\n", "").replace("\t", "").isprintable()


def test_files_outside_stay_as_they_were(executor):
    victim = Path("/tmp/arcnb-victim")
    victim.write_text("untouched")
    victim.chmod(0o600)
    attack = """
import os
def attempt(what):
    try:
        what()
        return 1
    except OSError:
        return 0
def transform(grid):
    path = "/tmp/arcnb-victim"
    done = [attempt(lambda: open(path, "w")), attempt(lambda: open(path, "a")), attempt(lambda: os.remove(path)),
            attempt(lambda: os.chmod(path, 0o777)), attempt(lambda: os.truncate(path, 0)),
            attempt(lambda: os.rename(path, path + "2")), attempt(lambda: os.link(path, path + "3")),
            attempt(lambda: os.utime(path, (0, 0))), attempt(lambda: open(path).read())]
    return [[sum(done)]]
"""
    before = victim.stat()
    execution = executor.submit(Job(attack, GRIDS)).result()
    assert execution.status == "ok", execution
    assert execution.outputs[0].tolist() == [[0]]
    assert victim.read_text() == "untouched"
    assert (victim.stat().st_mode, victim.stat().st_mtime) == (before.st_mode, before.st_mtime)
    victim.unlink()


def test_no_attack_left_anything_behind():
    left = [*Path("/tmp").glob("arcnb-attack*"), *Path("/dev/shm").glob("arcnb-attack*")]
    assert left == []


def test_a_program_sees_no_descriptor_but_its_own():
    """Not even when the caller has hundreds of files open."""
    program = (
        "import os\ndef transform(grid):\n    n = 0\n    for d in range(2048):\n"
        "        try:\n            os.fstat(d)\n            n += 1\n        except OSError:\n            pass\n"
        "    return [[n]]"
    )
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(600)]
    try:
        with Executor(workers=1, limits=LIMITS) as executor:
            execution = executor.submit(Job(program, GRIDS)).result()
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert execution.outputs[0].tolist() == [[4]]


@pytest.mark.skipif(os.getuid() != 0, reason="only root has capabilities to drop")
def test_a_program_of_root_has_no_capabilities(executor):
    program = (
        "import ctypes\ndef transform(grid):\n    h = (ctypes.c_uint32 * 2)(0x20080522, 0)\n    d = (ctypes.c_uint32 * 6)()\n"
        "    libc = ctypes.CDLL(None)\n    libc.capget(h, d)\n    return [[1 if any(d) else 0]]"
    )
    assert executor.submit(Job(program, GRIDS)).result().outputs[0].tolist() == [[0]]


def test_lingering_threads_and_children_cannot_exist_after_the_answer(executor):
    program = "import os\ndef transform(grid):\n    try:\n        os.fork()\n    except OSError:\n        return [[1]]\n    return [[7]]"
    assert executor.submit(Job(program, GRIDS)).result().outputs[0].tolist() == [[1]]
    server = executor._service.pool.servers[0].process.pid
    children = subprocess.run(
        ["ps", "--ppid", str(server), "-o", "pid="], capture_output=True, text=True
    ).stdout
    assert children.strip() == ""
