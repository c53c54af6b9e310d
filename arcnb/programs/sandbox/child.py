"""What happens inside the sandboxed child: compile a program, call it on its inputs, write the verdict.

Nothing here is trusted by anyone outside: a program may have replaced any of it by the time it runs. The
server checks the length of what arrives, the executor checks every cell again (``wire.parse_record``).
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import types
from collections.abc import Callable, Sequence

import numpy as np
from numpy import ndarray

from arcnb.programs import wire

PROGRAM_FILE = "<program>"
MAX_SIDE = wire.MAX_SIDE

_LOW = sys.byteorder == "big"  # whether the low byte of a number is its last

# Address space that nobody touches, given back when a program has used up its own, so that there is room for
# the verdict. Private: no child finds there what another wrote.
SPARE = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
_NO_REASON = "error return without exception set"  # what the interpreter says where a frame found no memory

# Status, outputs as grids of the wire, error type, error message, failing line.
Verdict = tuple[str, Sequence[bytes], str | None, str | None, int | None]
Progress = Callable[[int], None]


class OutputError(ValueError):
    """A returned value that is no grid."""


def new_namespace(names: dict) -> dict:
    """A fresh module for a program to run in, registered because dataclasses look their module up."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    module.__dict__.update(names)
    return module.__dict__


def input_array(grid: tuple[int, int, bytes]) -> ndarray:
    """An input as programs get it: int64, writable, their own."""
    height, width, cells = grid
    return np.frombuffer(cells, np.uint8).reshape(height, width).astype(np.int64)


def output_bytes(value: object) -> bytes:
    """A returned value as height, width and cells, or ``OutputError``.

    Arrays and nested lists or tuples of integers 0..9 pass, 2-D and 1..30 a side; integral floats pass
    because ``np.zeros`` makes floats, and booleans are 0 and 1, as in ``grid > 0``. Fractions, NaN, strings
    and None are refused: such a grid can never be right, and casting would hide it (256 becomes 0, -0.9
    becomes 0).
    """
    if isinstance(value, ndarray):
        array = value if type(value) is ndarray else np.array(value, subok=False)
        if array.dtype.kind == "O":
            value = array.tolist()
        else:
            return _array_bytes(array)
    if type(value) not in (list, tuple):
        raise OutputError(f"returned {type(value).__name__}, not a grid")
    rows = [row.tolist() if isinstance(row, ndarray) else row for row in value]
    if not 0 < len(rows) <= MAX_SIDE:
        raise OutputError(f"returned {len(rows)} rows, not 1..{MAX_SIDE}")
    kinds: set[type] = set()
    for row in rows:
        if type(row) not in (list, tuple):
            raise OutputError(f"a row is {type(row).__name__}, not a list of cells")
        if len(row) != len(rows[0]):
            raise OutputError(f"rows of {len(rows[0])} and of {len(row)} cells")
        kinds.update(map(type, row))
    width = len(rows[0])
    if not 0 < width <= MAX_SIDE:
        raise OutputError(f"returned rows of {width} cells, not 1..{MAX_SIDE}")
    cells = list(itertools.chain.from_iterable(rows))
    if kinds != {int}:
        cells = [_cell(cell) for cell in cells]
    if min(cells) < 0 or max(cells) > 9:
        raise OutputError(f"cell {next(c for c in cells if not 0 <= c <= 9)} is outside 0..9")
    return bytes((len(rows), width)) + bytes(cells)


def _array_bytes(array: ndarray) -> bytes:
    kind = array.dtype.kind
    if array.ndim != 2:
        raise OutputError(f"returned an array of {array.ndim} dimensions, not 2")
    height, width = array.shape
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE):
        raise OutputError(f"returned a {height}x{width} array, sides must be 1..{MAX_SIDE}")
    if kind not in "iufb":
        raise OutputError(f"returned an array of {array.dtype.name}, not of integers")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if kind == "f":
        if not (array.min() >= 0 and array.max() <= 9):
            raise OutputError(f"cells {array.min()}..{array.max()} are outside 0..9")
        whole = array.astype(np.uint8)
        if not (whole == array).all():
            raise OutputError("cells with fractions")
        return bytes((height, width)) + whole.tobytes()
    # By bytes, which needs less of numpy than its own arithmetic: the low one of each cell is a digit, and
    # every zero that is not a cell is one of the others.
    every = array.tobytes()
    cells = every[_LOW * (array.itemsize - 1) :: array.itemsize]
    if cells.translate(None, wire.DIGITS) or every.count(0) - cells.count(0) != len(every) - len(cells):
        raise OutputError(f"cells {array.min()}..{array.max()} are outside 0..9")
    return bytes((height, width)) + cells


def _cell(value: object) -> int:
    if isinstance(value, ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, int | float | np.bool_ | np.integer | np.floating):
        raise OutputError(f"a cell is {type(value).__name__}, not an integer")
    if value != value or value in (float("inf"), float("-inf")) or int(value) != value:
        raise OutputError(f"cell {value} is no integer")
    return int(value)


def failure(error: BaseException, status: str | None = None) -> Verdict:
    """The verdict on an exception, whose text may be of hostile making; ``status`` where that is known.

    May raise ``MemoryError`` itself where nothing is left: that is a verdict, too (``forks``).
    """
    if type(error) is SystemError and error.args == (_NO_REASON,):
        error = MemoryError().with_traceback(error.__traceback__)
    if isinstance(error, MemoryError):
        status = status or "memory"
        SPARE.close()
    status = status or ("unsafe" if isinstance(error, PermissionError) else "error")
    try:
        message = str(error)
    except BaseException:
        message = "(no message)"
    line = error.lineno if isinstance(error, SyntaxError) and status == "syntax" else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == PROGRAM_FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return status, (), str(type(error).__name__), str(message), line if isinstance(line, int) else None


def compile_program(program: bytes) -> types.CodeType:
    """Source to code. Decoded first, so that a coding cookie in a comment cannot turn comments into code."""
    return compile(program.decode("utf-8", "surrogatepass"), PROGRAM_FILE, "exec", dont_inherit=True)


def run_code(code: types.CodeType, grids: list, namespace: dict, progress: Progress) -> Verdict:
    """Execute a program's module, then call its entry function on every grid.

    ``progress(number)`` is called before input ``number`` (from 1), so that the parent can time the call.
    """
    try:
        exec(code, namespace)
        transform = namespace.get(wire.ENTRY)
        if not callable(transform):
            raise NameError(f"the program does not define {wire.ENTRY}", name=wire.ENTRY)
    except BaseException as error:
        return failure(error)
    outputs = []
    for number, grid in enumerate(grids, 1):
        progress(number)
        try:
            value = transform(grid)
        except BaseException as error:
            return failure(error)
        try:
            outputs.append(output_bytes(value))
        except MemoryError as error:
            return failure(error)
        except OutputError as error:
            return "invalid_output", (), "OutputError", f"input {number}: {error}", None
        except BaseException as error:
            return (
                "invalid_output",
                (),
                type(error).__name__,
                f"input {number}: the output cannot be read",
                None,
            )
    return "ok", outputs, None, None, None


def run_alone(program: bytes, grids: list, namespace: dict, progress: Progress) -> Verdict:
    """The verdict on one program in a process of its own, whose ``namespace`` nobody else uses."""
    try:
        code = compile_program(program)
    except BaseException as error:  # also the MemoryError of a parser that is nested too deeply
        return failure(error, "syntax")
    return run_code(code, grids, namespace, progress)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything; a pipe takes at most its capacity at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
