"""Only programs that can reach nothing shared are run in batches; what leads further goes alone."""

import collections
import copy
import itertools
import math
import os
import pickle
import random  # noqa: F401
import subprocess
import sys
import types
from unittest import mock

import numpy as np
import numpy.random
import pytest
import scipy.ndimage  # noqa: F401  (so that the screen knows them, as in a server of that kind)

from arcnb.programs import wire
from arcnb.programs.libraries import barc
from arcnb.programs.sandbox import batch, child, plain, plain_names


def server_screen() -> plain.Screen:
    """A screen built as in a server, where nothing but the standard library, numpy and scipy is loaded."""
    script = (
        "import pickle, random, sys, numpy.random, scipy.ndimage\n"
        "from arcnb.programs.libraries import barc\n"
        "from arcnb.programs.sandbox import batch\n"
        "from arcnb.programs.sandbox import child\n"
        "from arcnb.programs.sandbox import plain\n"
        "from arcnb.programs.sandbox import plain_names\n"
        "from arcnb.programs import wire\n"
        "pickle.dump(vars(plain.Screen({'common': barc})), sys.stdout.buffer)"
    )
    screen = plain.Screen.__new__(plain.Screen)
    vars(screen).update(pickle.loads(subprocess.check_output([sys.executable, "-c", script])))
    return screen


SCREEN = server_screen()

NOT_PLAIN = r"""
import os
import socket
import numpy.ctypeslib
from numpy import *
from os import path
from operator import attrgetter
from functools import wraps
np.load('x')
np.save
np.memmap
np.nditer
np.frombuffer
np.fromfile
np.ctypeslib
np.testing
np.f2py
np.core
np.lib.format
np.lib.stride_tricks.as_strided
np.set_printoptions()
np.seterr(all='raise')
np.sum = 3
del np.sum
np.new_attribute = 3
x.view(object)
x.resize(3, refcheck=False)
x.ctypes
x.data
x.tofile('a')
x.dump('a')
x.setflags(write=True)
x.dtype = object
().__class__
f.__globals__
f.__code__
f.__dict__
e.__traceback__
e.with_traceback
e.tb_frame
g.gi_frame
g.cr_frame
x.__array_interface__
__builtins__
__import__('os')
__loader__
__spec__
getattr(np, 'load')
setattr(np, 'a', 1)
delattr(np, 'sum')
vars(np)
dir(np)
globals()
locals()
eval('1')
exec('1')
compile('1', '', 'eval')
open('/x')
input()
exit()
quit()
breakpoint()
memoryview(b'')
type('X', (), {})
super()
help(np)
'{0.a}'.format(3)
'{a}'.format_map({})
operator.attrgetter('x')
operator.methodcaller('x')
functools.update_wrapper
functools.singledispatch
copy._deepcopy_dispatch
copy.dispatch_table
collections.sys
collections.abc.Sequence.register
typing.sys
typing.get_type_hints
string.Formatter
sys.modules
sys._getframe()
sys.exit()
sys.settrace(None)
sys.stdout
random_sprite(3, 3)
generate_sprite(3, 3, 'horizontal')
random.SystemRandom()
random._inst
random.os.system
random.setstate(s)
np.random.set_state(s)
np.random.mtrand
np.random.bit_generator
from random import SystemRandom
from typing import get_type_hints
from re import _compiler
re._compiler
from typing import *\nget_type_hints(f)
compile('x', '', 'exec')
__doc__.format()
Color.NOT_BLACK
Color.ALL_COLORS
Color.RED = 3
common.os.system
class A: pass
match np:\n    case object(sum=s): pass
def f():\n    global open\n    return open('x')
def f():\n    def g():\n        return [x.__class__ for x in y]\n    return g
lambda x: x.__class__
[x.__subclasses__ for x in y]
def f(x=().__class__): pass
def f():\n    try:\n        yield\n    finally:\n        x()
def f():\n    def g():\n        try: yield\n        except BaseException: x()
def f():\n    with x: yield
def f():\n    try: x()\n    except ValueError: yield
async def f():\n    try: await x\n    finally: y()
async def f():\n    async with x: yield
@np.load\ndef f(): pass
f'{x.__class__}'
with np.errstate(all='raise'): pass
""".strip().split("\n")

