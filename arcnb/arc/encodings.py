"""Grid encodings: how a grid is written in a prompt and read back from a completion.

An encoding is chosen by a spec, never evaluated as code: `name`, `name(parameter)` or `name(inner)`, for
instance `shape(row_numbers(minimal))` or `separated(" ")`. The longer class-like names are accepted too.
Layers that cannot be told apart when read, like a fence in a fence, are refused.

    minimal, MinimalGridEncoder              digits, one row a line
    separated(s), GridWithSeparationEncoder  digits joined by s
    repeat(n=3), RepeatNumberEncoder         each digit n times
    color_names, ColorNameEncoder            Black Blue Red Green Yellow Gray Pink Orange Purple Brown
    symbols(inner), ReplaceNumberEncoder     the inner text with ñ ò ÷ û ą ć ď ę Ě Ğ for 0..9, everywhere
    row_numbers(inner), RowNumberEncoder     each inner line after its number, from 0, and a space
    code_block(inner), GridCodeBlockEncoder  in a fence tagged grid
    shape(inner), GridShapeEncoder           in a fence tagged "grid shape: 2x3"

Reading takes the first fence of its kind and leaves the text around it alone. What is read is a valid grid
or an `ArcnbError` with line and column; nothing that deviates from what is written is forgiven.
"""

from __future__ import annotations

import ast
import re
from dataclasses import MISSING, Field, dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

from arcnb.arc.grids import Grid, as_grid
from arcnb.errors import ArcnbError, nearest
from arcnb.plans import option
from arcnb.values import ReadBy

COLOR_NAMES = ("Black", "Blue", "Red", "Green", "Yellow", "Gray", "Pink", "Orange", "Purple", "Brown")
SYMBOLS = "ñò÷ûąćďęĚĞ"
_DIGITS = "0123456789"
_FENCE = "```"
_NO_DIGIT = "\ufffd"


class Line(NamedTuple):
    """A piece of a line of the text being read, and where its first character stands."""

    text: str
    line: int
    column: int

    def error(self, message: str, offset: int = 0) -> ArcnbError:
        return ArcnbError(f"line {self.line}, column {self.column + offset}: {message}")

    def after(self, n: int) -> Line:
        return Line(self.text[n:], self.line, self.column + n)


Rows = list[tuple[Line, list[int]]]


class Layer:
    """Writes a grid as text and reads lines back as rows of colours, both row by row if nothing else is said.

    A wrapping layer changes the lines and leaves the rest to its inner layer, which knows from each `Line`
    where in the original text it stands.
    """

    def write(self, grid: Grid) -> str:
        return "\n".join(map(self.write_row, grid.tolist()))

    def read(self, lines: list[Line]) -> Rows:
        return [(line, self.read_row(line)) for line in lines]

    def write_row(self, row: list[int]) -> str:
        raise NotImplementedError

    def read_row(self, line: Line) -> list[int]:
        raise NotImplementedError


@dataclass(frozen=True)
class Minimal(Layer):
    def write_row(self, row: list[int]) -> str:
        return "".join(map(str, row))

    def read_row(self, line: Line) -> list[int]:
        return [_digit(line, c, i) for i, c in enumerate(line.text)]


@dataclass(frozen=True)
class Separated(Layer):
    separator: str

    def __post_init__(self):
        if not self.separator or re.search(r"[\d\n]", self.separator):
            raise ArcnbError(f"a separator is text without digits and line breaks, not {self.separator!r}")

    def write_row(self, row: list[int]) -> str:
        return self.separator.join(map(str, row))

    def read_row(self, line: Line) -> list[int]:
        row, offset = [], 0
        for cell in line.text.split(self.separator):
            row.append(_digit(line, cell, offset))
            offset += len(cell) + len(self.separator)
        return row


@dataclass(frozen=True)
class Repeat(Layer):
    n: int = 3

    def __post_init__(self):
        if self.n < 1:
            raise ArcnbError(f"digits are repeated 1 or more times, not {self.n}")

    def write_row(self, row: list[int]) -> str:
        return "".join(str(cell) * self.n for cell in row)

    def read_row(self, line: Line) -> list[int]:
        starts = range(0, len(line.text), self.n)
        for i in starts:
            run = line.text[i : i + self.n]
            if run != run[0] * self.n:
                raise line.error(f"{run!r} is not one digit {self.n} times", i)
        return [_digit(line, line.text[i], i) for i in starts]


