"""The batch lane inside a child: many plain programs one after the other, watched for contamination.

Only programs that ``plain.Screen`` passes are run; the others are handed back for a process of their own, and
so is a program that runs out of memory. Records are written every few milliseconds, each time after comparing
the modules that programs can name with what they held before: had one changed after all, everything since the
last comparison is handed back as well, and this child ends.
"""

from __future__ import annotations

import builtins
import copy
import math
import operator
import random
import resource
import sys
import time
import types
from collections.abc import Callable

import numpy as np
from numpy import ndarray

from arcnb.programs import wire
from arcnb.programs.sandbox import child, plain
from arcnb.programs.sandbox.plain_names import MODULES

FLUSH_SECONDS = 0.008


class _GuardedArray(type):
    """Stands for ``np.ndarray``: good for annotations and ``isinstance``; making one asks for isolation.

    The real constructor takes a buffer, an offset and a type, and so reads any memory as anything.
    """

    calls = 0

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, ndarray)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, ndarray)

    def __getattr__(cls, name: str) -> object:
        return getattr(ndarray, name)

    def __call__(cls, *_: object, **__: object) -> None:
        _GuardedArray.calls += 1
        raise TypeError("np.ndarray() is not called in a batch")


def no_print(*_: object, **__: object) -> None:
    """What ``print`` does in a batch."""


class Batch:
    """Runs plain programs in this process; made in the server, used in its children."""

    def __init__(self, entry: str, names: dict[str, object], libraries: dict[str, types.ModuleType]) -> None:
        self.entry = entry
        self.screen = plain.Screen(libraries)
        self.names = names | {"__name__": "program", "__builtins__": vars(builtins) | {"print": no_print}}
        self.libraries = tuple(libraries.values())
        self.generators = _Generators()
        self.recursion_limit = sys.getrecursionlimit()

    def run(
        self,
        jobs: list,
        indices: list[int],
        progress: Callable[[int], None],
        descriptor: int,
        seconds: float = math.inf,
    ) -> None:
        """Run ``jobs[index]`` for every index, in order, and write a record each to ``descriptor``.

        ``progress(index)`` is called before each. A program that took longer than ``seconds``, what one input
        may take, is handed back: inputs are timed only where programs run alone. Returns early, without the
        rest, when this process is no longer as good as new.
        """
        np.ndarray = _GuardedArray("ndarray", (), {})
        memory = _Memory(self.libraries)
        buffered: list[bytes] = []
        held: list[int] = []
        clean = True
        flushed = time.monotonic()
        base = _peak_mb()
        for index in indices:
            started = time.monotonic()
            if started - flushed > FLUSH_SECONDS:
                if not memory.unchanged():
                    break
                child.write_all(descriptor, b"".join(buffered))
                buffered.clear()
                held.clear()
                flushed = started
            progress(index)
            verdict, cpu = self.run_one(*jobs[index])
            clean = verdict[0] != "memory"
            wall = time.monotonic() - started
            if clean and wall <= seconds:
                buffered.append(wire.encode_record(index, *verdict, wall, cpu, _peak_mb() - base))
            else:
                buffered.append(wire.encode_record(index, "isolate"))
            held.append(index)
            if not clean:
                break
        if not memory.unchanged():
            buffered = [wire.encode_record(index, "isolate") for index in held]
        child.write_all(descriptor, b"".join(buffered))

    def run_one(self, program: bytes, grids: list) -> tuple[child.Verdict, float]:
        """The verdict on one program, ``isolate`` if it is not for a batch, and its processor seconds."""
        cpu = time.thread_time()
        try:
            code = child.compile_program(program)
        except MemoryError as error:
            return child.failure("memory", error), 0.0
        except BaseException as error:
            return child.failure("syntax", error), time.thread_time() - cpu
        if not self.screen.is_plain(code):
            return ("isolate", (), None, None, None), 0.0
        calls = _GuardedArray.calls
        verdict = child.run_code(code, grids, self.entry, dict(self.names), _ignore)
        if sys.getrecursionlimit() != self.recursion_limit:
            sys.setrecursionlimit(self.recursion_limit)
        if b"random" in program or not program.isascii():  # identifiers may be spelt in full width
            self.generators.restore()
        if _GuardedArray.calls != calls:
            verdict = ("isolate", (), None, None, None)
        return verdict, time.thread_time() - cpu


class _Generators:
    """The random generators that programs share, and the state each program finds them in."""

    def __init__(self) -> None:
        self._state = random.getstate()
        self._numpy = sys.modules.get("numpy.random")
        self._numpy_state = self._numpy.get_state() if self._numpy else None

    def restore(self) -> None:
        random.setstate(self._state)
        if self._numpy:
            self._numpy.set_state(self._numpy_state)


class _Memory:
    """What the modules that plain programs can name hold, to see whether it is still the same."""

    def __init__(self, libraries: tuple[types.ModuleType, ...]) -> None:
        modules = [sys.modules[name] for name in sorted(MODULES) if name in sys.modules]
        self._modules = [(vars(module), dict(vars(module))) for module in {*modules, *libraries, builtins}]
        self._values = [(value, copy.copy(value)) for _, _, value in plain.mutable_values(libraries)]
        self._floating = np.geterr()

    def unchanged(self) -> bool:
        return (
            all(_same(now, before) for now, before in self._modules)
            and all(now == before for now, before in self._values)
            and np.geterr() == self._floating
        )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _same(now: dict, before: dict) -> bool:
    """Whether two dictionaries hold the very same objects under the same names."""
    return len(now) == len(before) and all(map(operator.is_, now.values(), before.values()))


def _ignore(_: int) -> None:
    """A batch is timed by program, not by input."""
