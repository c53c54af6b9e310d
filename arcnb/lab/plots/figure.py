"""How figures look and show themselves.

They have no background and a grey that reads on white and on black, so one picture serves a light page, a
dark page and print. They are made without pyplot: no window, no global state, nothing to close; a notebook
shows the figure that is a cell's last value, as SVG.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arcnb.errors import number_of, short_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#7b858f"  # 3.8:1 on white, 4.8:1 on the dark page
# Okabe and Ito's colors, which color-blind readers tell apart, in the order of contrast on both backgrounds.
SERIES = ("#0a84c6", "#e06c00", "#009e73", "#cc5c9e", "#b58900", "#56b4e9", "#8a6fd1")


def save_figure(figure: "Figure", path: str | Path) -> Path:
    """Write .svg (the same bytes for the same data) or .png."""
    from arcnb.machine.files import write_whole

    path = Path(path)
    if path.suffix == ".svg":
        write_whole(path, figure._repr_svg_())
    else:
        figure.savefig(path, dpi=160, transparent=True)
    return path


def new_figure(n_panels: int = 1) -> tuple["Figure", list[Any]]:
    """A figure with one panel, or panels two in a row, that shows itself in a notebook."""
    from matplotlib.figure import Figure as MatplotlibFigure
    from matplotlib.text import Text

    class Figure(MatplotlibFigure):
        def draw(self, renderer: Any) -> None:
            """Names of tasks and sets are no formulas, whatever stands between two `$` in them."""
            for text in self.findobj(Text):
                text.set_parse_math(False)
            super().draw(renderer)

        def __repr__(self) -> str:
            """What it shows, in words: the alternative text of the picture."""
            return ". ".join(filter(None, map(_told, self.axes)))

        def _repr_svg_(self) -> str:
            from matplotlib import rc_context

            buffer = io.StringIO()
            # Letters stay letters (small, searchable) and ids do not depend on chance.
            with rc_context({"svg.fonttype": "none", "svg.hashsalt": "arcnb"}):
                self.savefig(
                    buffer, format="svg", transparent=True, metadata={"Date": None, "Title": repr(self)}
                )
            return buffer.getvalue()

        def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
            """For JupyterLab, which shows no SVG of a notebook that it does not trust: 160 dpi, at normal
            size."""
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", transparent=True, dpi=160)
            return buffer.getvalue(), {"width": round(100 * self.get_figwidth())}

    columns = min(2, n_panels)
    rows = -(-n_panels // columns)
    figure = Figure(
        figsize=(5.6 if columns == 1 else 9.6, 3.3 if n_panels == 1 else 2.6 * rows), layout="constrained"
    )
    panels = [figure.add_subplot(rows, columns, number + 1) for number in range(n_panels)]
    return figure, panels


def _told(axes: Any) -> str:
    """Title, first and last value of each line, height of the bars, range of an image, texts in the plot."""
    said = []
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    for line in named or axes.lines:
        x, y = (list(values) for values in line.get_data())
        if x and (named or x[0] != x[-1]):  # one that marks a place is no series
            name = line.get_label() if named and line.get_label() != axes.get_title(loc="left") else ""
            first, start, last, end = map(short_number, (y[0], x[0], y[-1], x[-1]))
            said.append(f"{name} {first} at {start} to {last} at {end}".strip())
    if bars := [bar.get_height() for bar in axes.patches if bar.get_height()]:
        said.append(f"{number_of(len(bars), 'bar')}, the highest {short_number(max(bars))}")
    shown = [image.get_array() for image in axes.images]
    said += [f"{array.min():.3g} to {array.max():.3g}" for array in shown if array.count()]
    said += [text.get_text().strip() for text in axes.texts]
    title, unit = axes.get_title(loc="left"), axes.get_ylabel()
    return f"{title}{f', {unit}' if unit else ''}: {'; '.join(said) or 'no values'}" if title else ""


def legend_below(owner: Any, labels: Sequence[str], width: int, **place: Any) -> None:
    """A legend of axes, or of the whole figure, where it lies over no line. width: letters that fit."""
    columns = min(3, max(1, width // max(map(len, labels))))
    looks = {"frameon": False, "labelcolor": INK, "fontsize": 9, "borderpad": 0, "columnspacing": 1.2}
    owner.legend(**place, ncols=columns, **looks)


def whole_steps(axes: Any) -> None:
    """No marks between whole numbers, also where there is one alone."""
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def finish(figure: "Figure", axes: Any, title: str, x: str, y: str, legend: bool = False) -> "Figure":
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.set_facecolor("none")
    axes.tick_params(colors=INK, labelsize=10, length=3)
    axes.grid(axis="y", color=INK, alpha=0.25, linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    if legend:
        axes.legend(frameon=False, labelcolor=INK, fontsize=10)
    return figure


def colors() -> list[str]:
    return list(SERIES) * 20