@dataclass(frozen=True)
class ColorNames(Layer):
    def write_row(self, row: list[int]) -> str:
        return " ".join(COLOR_NAMES[cell] for cell in row)

    def read_row(self, line: Line) -> list[int]:
        row = []
        for word in re.finditer(r"\S+", line.text):
            if word[0] not in COLOR_NAMES:
                raise line.error(f"{word[0]!r} is not one of {' '.join(COLOR_NAMES)}", word.start())
            row.append(COLOR_NAMES.index(word[0]))
        return row


@dataclass(frozen=True)
class Wrapping(Layer):
    inner: Layer


class Symbols(Wrapping):
    def write(self, grid: Grid) -> str:
        return self.inner.write(grid).translate(str.maketrans(_DIGITS, SYMBOLS))

    def read(self, lines: list[Line]) -> Rows:
        # A plain digit is no symbol; one outside the grid is spoilt as well, and not missed.
        table = str.maketrans(SYMBOLS + _DIGITS, _DIGITS + _NO_DIGIT * len(_DIGITS))
        return self.inner.read([line._replace(text=line.text.translate(table)) for line in lines])


class RowNumbers(Wrapping):
    def write(self, grid: Grid) -> str:
        return "\n".join(f"{i} {line}" for i, line in enumerate(self.inner.write(grid).split("\n")))

    def read(self, lines: list[Line]) -> Rows:
        return self.inner.read([self._unnumbered(line, i) for i, line in enumerate(lines)])

    def _unnumbered(self, line: Line, expected: int) -> Line:
        number, space, _ = line.text.partition(" ")
        if not space:
            raise line.error("no row number and space at the start of the line")
        if number != str(expected):
            raise line.error(f"row number {number!r} instead of {expected}")
        return line.after(len(number) + 1)


class CodeBlock(Wrapping):
    def write(self, grid: Grid) -> str:
        return f"{_FENCE}grid\n{self.inner.write(grid)}\n{_FENCE}"

    def read(self, lines: list[Line]) -> Rows:
        return self.inner.read(_fenced(lines, r"grid\s*$", "grid")[1])


class StatedShape(Wrapping):
    def write(self, grid: Grid) -> str:
        return f"{_FENCE}grid shape: {grid.shape[0]}x{grid.shape[1]}\n{self.inner.write(grid)}\n{_FENCE}"

    def read(self, lines: list[Line]) -> Rows:
        opening, body = _fenced(lines, r"grid shape:", "grid shape: {rows}x{columns}")
        rows = self.inner.read(body)
        stated = opening.text.partition("grid shape:")[2].strip()
        found = f"{len(rows)}x{len(rows[0][1])}"
        if stated != found:
            place = opening.text.find(stated)
            raise opening.error(f"the stated shape is {stated}, the grid has {found}", place)
        return rows


def _stripped(lines: list[Line]) -> list[Line]:
    """The lines without blank ones around them and without blank space at either end of the text."""
    kept = [line._replace(text=line.text.rstrip()) for line in lines]
    while kept and not kept[-1].text:
        kept.pop()
    while kept and not kept[0].text:
        kept.pop(0)
    if kept:
        kept[0] = kept[0].after(len(kept[0].text) - len(kept[0].text.lstrip()))
    return kept


def _digit(line: Line, text: str, offset: int) -> int:
    if len(text) != 1 or text not in _DIGITS:
        raise line.error(f"{text!r} is not a color 0..9", offset)
    return int(text)


def _fenced(lines: list[Line], tag: str, name: str) -> tuple[Line, list[Line]]:
    """The opening line of the first fence whose tag matches, and the lines up to its end."""
    opening = next((i for i, line in enumerate(lines) if re.search(_FENCE + tag, line.text)), None)
    if opening is None:
        raise lines[0].error(f"no fence {_FENCE}{name}")
    body = []
    for line in lines[opening + 1 :]:
        before, fence, _ = line.text.partition(_FENCE)
        if fence:
            body.append(line._replace(text=before))
            break
        body.append(line)
    else:
        raise lines[opening].error("the fence is never closed")
    body = _stripped(body)
    if not body:
        raise lines[opening].error("no grid, the fence is empty")
    return lines[opening], body


@dataclass(frozen=True)
class GridEncoding:
    """What `grid_encoding` returns."""

    layer: Layer

    def to_text(self, grid: Grid) -> str:
        """The grid as text, without a final line break."""
        return self.layer.write(as_grid(grid))

    def to_grid(self, text: str) -> Grid:
        """The grid in `text`; blank space around it does not count. Raises `ArcnbError`."""
        lines = _stripped([Line(row, i, 1) for i, row in enumerate(text.split("\n"), 1)])
        if not lines:
            raise ArcnbError("line 1, column 1: no grid, the text is empty")
        return _as_grid(self.layer.read(lines))