PLAIN = r"""
x: int = 3
if __name__ == "__main__": print(3)
from __future__ import annotations
import numpy as np, math
import numpy.linalg
import common
from common import *
from common import Color, flood_fill
common.flood_fill(grid, 0, 0, common.Color.RED)
from scipy.ndimage import label
from scipy import ndimage
from typing import List, Tuple, Dict, Optional
from collections import Counter, defaultdict, deque, namedtuple
import sys; sys.setrecursionlimit(10000)
def transform(g): return [[int(c) for c in r] for r in g]
def transform(grid):\n    try:\n        return grid\n    except Exception as e:\n        print(e.args)
def transform(grid):\n    return isinstance(grid, np.ndarray)
def transform(grid: np.ndarray) -> List[List[int]]:\n    return grid.tolist()
P = namedtuple('P', ['row', 'col']); p = P(1, 2); p.row + p.col
np.bool
np.int
np.no_such_function(3)
np.add.at(a, b, c)
np.logical_or.reduce(x)
np.linalg.norm(x)
[].never_heard_of
lambda x: x.T.tolist()
sorted(x, key=lambda t: (-t[1], t[0]))
def count(grid): return grid.sum()\ndef transform(grid): return count(grid)
match x:\n    case (h, w): pass\n    case _: pass
'%d' % 3
f'{x:>3}'
def transform(open): return open
def f():\n    yield from g()
def transform(g):\n    try: return list(x for x in g)\n    finally: y()
async def f(): await x
def _helper(): pass
lru_cache(maxsize=None)(f)
raise ValueError('no')
nonexistent
import numpy.random
from numpy import random
from typing import *
from common import random
import random
np.random.seed(3); np.random.rand()
random.seed(3); random.randint(1, 9)
rng = np.random.default_rng(0); rng.integers(3)
import re; re.compile('a').findall('b')
'A docstring.'
""".strip().split("\n")


def compiled(line: str) -> types.CodeType:
    return compile(line.replace("\\n", "\n"), "<program>", "exec")


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_what_leads_further_runs_alone(line):
    assert not SCREEN.is_plain(compiled(line))


@pytest.mark.parametrize("line", PLAIN)
def test_what_stays_inside_may_share_a_process(line):
    assert SCREEN.is_plain(compiled(line))


def test_names_behind_many_others_are_seen():
    names = "; ".join(f"a{n}" for n in range(300))
    assert SCREEN.is_plain(compiled(names + "; x.T"))
    assert not SCREEN.is_plain(compiled(names + "; x.__class__"))
    assert not SCREEN.is_plain(compiled(names + "; x.gi_frame"))


def test_no_safe_name_is_an_unsafe_builtin():
    unsafe = {
        "eval",
        "exec",
        "open",
        "compile",
        "getattr",
        "setattr",
        "vars",
        "type",
        "globals",
        "input",
        "format",
    }
    assert not unsafe & plain_names.ATTRIBUTES - {"compile"}


def test_no_safe_attribute_leads_from_a_safe_module_to_another_module():
    """Walk what plain programs can reach by attributes and see that no module outside the list is there."""
    start = [np, math, itertools, collections, copy, barc]
    seen, waiting = set(), [(module.__name__, module) for module in start]
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen or path.count(".") > 4:
            continue
        seen.add(id(value))
        if isinstance(value, types.ModuleType):
            name = value.__name__
            assert name in plain_names.MODULES or name.startswith(
                ("arcnb.programs.libraries.barc", "numpy.linalg")
            ), path
        for name in dir(value):
            if SCREEN.is_plain(compiled(f"x.{name}")):
                waiting.append((f"{path}.{name}", getattr(value, name, None)))


