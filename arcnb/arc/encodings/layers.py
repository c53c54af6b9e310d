"""The layers that grid encodings are built of; `encodings` names and describes them.

A layer writes a grid as text and reads lines back as rows of colours. Wrapping layers change the lines and
leave the rest to their inner layer, which knows from each `Line` where in the original text it stands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from arcnb.arc.grids import Grid
from arcnb.errors import ArcnbError

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


class Layer(Protocol):
    """One encoding of the registry: writes a grid as text, reads lines into rows of colours."""

    def write(self, grid: Grid) -> str: ...
    def read(self, lines: list[Line], strict: bool) -> Rows: ...


@dataclass(frozen=True)
class Minimal:
    def write(self, grid: Grid) -> str:
        return "\n".join("".join(map(str, row)) for row in grid.tolist())

    def read(self, lines: list[Line], strict: bool) -> Rows:
        return [(line, [_digit(line, c, i) for i, c in enumerate(line.text)]) for line in lines]


@dataclass(frozen=True)
class Separated:
    separator: str

    def __post_init__(self):
        if not self.separator or re.search(r"[\d\n]", self.separator):
            raise ArcnbError(f"a separator is text without digits and line breaks, not {self.separator!r}")

    def write(self, grid: Grid) -> str:
        return "\n".join(self.separator.join(map(str, row)) for row in grid.tolist())

    def read(self, lines: list[Line], strict: bool) -> Rows:
        return [(line, self._read_line(line, strict)) for line in lines]

    def _read_line(self, line: Line, strict: bool) -> list[int]:
        row, offset = [], 0
        for cell in line.text.split(self.separator):
            row.append(_digit(line, cell if strict else cell.strip(), offset))
            offset += len(cell) + len(self.separator)
        return row


@dataclass(frozen=True)
class Repeat:
    n: int = 3

    def __post_init__(self):
        if self.n < 1:
            raise ArcnbError(f"digits are repeated 1 or more times, not {self.n}")

    def write(self, grid: Grid) -> str:
        return "\n".join("".join(str(cell) * self.n for cell in row) for row in grid.tolist())

    def read(self, lines: list[Line], strict: bool) -> Rows:
        return [(line, self._read_line(line, strict)) for line in lines]

    def _read_line(self, line: Line, strict: bool) -> list[int]:
        starts = range(0, len(line.text), self.n)
        for i in starts if strict else ():
            run = line.text[i : i + self.n]
            if run != run[0] * self.n:
                raise line.error(f"{run!r} is not one digit {self.n} times", i)
        return [_digit(line, line.text[i], i) for i in starts]


@dataclass(frozen=True)
class ColorNames:
    def write(self, grid: Grid) -> str:
        return "\n".join(" ".join(COLOR_NAMES[cell] for cell in row) for row in grid.tolist())

    def read(self, lines: list[Line], strict: bool) -> Rows:
        return [(line, self._read_line(line)) for line in lines]

    def _read_line(self, line: Line) -> list[int]:
        row = []
        for word in re.finditer(r"\S+", line.text):
            if word[0] not in COLOR_NAMES:
                raise line.error(f"{word[0]!r} is not one of {' '.join(COLOR_NAMES)}", word.start())
            row.append(COLOR_NAMES.index(word[0]))
        return row


@dataclass(frozen=True)
class Symbols:
    inner: Layer

    def write(self, grid: Grid) -> str:
        return self.inner.write(grid).translate(str.maketrans(_DIGITS, SYMBOLS))

    def read(self, lines: list[Line], strict: bool) -> Rows:
        table = str.maketrans(SYMBOLS, _DIGITS)
        if strict:  # a plain digit is no symbol; one outside the grid is spoilt as well, and not missed
            table |= str.maketrans(_DIGITS, _NO_DIGIT * len(_DIGITS))
        return self.inner.read([line._replace(text=line.text.translate(table)) for line in lines], strict)


@dataclass(frozen=True)
class RowNumbers:
    inner: Layer

    def write(self, grid: Grid) -> str:
        return "\n".join(f"{i} {line}" for i, line in enumerate(self.inner.write(grid).split("\n")))

    def read(self, lines: list[Line], strict: bool) -> Rows:
        return self.inner.read([self._unnumbered(line, i, strict) for i, line in enumerate(lines)], strict)

    def _unnumbered(self, line: Line, expected: int, strict: bool) -> Line:
        number, space, _ = line.text.partition(" ")
        if not space:
            raise line.error("no row number and space at the start of the line")
        if strict and number != str(expected):
            raise line.error(f"row number {number!r} instead of {expected}")
        return line.after(len(number) + 1)


@dataclass(frozen=True)
class CodeBlock:
    inner: Layer

    def write(self, grid: Grid) -> str:
        return f"{_FENCE}grid\n{self.inner.write(grid)}\n{_FENCE}"

    def read(self, lines: list[Line], strict: bool) -> Rows:
        return self.inner.read(_fenced(lines, r"grid\s*$", "grid", strict)[1], strict)


@dataclass(frozen=True)
class Shape:
    inner: Layer

    def write(self, grid: Grid) -> str:
        return f"{_FENCE}grid shape: {grid.shape[0]}x{grid.shape[1]}\n{self.inner.write(grid)}\n{_FENCE}"

    def read(self, lines: list[Line], strict: bool) -> Rows:
        opening, body = _fenced(lines, r"grid shape:", "grid shape: {rows}x{columns}", strict)
        rows = self.inner.read(body, strict)
        stated = opening.text.partition("grid shape:")[2].strip()
        found = f"{len(rows)}x{len(rows[0][1])}"
        if strict and stated != found:
            raise opening.error(
                f"the stated shape is {stated}, the grid has {found}", opening.text.find(stated)
            )
        return rows


def stripped(lines: list[Line]) -> list[Line]:
    """The lines without blank ones around them and without blank space at either end of the text."""
    blank = [not line.text.strip() for line in lines]
    while blank and blank[-1]:
        blank.pop()
    first = next((i for i, is_blank in enumerate(blank) if not is_blank), len(blank))
    kept = [line._replace(text=line.text.rstrip()) for line in lines[first : len(blank)]]
    if kept:
        kept[0] = kept[0].after(len(kept[0].text) - len(kept[0].text.lstrip()))
    return kept


def _digit(line: Line, text: str, offset: int) -> int:
    if len(text) != 1 or text not in _DIGITS:
        raise line.error(f"{text!r} is not a colour 0..9", offset)
    return int(text)


def _fenced(lines: list[Line], tag: str, name: str, strict: bool) -> tuple[Line, list[Line]]:
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
        if strict:
            raise lines[opening].error("the fence is never closed")
    body = stripped(body)
    if not body:
        raise lines[opening].error("no grid, the fence is empty")
    return lines[opening], body
