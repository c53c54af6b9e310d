"""One progress bar for terminals, notebooks and log files.

    for task in progress(tasks, "judging", unit="task"):
        ...

    with progress(None, "sampling", total=800, unit="completion") as bar:
        bar.update(16)

The counting and the rate are tqdm's; what differs is where the bar appears:

* terminal: tqdm's own bar;
* Jupyter kernel (JupyterLab, papermill): one output that is replaced in place, so an executed notebook keeps
  the last state only and not ten thousand carriage returns;
* anything else (a pipe, a log file): whole lines, at first every 5 seconds and later about 20 per doubling of
  the elapsed time, never a carriage return.
"""

import html
import io
import os
import sys
from collections.abc import Iterable
from typing import Any

from tqdm.std import tqdm

from arcnb.machine.imports import ipython_shell

LOG_SECONDS = 5.0
NOTEBOOK_SECONDS = 0.5


def progress(
    items: Iterable[Any] | None, title: str, total: int | None = None, unit: str = "it", done: int = 0
) -> "ProgressBar":
    """Return an iterable over `items` (or, with None, a bar to `update` by hand) that shows how far it is.

    `total` is taken from len(items) where there is one; `done` counts what an earlier, resumed run finished.
    """
    return ProgressBar(items, title, total, unit, done)


class ProgressBar(tqdm):
    """tqdm with three places to appear in; see the module's docstring. Use it through `progress`."""

    def __init__(
        self, items: Iterable[Any] | None, title: str, total: int | None, unit: str, done: int
    ) -> None:
        self.place = _place()
        self.handle: Any = None
        self.failed = False
        settings: dict[str, Any] = {"desc": title, "total": total, "unit": unit, "initial": done}
        if self.place == "terminal":
            settings |= {"dynamic_ncols": True, "unit": f" {unit}"}
        else:
            settings |= {"file": io.StringIO(), "mininterval": NOTEBOOK_SECONDS}
        if self.place == "log":
            settings |= {"mininterval": LOG_SECONDS, "delay": LOG_SECONDS}
        super().__init__(items, **settings)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        if self.place == "terminal":
            return super().display(msg, pos)
        if msg == "":
            return False
        line = self.line()
        if self.place == "notebook":
            self._display_in_notebook(line)
        else:
            print(line, file=sys.stderr, flush=True)
            self.mininterval = max(LOG_SECONDS, min(60.0, self.format_dict["elapsed"] / 20))
        return True

    def __exit__(self, kind: type | None, value: BaseException | None, trace: object) -> None:
        self.failed = kind is not None
        super().__exit__(kind, value, trace)

    def line(self) -> str:
        """The state as one line of text."""
        state = self.format_dict
        n, total, elapsed = state["n"], state["total"], state["elapsed"]
        fresh = n - state["initial"]
        over = self.disable  # set by close() just before it displays the last state
        short = over and total is not None and n < total
        rate = fresh / elapsed if elapsed > 0 else 0.0
        counted = f"{n:,}/{total:,}" if total is not None and (not over or self.failed) else f"{n:,}"
        counted += f" of at most {total:,}" if short and not self.failed else ""
        title = self.desc.removesuffix(": ")
        parts = [f"{title}: {'stopped at ' if self.failed else ''}{counted} {_plural(self.unit, total or n)}"]
        if over:
            parts[0] += f" {'after' if self.failed else 'in'} {_clock(elapsed)}"
        elif total:
            parts[0] += f" ({100 * n / total:.0f}%)"
        if fresh > 0:
            parts.append(_pace(rate))
        if not over:
            parts.append(f"{_clock(elapsed)} so far")
        if not over and total and fresh > 0:
            parts.append(f"{_clock((total - n) / rate)} left")
        if state["postfix"]:
            parts.append(str(state["postfix"]))
        return " · ".join(parts)

    def _display_in_notebook(self, line: str) -> None:
        from IPython.display import display

        state = self.format_dict
        share = f'value="{state["n"]}" max="{state["total"]}"' if state["total"] else ""
        if self.disable and not share:
            share = 'value="1" max="1"'
        style = "font: 13px/1.6 system-ui, sans-serif; font-variant-numeric: tabular-nums"
        bar = f'<progress {share} style="width: 12em; vertical-align: middle"></progress>'
        text = f'<div class="arcnb-progress" style="{style}">{bar} {html.escape(line)}</div>'
        data = {"text/plain": line, "text/html": text}
        if self.handle is None:
            self.handle = display(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)


def _place() -> str:
    """'terminal', 'notebook' or 'log'."""
    if hasattr(ipython_shell(), "kernel"):
        return "notebook"
    if sys.stderr is None or not sys.stderr.isatty():
        return "log"
    # Some terminals of editors and CI say that they have no columns: a bar would have no room there.
    return "terminal" if os.get_terminal_size(sys.stderr.fileno()).columns else "log"


def _pace(rate: float) -> str:
    if rate < 0.1:
        return f"{1 / rate:.3g} s each"
    return f"{rate:.3g}/s" if rate < 100 else f"{rate:,.0f}/s"


def _clock(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def _plural(unit: str, n: int) -> str:
    return unit if n == 1 or unit == "it" else f"{unit}s"