# Adding an encoding: a layer with at most one field and its entry here.
ENCODINGS: dict[str, type[Layer]] = {
    "minimal": Minimal,
    "separated": Separated,
    "repeat": Repeat,
    "color_names": ColorNames,
    "symbols": Symbols,
    "row_numbers": RowNumbers,
    "code_block": CodeBlock,
    "shape": StatedShape,
}
_LONG_NAMES = {
    "MinimalGridEncoder": "minimal",
    "GridWithSeparationEncoder": "separated",
    "RepeatNumberEncoder": "repeat",
    "ColorNameEncoder": "color_names",
    "ReplaceNumberEncoder": "symbols",
    "RowNumberEncoder": "row_numbers",
    "GridCodeBlockEncoder": "code_block",
    "GridShapeEncoder": "shape",
}


SPEC = ReadBy("arcnb.arc.encodings:grid_encoding")


def encoding_option(free: bool = False) -> Any:
    """A plan's option of how grids are written. free: it may be another one where a run goes on."""
    return option("", 'text form of grids; "" takes the template\'s own', free=free, within=SPEC)


@lru_cache(64)  # every prompt asks for its encoding
def grid_encoding(spec: str) -> GridEncoding:
    """The encoding that `spec` describes; raises `ArcnbError` naming what is wrong in it."""
    try:
        encoding = GridEncoding(_layer(ast.parse(spec.strip(), mode="eval").body))
    except ArcnbError as error:
        raise ArcnbError(f"encoding {spec!r}: {error}") from None
    except (SyntaxError, ValueError) as error:
        raise ArcnbError(f"encoding {spec!r}: not of the form name or name(parameter) ({error})") from None
    if not _reads_what_it_writes(encoding):
        raise ArcnbError(f"encoding {spec!r}: it cannot read what it writes, its layers spoil each other")
    return encoding


def _reads_what_it_writes(encoding: GridEncoding) -> bool:
    """Whether a grid with every color and more rows than digits comes back; a fence in a fence ends both."""
    grid = as_grid([[(row + column) % 10 for column in range(10)] for row in range(12)])
    try:
        return encoding.to_grid(encoding.to_text(grid)).tolist() == grid.tolist()
    except ArcnbError:
        return False


def _layer(node: ast.expr) -> Layer:
    function, given = node, []
    if isinstance(node, ast.Call):
        function = node.func
        given = [(None, value) for value in node.args] + [(k.arg, k.value) for k in node.keywords]
    if not isinstance(function, ast.Name):
        raise ArcnbError(f"{ast.unparse(node)} is not a name or name(parameter)")
    name = _LONG_NAMES.get(function.id, function.id)
    if name not in ENCODINGS:
        raise ArcnbError(f"no encoding {function.id!r}{nearest(function.id, [*ENCODINGS, *_LONG_NAMES])}")
    parameters = fields(ENCODINGS[name])
    if len(given) > len(parameters):
        raise ArcnbError(f"{name} takes {len(parameters) or 'no'} parameters")
    if len(given) < len(parameters) and parameters[0].default is MISSING:
        raise ArcnbError(f"{name} needs its parameter {parameters[0].name}")
    return ENCODINGS[name](*(_value(*argument, parameters[0], name) for argument in given))


def _value(given_name: str | None, node: ast.expr, parameter: Field, name: str) -> str | int | Layer:
    if given_name not in (None, parameter.name):
        raise ArcnbError(f"{name} has no parameter {given_name}, only {parameter.name}")
    if parameter.type == "Layer":
        return _layer(node)
    value = node.value if isinstance(node, ast.Constant) else None
    if type(value).__name__ != parameter.type:
        raise ArcnbError(f"{parameter.name} of {name} is {parameter.type}, not {ast.unparse(node)}")
    return value


def _as_grid(rows: Rows) -> Grid:
    width = len(rows[0][1])
    for line, row in rows:
        if not row:
            raise line.error("a row without cells")
        if len(row) != width:
            raise line.error(f"ragged, this row has {len(row)} cells but the first has {width}")
    try:
        return as_grid([row for _, row in rows], "the grid read")
    except ArcnbError as error:
        raise rows[0][0].error(str(error)) from None
