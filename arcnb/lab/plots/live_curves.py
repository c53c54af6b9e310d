"""Curves that are drawn while a stage runs, from the metrics.jsonl that it writes.

    with live_curves(run.path / "metrics.jsonl", ["loss", "learning_rate"]):
        report = train_sft(...)

The file is watched, not the trainer: training may happen in another process, or have begun before a restart.
One output is replaced in place, so an executed notebook keeps the last picture, also when its run was killed.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from arcnb.lab.plots.plots import grouped_curves, training_curves
from arcnb.machine.imports import ipython_shell
from arcnb.models.training.log import read_metrics

LOOK_SECONDS = 1.0  # between looks at the file
DRAW_SECONDS = 2.0  # between pictures, at least
COST_SHARE = 0.05  # of the time, at most, goes into drawing
PICTURES_A_DOUBLING = 40  # about so many pictures while the time since the start doubles


@contextlib.contextmanager
def live_curves(path: Path, curves: Sequence[str] | Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Draw the curves of a metrics.jsonl below the running cell until the block ends, then once more.

    curves: names for a plot each (`training_curves`), or title -> names for plots of several
    (`grouped_curves`). Outside of a notebook nothing is drawn. Trouble with the file or the picture never
    stops the stage; it is said in place of the picture when the block ends.
    """
    if not hasattr(ipython_shell(), "kernel"):
        yield
        return
    watcher = _Watcher(path, curves)
    # The kernel keeps in a context variable which cell an output belongs to: the thread's go below this one.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(watcher.watch,), name="live curves", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watcher.over.set()
        thread.join(timeout=60)
        watcher.finish()


class _Watcher:
    def __init__(self, path: Path, curves: Sequence[str] | Mapping[str, Sequence[str]]):
        self.path = path
        self.curves = curves
        self.over = threading.Event()
        self.handle: Any = None
        self.seen: tuple[int, int] | None = None  # size and time of the file that the picture shows
        self.trouble: Exception | None = None

    def watch(self) -> None:
        start = time.monotonic()
        due = 0.0
        while not self.over.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now < due or self._state() == self.seen:
                continue
            first = self.handle is None  # most of whose time is importing matplotlib
            self.draw()
            cost = 0.0 if first else time.monotonic() - now
            due = now + max(DRAW_SECONDS, cost / COST_SHARE, (now - start) / PICTURES_A_DOUBLING)

    def draw(self) -> None:
        state = self._state()
        if state is None:
            return
        try:
            rows = read_metrics(self.path)
            plot = grouped_curves if isinstance(self.curves, Mapping) else training_curves
            if rows:
                self._show(plot(rows, self.curves))
            self.seen, self.trouble = state, None
        except Exception as error:  # whatever it is, the training is worth more than its picture
            self.trouble = error

    def finish(self) -> None:
        """The picture of everything logged, or what kept it from being drawn."""
        if self._state() != self.seen:
            self.draw()
        if self.trouble is not None:
            from IPython.display import Markdown

            self._show(Markdown(f"*No curves: {self.trouble}*"))

    def _show(self, content: Any) -> None:
        from IPython.display import display

        if self.handle is None:
            self.handle = display(content, display_id=True)
        else:
            self.handle.update(content)

    def _state(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            facts = self.path.stat()
            return facts.st_size, facts.st_mtime_ns
        return None
