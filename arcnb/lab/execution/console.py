"""One line on standard error about the notebook that runs: which cell, which section, how far its own bar
is."""

import shutil
import sys
import time
from typing import TextIO

LINE_SECONDS = 5.0


class Console:
    """On a terminal the line is rewritten in place; in a log file a line appears at each new section, and
    then at growing intervals of 5 to 60 seconds with the progress of the running cell."""

    def __init__(self, n_cells: int, stream: TextIO | None = None):
        self.stream = stream or sys.stderr
        self.n_cells = n_cells
        self.place = ""
        self.title = ""
        self.started = self.printed = time.monotonic()

    def cell(self, index: int, title: str) -> None:
        """The cell that starts now; index from 1."""
        self.place = f"[{index}/{self.n_cells}] {title}".rstrip()
        if self.stream.isatty():
            self._rewrite(self.place)
        elif title != self.title:
            print(self.place, file=self.stream, flush=True)
            self.started = self.printed = time.monotonic()
        self.title = title

    def progress(self, line: str) -> None:
        """The progress line of the running cell."""
        if self.stream.isatty():
            self._rewrite(f"{self.place} · {line}")
            return
        now = time.monotonic()
        if now - self.printed >= max(LINE_SECONDS, min(60.0, (now - self.started) / 20)):
            print(f"{self.place} · {line}", file=self.stream, flush=True)
            self.printed = now

    def close(self) -> None:
        if self.stream.isatty():
            self._rewrite("")

    def _rewrite(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        line = text if len(text) <= width else text[: width - 1] + "…"
        print(f"\r\x1b[K{line}", end="", file=self.stream, flush=True)
