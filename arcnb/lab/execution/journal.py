"""What is written while a notebook runs: executed copy, manifest, heartbeat, a line for the console."""

import contextlib
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import nbformat
from papermill.engines import NotebookExecutionManager

from arcnb.errors import ArcnbError
from arcnb.lab.execution.lost_terminal import Steady
from arcnb.lab.execution.stopping import Stopped
from arcnb.lab.notebooks.files import ERROR_TAG, cell_titles
from arcnb.lab.runs.heartbeat import Heartbeat
from arcnb.lab.runs.manifest import cause, now
from arcnb.lab.runs.run import Run
from arcnb.machine.files import write_whole
from arcnb.machine.processes import process_identity, resident_gb

LINE_SECONDS = 5.0
SILENT_SECONDS = 60.0


class Console:
    """A line on standard error about the notebook that runs: which cell, which section, its own bar. On a
    terminal it is rewritten in place; in a log file a line appears at each new section, and then at growing
    intervals of 5 to 60 seconds."""

    def __init__(self, n_cells: int):
        self.stream = Steady(sys.stderr)
        self.n_cells = n_cells
        self.place = ""
        self.title = ""
        self.started = self.printed = self.told = time.monotonic()

    def cell(self, index: int, title: str) -> None:
        """The cell that starts now; index from 1."""
        self.place = f"[{index}/{self.n_cells}] {title}".rstrip()
        if self.stream.isatty():
            self._rewrite(self.place)
        elif title != self.title:
            print(self.place, file=self.stream, flush=True)
            self.started = self.printed = self.told = time.monotonic()
        self.title = title

    def progress(self, line: str) -> None:
        """The progress line of the running cell."""
        if self.stream.isatty():
            self._rewrite(f"{self.place} · {line}")
            return
        now = time.monotonic()
        # since the bar's own last line: signs of life in between must not take its turn
        if now - self.told >= max(LINE_SECONDS, min(60.0, (now - self.started) / 20)):
            print(f"{self.place} · {line}", file=self.stream, flush=True)
            self.printed = self.told = now

    def still_there(self) -> None:
        """A line of a log where the cell has said nothing for a minute: some schedulers take silence for
        death."""
        if not self.stream.isatty() and time.monotonic() - self.printed >= SILENT_SECONDS:
            self.printed = time.monotonic()
            print(
                f"{self.place} · {(self.printed - self.started) / 60:.0f} min", file=self.stream, flush=True
            )

    def close(self) -> None:
        if self.stream.isatty():
            self._rewrite("")

    def _rewrite(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        line = text if len(text) <= width else text[: width - 1] + "…"
        print(f"\r\x1b[K{line}", end="", file=self.stream, flush=True)


class RunRecord(NotebookExecutionManager):
    """papermill's manager, made truthful: a cell that did not run is never called completed."""

    def __init__(self, nb, run: Run, console: Console | None, output_path, log_output, autosave_cell_every):
        super().__init__(
            nb, output_path, log_output, progress_bar=False, autosave_cell_every=autosave_cell_every
        )
        self.run = run
        self.began = time.monotonic()
        self.console = console
        self.titles = cell_titles(nb)
        self.status = "done"
        self.error: dict[str, Any] | None = None
        self.stop: dict[str, str] | None = None
        self.where: dict[str, Any] | None = None
        self.inner = ""  # the last progress line of the running cell
        self.lost_outputs: list[int] = []  # numbers of cells, from 1
        self.kernel_pid: int | None = None
        self.peak_memory_gb = 0.0
        self.heartbeat: Heartbeat | None = None

    def cell_start(self, cell: Any, cell_index: int = 0, **kwargs: Any) -> None:
        self.where = {"index": cell_index + 1, "of": len(self.nb.cells), "title": self.titles[cell_index]}
        self.inner = ""
        if self.heartbeat is not None:
            self.heartbeat.urgent = True
        if self.console is not None and cell.cell_type == "code":
            self.console.cell(self.where["index"], self.where["title"])
        super().cell_start(cell, cell_index, **kwargs)

    def cell_stopped(self, cell: Any, status: str) -> None:
        """A cell that did not end by itself: papermill has no word for that, so ours is written."""
        cell.metadata.papermill["status"] = status
        cell.metadata.papermill["exception"] = status == "failed"
        cell.metadata.papermill["end_time"] = self.now().isoformat()

    def save(self, **kwargs: Any) -> None:
        """A save on the way may fail (the disk is full for a moment); the last, in notebook_complete, may
        not."""
        with contextlib.suppress(ArcnbError):
            super().save(**kwargs)

    def notebook_complete(self, **kwargs: Any) -> None:
        """Write the end. Unlike papermill's, this does not turn pending cells into completed ones."""
        if self.console is not None:
            self.console.close()
        self.believe_notebook()
        self.set_end()
        if self.status in ("preempted", "killed"):
            self.nb.cells.insert(0, self._banner())
        try:
            self.write_copies()
        except ArcnbError as error:
            if self.status == "done":  # what nobody can look at is not done
                self.status = "failed"
                self.error = cause(f"the end: {error}", "ArcnbError", str(error))
        fields = {"status": self.status, "end": now(), "error": self.error, "cell": self.where}
        fields["lost_outputs"] = self.lost_outputs or None
        if self.peak_memory_gb:
            fields["peak_memory_gb"] = self.peak_memory_gb
        seconds = round(time.monotonic() - self.began, 3)  # a clock of the day may be set
        self.run.update(**fields, stop=self.stop, seconds=seconds)

    def believe_notebook(self) -> None:
        """A notebook whose trainer was stopped and saved ends all of its cells and writes `preempted` itself:
        that is kept, for done would mean that there is nothing to resume."""
        manifest = self.run.manifest
        if self.status == "done" and manifest["status"] == "preempted":
            self.status = "preempted"
            why = "the notebook says that it was stopped before its work was done"
            self.error = manifest["error"] or cause(self.sentence(why), None, why)

    def set_end(self) -> None:
        self.end_time = self.now()
        self.nb.metadata.papermill["end_time"] = self.end_time.isoformat()
        self.nb.metadata.papermill["duration"] = (self.end_time - self.start_time).total_seconds()
        self.nb.metadata.papermill["exception"] = self.status != "done" or None

    def note_end(self, error: BaseException) -> None:
        """The exception that ended the execution."""
        if isinstance(error, Stopped):
            self.status = error.status
            self.note_error(error.kind, error.cause, error.cause)
        else:
            self.status, kind = "failed", type(error).__name__
            self.note_error(kind, str(error), f"{kind}: {error}")

    def note_error(self, kind: str | None, message: str, why: str) -> None:
        self.error = cause(self.sentence(why), kind, message)

    def sentence(self, cause: str) -> str:
        """Where and why, on one line; a cause that goes on for pages is in the executed notebook."""
        cause = textwrap.shorten(cause, 400, placeholder=" …")
        if self.where is None:
            return f"before the first cell: {cause}"
        title = f' ("{self.where["title"]}")' if self.where["title"] else ""
        return f"cell {self.where['index']} of {self.where['of']}{title}: {cause}"

    def note_kernel(self, pid: int) -> None:
        self.kernel_pid = pid
        self.run.update(kernel=process_identity(pid))

    def note_stop(self, request: dict[str, str]) -> None:
        """Write down that a stop was asked for, so that the reason is known even if this process is killed
        next."""
        self.stop = request
        with contextlib.suppress(ArcnbError):
            self.run.update(stop=request)

    def note_lost_outputs(self, cell: Any, cell_index: int) -> None:
        """The cell's last outputs will not come."""
        self.lost_outputs.append(cell_index + 1)
        told = "arcnb: what this cell showed last is lost; it ran to its end\n"
        cell.outputs.append(nbformat.v4.new_output("stream", name="stderr", text=told))

    def note_progress(self, line: str) -> None:
        """The running cell's own progress bar has moved."""
        self.inner = line
        if self.console is not None:
            self.console.progress(line)

    def beat(self) -> dict[str, Any]:
        """The facts of a heartbeat."""
        if self.console is not None and self.where is not None:
            self.console.still_there()
        memory = resident_gb(pid) if (pid := self.kernel_pid) else None
        self.peak_memory_gb = max(self.peak_memory_gb, memory or 0.0)
        return {
            "pid": pid,
            "cell": self.where,
            "progress": self.inner,
            "memory_gb": memory,
            "stop": self.stop,
        }

    def write_copies(self) -> None:
        """Write the executed notebook where papermill was told to, and to the run, to which it belongs
        anyhow."""
        super().save()
        copy = self.run.copy_path
        if self.output_path is None or Path(self.output_path).absolute().parent != copy.parent:
            write_whole(copy, nbformat.writes(self.nb))

    def _banner(self) -> Any:
        cell = nbformat.v4.new_markdown_cell(f"**This run was {self.status}** at {self.error['sentence']}.")
        cell.metadata["tags"] = [ERROR_TAG]
        cell.metadata["papermill"] = {"status": "completed"}
        return cell
