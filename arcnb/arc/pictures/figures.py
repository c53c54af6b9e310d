"""Pictures of grids, and of pairs of them, as SVG and HTML text; nothing to install, nothing to load.

They look right in JupyterLab, in an exported page and on paper, light or dark: text takes the colour of the
page around it, grids bring their own colours (arcnb.arc.pictures.palettes) and a grey line between cells.
Every cell says its row, column and value when the mouse rests on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

import numpy as np

from arcnb.arc.grids import Grid, grid_size
from arcnb.arc.pictures.palettes import PALETTES, palette_name

NamedPairs = Sequence[tuple[str, Grid, Grid | None]]  # name, input, expected output if it is known

_LINE = "#666"  # between cells: seen beside black as well as beside white
_PICTURE = 210  # pixels: a grid is drawn about this large, in cells of at least 6 and at most 24 pixels
_ROW_PICTURE = 190  # the same where input, expected, produced and difference stand in a row
SMALL_PICTURE = 90  # and where several such rows stand side by side
_READ_OUT = 100  # cells of a grid whose values its alternative text says

STYLE = (
    "<style>"
    ".arcnb{color:inherit;font:13px/1.4 system-ui,sans-serif}"
    ".arcnb svg{display:block;flex:none;max-width:100%;height:auto;print-color-adjust:exact}"
    ".arcnb pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.4em 0}.arcnb h4{margin:.4em 0}"
    ".arcnb-cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28em),1fr));gap:1em 2em}"
    ".arcnb-card{break-inside:avoid;min-width:0}"
    "@media(max-width:600px){.arcnb-flow>span{display:none}}"
    ".arcnb-head{margin:.3em 0;font-weight:600}"
    ".arcnb-row{display:flex;flex-wrap:wrap;gap:10px 26px;margin:.4em 0}"
    ".arcnb-pair{break-inside:avoid;print-color-adjust:exact}"
    ".arcnb-flow{display:flex;flex-wrap:wrap;align-items:center;gap:8px}"
    ".arcnb-step{align-self:flex-start}.arcnb-cap{opacity:.6;font-size:11px}"
    ".arcnb-note{opacity:.75;margin:2px 0}"
    ".arcnb-unknown{border:1px dashed currentColor;opacity:.6;padding:.8em 1.1em}"
    "</style>"
)
_ARROW = '<span aria-hidden="true">&rarr;</span>'
_UNKNOWN = '<div class="arcnb-unknown" title="unknown">?</div>'
_NO_OUTPUT = '<div class="arcnb-unknown">no output</div>'


def grid_svg(grid: Grid, compare: Grid | None = None, cell: int | None = None, hover: bool = True) -> str:
    """One grid as an SVG element.

    compare: the expected grid; cells that differ get a dot and say what was expected. A grid of another
    shape than `compare` gets no marks, for no cell has a counterpart. cell: pixels a cell, by default what
    suits the size. hover: False leaves out cell titles and lines, for small pictures in large numbers.
    """
    cell = cell or _cell_size(grid)
    body = _colored(_shapes(grid, compare, hover)) + _marks(grid, compare, cell)
    return _svg(grid, cell, body, f"grid {_read_out(grid)}", lines=hover)


def difference_svg(expected: Grid, produced: Grid, cell: int | None = None) -> str:
    """Only what is wrong: a cell that differs is cut in two, expected above the diagonal, produced below; a
    cell that is right stays empty. Both grids must have the same shape."""
    if expected.shape != produced.shape:
        raise ValueError(f"no difference of grids of shapes {expected.shape} and {produced.shape}")
    cell = cell or _cell_size(expected)
    shapes: dict[int, list[str]] = {}
    titles = []
    for r, c in np.ndindex(expected.shape):
        want, got = int(expected[r, c]), int(produced[r, c])
        says = f"row {r}, column {c}: {got}" + (f", expected {want}" if want != got else ", right")
        titles.append(f'<path d="M{c} {r}h1v1h-1z"><title>{says}</title></path>')
        if want != got:
            shapes.setdefault(want, []).append(f"M{c} {r}h1l-1 1z")
            shapes.setdefault(got, []).append(f"M{c + 1} {r}v1h-1z")
    body = _colored({color: f'<path d="{"".join(parts)}"/>' for color, parts in shapes.items()})
    # The transparent cells on top carry the titles and draw the lines.
    body += f'<g fill="#fff" fill-opacity="0">{"".join(titles)}</g>'
    said = f"difference {grid_size(expected)}: {int((expected != produced).sum())} of {expected.size} cells"
    return _svg(expected, cell, body, said, ground=False)


def _read_out(grid: Grid) -> str:
    """Its shape and, row by row, its values; of a large one the values that occur."""
    if grid.size <= _READ_OUT:
        return f"{grid_size(grid)}: {' '.join(''.join(map(str, row)) for row in grid.tolist())}"
    return f"{grid_size(grid)} with the values {' '.join(map(str, np.unique(grid)))}"


def _svg(grid: Grid, cell: int, body: str, name: str, lines: bool = True, ground: bool = True) -> str:
    height, width = grid.shape
    line = (1 if cell >= 10 else 0.6) / cell if lines else 0
    fill = "" if ground else ' fill="#888" fill-opacity="0.25"'  # neither black nor white, on any page
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="arcnb-grid" role="img" '
        f'aria-label="{name}" width="{width * cell + 2}" height="{height * cell + 2}" '
        f'viewBox="{-1 / cell:.3g} {-1 / cell:.3g} {width + 2 / cell:.5g} {height + 2 / cell:.5g}">'
        f'<rect width="{width}" height="{height}"{fill} stroke="{_LINE}" stroke-width="{2 / cell:.2g}"/>'
        f'<g stroke="{_LINE}" stroke-width="{line:.2g}">{body}</g></svg>'
    )


def _colored(shapes: dict[int, str]) -> str:
    """The shapes in their colours; the class lets a page recolour them."""
    colors = PALETTES[palette_name()]
    return "".join(
        f'<g class="c{color}" fill="{colors[color]}">{drawn}</g>' for color, drawn in sorted(shapes.items())
    )


def pairs_html(head: str, pairs: NamedPairs) -> str:
    """Input beside output of each pair; an unknown output is a dashed box. head: plain text."""
    return framed(escape(head), "".join(_pair_html(*pair) for pair in pairs))


def prediction_html(
    head: str, pairs: NamedPairs, outputs: Sequence[Grid | None] | None, picture: int = _ROW_PICTURE
) -> str:
    """What a program made of a task: input, expected, produced and difference of every pair, and a verdict.

    outputs: one a pair; None, whole or for one pair, where nothing valid came. picture: pixels of a grid.
    """
    produced = [None] * len(pairs) if outputs is None else outputs
    rows = (_prediction_row(*pair, output, picture) for pair, output in zip(pairs, produced, strict=True))
    if picture == SMALL_PICTURE:
        return framed(escape(head), "".join(rows))
    return framed(f"{escape(head)}: what the program made of it", "".join(rows))


def produced_html(outputs: Sequence[Grid | None] | None) -> str:
    """The outputs of a program alone."""
    if outputs is None:
        return framed("no outputs", "")
    return framed("produced", "".join(_NO_OUTPUT if grid is None else grid_svg(grid) for grid in outputs))


def thumbnails_html(head: str, pairs: NamedPairs, n_more: int) -> str:
    """Small pictures of pairs whose outputs are known, and how many more there are."""
    cards = "".join(
        f'<div class="arcnb-pair"><div class="arcnb-note">{escape(name)}</div>'
        f'<div class="arcnb-flow">{_thumbnail(input)}{_ARROW}{_thumbnail(output)}</div></div>'
        for name, input, output in pairs
    )
    more = f'<div class="arcnb-note">and {n_more} more</div>' if n_more > 0 else ""
    return framed(escape(head), cards + more)


def _shapes(grid: Grid, compare: Grid | None, hover: bool) -> dict[int, str]:
    """SVG of the cells, by colour: a titled path a cell, or one path for all cells of the colour."""
    shapes: dict[int, list[str]] = {}
    expected = compare if compare is not None and compare.shape == grid.shape else grid
    for r, (row, wanted) in enumerate(zip(grid.tolist(), expected.tolist(), strict=True)):
        if not hover:
            column = 0
            for color, run in groupby(row):
                n = len(list(run))
                shapes.setdefault(color, []).append(f"M{column} {r}h{n}v1h-{n}z")
                column += n
            continue
        for c, (color, want) in enumerate(zip(row, wanted, strict=True)):
            title = f"row {r}, column {c}: {color}" + (f", expected {want}" if want != color else "")
            shapes.setdefault(color, []).append(f'<path d="M{c} {r}h1v1h-1z"><title>{title}</title></path>')
    if hover:
        return {color: "".join(parts) for color, parts in shapes.items()}
    return {color: f'<path d="{"".join(parts)}"/>' for color, parts in shapes.items()}


def _marks(grid: Grid, compare: Grid | None, cell: int) -> str:
    """Dots on the cells that differ: white in black, so that they show on every colour."""
    if compare is None or compare.shape != grid.shape or (grid == compare).all():
        return ""
    places = np.argwhere(grid != compare).tolist()
    dots = "".join(f"M{c}.5 {r}.5h0" for r, c in places)  # lines of no length, drawn by their round ends
    outer, inner = (0.56, 0.36) if cell >= 10 else (0.95, 0.6)  # in small cells, as large as fits
    return (
        '<g fill="none" stroke-linecap="round" pointer-events="none">'
        f'<path d="{dots}" stroke="#000" stroke-width="{outer}"/>'
        f'<path d="{dots}" stroke="#fff" stroke-width="{inner}"/></g>'
    )


def _pair_html(name: str, input: Grid, expected: Grid | None) -> str:
    cell = _cell_size(input, expected)
    output = _UNKNOWN if expected is None else grid_svg(expected, cell=cell)
    shapes = f"{grid_size(input)} &rarr; {'?' if expected is None else grid_size(expected)}"
    return (
        f'<div class="arcnb-pair"><div class="arcnb-note">{name}: {shapes}</div><div class="arcnb-flow">'
        f"{grid_svg(input, cell=cell)}{_ARROW}{output}</div></div>"
    )


def _prediction_row(name: str, input: Grid, expected: Grid | None, output: Grid | None, picture: int) -> str:
    cell = _cell_size(input, expected, output, picture=picture)
    steps = {
        "input": grid_svg(input, cell=cell),
        "expected": _UNKNOWN if expected is None else grid_svg(expected, cell=cell),
        "produced": _NO_OUTPUT if output is None else grid_svg(output, expected, cell),
    }
    if _differ(expected, output):
        steps["difference"] = difference_svg(expected, output, cell)
    row = _ARROW.join(
        f'<div class="arcnb-step"><div class="arcnb-cap">{cap}</div>{picture}</div>'
        for cap, picture in steps.items()
    )
    return (
        f'<div class="arcnb-pair"><div class="arcnb-note">{name}: {_verdict(expected, output)}</div>'
        f'<div class="arcnb-flow">{row}</div></div>'
    )


def _differ(expected: Grid | None, output: Grid | None) -> bool:
    known = expected is not None and output is not None
    return known and expected.shape == output.shape and bool((expected != output).any())


def _verdict(expected: Grid | None, output: Grid | None) -> str:
    if output is None:
        return "no output"
    if expected is None:
        return f"{grid_size(output)}, expected output unknown"
    if output.shape != expected.shape:
        return f"&#10007; shape {grid_size(output)} instead of {grid_size(expected)}"
    wrong = int((output != expected).sum())
    return f"&#10007; {wrong} of {output.size} cells differ" if wrong else "&#10003; right"


def _thumbnail(grid: Grid) -> str:
    return grid_svg(grid, cell=max(2, 60 // max(grid.shape)), hover=False)


def _cell_size(*grids: Grid | None, picture: int = _PICTURE) -> int:
    longest = max(max(grid.shape) for grid in grids if grid is not None)
    return min(24, max(3 if picture == SMALL_PICTURE else 6, picture // longest))


def framed(head: str, body: str) -> str:
    """A heading over pieces in a row, with the style that pictures need."""
    inner = f'<div class="arcnb-head">{head}</div><div class="arcnb-row">{body}</div>'
    return f'{STYLE}<div class="arcnb">{inner}</div>'
