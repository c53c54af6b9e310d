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
or an `ArcnbError` with line and column. `strict=False` forgives an unclosed fence, a wrong stated shape
or row number, uneven repeats, digits among symbols and blanks around separated digits.
"""

from __future__ import annotations

import ast
import difflib
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache

from arcnb.arc.encodings import layers
from arcnb.arc.encodings.layers import Layer, Line, Rows, stripped
from arcnb.arc.grids import Grid, as_grid
from arcnb.errors import ArcnbError

__all__ = ["ENCODINGS", "GridEncoding", "grid_encoding"]


@dataclass(frozen=True)
class GridEncoding:
    """What `grid_encoding` returns; `spec` is the text it was made from."""

    spec: str
    layer: Layer

    def to_text(self, grid: Grid) -> str:
        """The grid as text, without a final line break."""
        return self.layer.write(as_grid(grid))

    def to_grid(self, text: str, strict: bool = True) -> Grid:
        """The grid in `text`; blank space around it does not count. Raises `ArcnbError`."""
        lines = stripped([Line(row, i, 1) for i, row in enumerate(text.split("\n"), 1)])
        if not lines:
            raise ArcnbError("line 1, column 1: no grid, the text is empty")
        return _as_grid(self.layer.read(lines, strict))


# Adding an encoding: a layer (a dataclass with write, read and at most one field) and its entry here.
ENCODINGS: dict[str, type[Layer]] = {
    "minimal": layers.Minimal,
    "separated": layers.Separated,
    "repeat": layers.Repeat,
    "color_names": layers.ColorNames,
    "symbols": layers.Symbols,
    "row_numbers": layers.RowNumbers,
    "code_block": layers.CodeBlock,
    "shape": layers.Shape,
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


@lru_cache(64)  # every prompt asks for its encoding
def grid_encoding(spec: str) -> GridEncoding:
    """The encoding that `spec` describes; raises `ArcnbError` naming what is wrong in it."""
    try:
        tree = ast.parse(spec.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ArcnbError(f"encoding {spec!r}: not of the form name or name(parameter) ({error})") from None
    encoding = GridEncoding(spec, _layer(tree, spec))
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


def _layer(node: ast.expr, spec: str) -> Layer:
    function, given = (node.func, _arguments(node)) if isinstance(node, ast.Call) else (node, [])
    if not isinstance(function, ast.Name):
        raise ArcnbError(f"encoding {spec!r}: {ast.unparse(node)} is not a name or name(parameter)")
    name = _LONG_NAMES.get(function.id, function.id)
    if name not in ENCODINGS:
        near = difflib.get_close_matches(function.id, [*ENCODINGS, *_LONG_NAMES], n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ENCODINGS)}"
        raise ArcnbError(f"encoding {spec!r}: no encoding {function.id!r}; {hint}")
    parameters = fields(ENCODINGS[name])
    if len(given) > len(parameters):
        raise ArcnbError(f"encoding {spec!r}: {name} takes {len(parameters) or 'no'} parameters")
    if len(given) < len(parameters) and parameters[0].default is MISSING:
        raise ArcnbError(f"encoding {spec!r}: {name} needs its parameter {parameters[0].name}")
    values = [_value(argument, parameters[0], name, spec) for argument in given]
    try:
        return ENCODINGS[name](*values)
    except ArcnbError as error:
        raise ArcnbError(f"encoding {spec!r}: {error}") from None


def _arguments(call: ast.Call) -> list[ast.keyword]:
    return [ast.keyword(arg=None, value=value) for value in call.args] + call.keywords


def _value(argument: ast.keyword, parameter, name: str, spec: str) -> str | int | Layer:
    if argument.arg not in (None, parameter.name):
        raise ArcnbError(f"encoding {spec!r}: {name} has no parameter {argument.arg}, only {parameter.name}")
    if parameter.type == "Layer":
        return _layer(argument.value, spec)
    value = argument.value.value if isinstance(argument.value, ast.Constant) else None
    if type(value).__name__ != parameter.type:
        given = ast.unparse(argument.value)
        raise ArcnbError(f"encoding {spec!r}: {parameter.name} of {name} is {parameter.type}, not {given}")
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