# ---------------------------------------------------------------- the tripwire behind the screen


def run_batch(sources: list[str], screen: bool, every: float = math.inf) -> list[wire.Record]:
    """Run sources through the batch lane in a child of ours, with or without the screen.

    Memory is compared, and records are written, after ``every`` seconds and at the end.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:  # whatever happens, this child must not go on with the tests
            sys.modules["common"] = barc
            batch.FLUSH_SECONDS = every
            with mock.patch.object(plain, "Screen", return_value=SCREEN):
                lane = batch.Batch("transform", {"np": np}, {"common": barc})
            if not screen:
                lane.screen.is_plain = lambda code: True
            grids = [(2, 2, bytes(4))]
            jobs = [(source.encode(), grids) for source in sources]
            lane.run(jobs, list(range(len(jobs))), lambda index: None, write)
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    records, at = [], 0
    while at < len(data):
        end = wire.end_of_record(data, at)
        records.append(wire.parse_record(data[at:end]))
        at = end
    return records


HONEST = "def transform(grid):\n    return grid"


@pytest.mark.parametrize(
    "change",
    [
        "np.sum = len",
        "np.stolen = 1",
        "del np.flip",
        "import common; common.flood_fill = None",
        "import common; common.Color.NOT_BLACK.append(3)",
        "import math; math.pi = 3",
        "np.seterr(all='ignore')",
        "import builtins; builtins.sum = max",
        "import sys; sys.setrecursionlimit(77)",
    ],
)
def test_a_change_that_passed_the_screen_sends_the_whole_batch_back(change):
    sources = [HONEST, f"def transform(grid):\n    {change}\n    return grid", HONEST]
    at_the_end = [record.status for record in run_batch(sources, screen=False)]
    each_time = [record.status for record in run_batch(sources, screen=False, every=0.0)]
    if "recursion" in change:  # this one is simply put back
        assert at_the_end == each_time == ["ok"] * 3
    else:
        assert at_the_end == ["isolate"] * 3
        assert each_time == ["ok", "isolate"]  # this process ends; the third is run by another


def test_a_batch_hands_back_what_is_not_plain_and_runs_the_rest():
    sources = [HONEST, "import os\n" + HONEST, "x = (", HONEST]
    records = run_batch(sources, screen=True)
    assert [record.status for record in records] == ["ok", "isolate", "syntax", "ok"]


@pytest.mark.parametrize(
    "body",
    [
        "np.ndarray((4,), dtype=object, buffer=grid)",
        "A = np.ndarray; A((2, 2))",
        "next(map(np.ndarray, [(1,)]))",
        "try: np.ndarray((1,))\n    except BaseException: pass",
    ],
)
def test_an_array_made_from_raw_memory_is_not_made_in_a_batch(body):
    (record,) = run_batch([f"def transform(grid):\n    {body}\n    return grid"], screen=True)
    assert record.status == "isolate"


def test_output_bytes_keep_every_integer_type():
    for kind in "bBhHiIlLqQfd":
        array = np.array([[0, 9], [3, 4]], dtype=kind)
        assert child.output_bytes(array) == b"\x02\x02\x00\x09\x03\x04"
    for kind in (">i2", ">i4", ">i8", ">u2", ">u8", ">f8"):
        array = np.array([[0, 9], [3, 4]], dtype=kind)
        assert child.output_bytes(array) == b"\x02\x02\x00\x09\x03\x04"
        with pytest.raises(child.OutputError):
            child.output_bytes(array + np.array(256, dtype=kind).astype(kind))
    assert child.output_bytes(np.array([[1, 2], [3, 4]]).T) == b"\x02\x02\x01\x03\x02\x04"
    for wrong in (256, -1, 10, 2**63):
        with pytest.raises((child.OutputError, OverflowError)):
            child.output_bytes(np.array([[wrong]]))
