"""Running the cells of a notebook and writing down what happens; `ArcnbEngine` is the way in."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient.exceptions import CellExecutionError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NotebookExecutionManager
from papermill.exceptions import PapermillException
from papermill.iorw import LocalHandler
from papermill.log import logger
from papermill.utils import chdir

from arcnb.lab.console import Console
from arcnb.lab.heartbeat import Heartbeat
from arcnb.lab.manifest import RunError, now, seconds_between, write_whole
from arcnb.lab.notebooks import cell_titles
from arcnb.lab.processes import death_cause, memory_gb, out_of_memory_kills
from arcnb.lab.runs import RUN_DIR, Run
from arcnb.lab.stopping import Stopped, StopSignals

ERROR_TAG = "papermill-error-cell-tag"  # papermill removes cells with this tag when the copy is run again


class RunStopped(PapermillException):
    """The run ended as preempted or killed; the message is one sentence. (For a failing cell papermill raises
    its own PapermillExecutionError.)"""


def execute(
    nb: Any,
    kernel_name: str,
    run: Run,
    output_path: str | None,
    grace_seconds: float,
    progress_bar: bool = True,
    log_output: bool = False,
    autosave_cell_every: int = 10,
    **settings: Any,
) -> Any:
    """Run the notebook in a new kernel; the manifest of `run` and the copy at `output_path` say how it went.

    `settings` go to nbclient. Raises RunStopped unless every cell ran or one failed by itself.
    """
    LocalHandler.write = _write_copy  # papermill also writes once more after its engine has returned
    console = Console(len(nb.cells)) if progress_bar else None
    record = RunRecord(nb, run, console, output_path, log_output, autosave_cell_every)
    record.notebook_start()
    try:
        with StopSignals(grace_seconds, record.note_stop) as stop:
            client = ArcnbClient(
                record, stop, kernel_name=kernel_name, log=logger, log_output=log_output, **settings
            )
            client.execute(env=os.environ | {RUN_DIR: str(run.path)})
    except BaseException as error:
        record.status, record.error = record.verdict_on(error)
        raise RunStopped(record.error["sentence"]) from error
    finally:
        record.notebook_complete()
    return nb


def _write_copy(self: LocalHandler, text: str, path: str) -> None:
    """Stands in for papermill's way of writing a local file, which begins by emptying it."""
    with chdir(self._cwd):
        write_whole(Path(path).absolute(), text)


class RunRecord(NotebookExecutionManager):
    """What is written while a notebook runs: the executed copy, the manifest, the heartbeat, a line for the
    console."""

    def __init__(self, nb, run: Run, console: Console | None, output_path, log_output, autosave_cell_every):
        super().__init__(
            nb, output_path, log_output, progress_bar=False, autosave_cell_every=autosave_cell_every
        )
        self.run = run
        self.console = console
        self.titles = cell_titles(nb)
        self.status = "done"
        self.error: dict[str, Any] | None = None
        self.stop: dict[str, str] | None = None
        self.where: dict[str, Any] | None = None
        self.inner = ""  # the last progress line of the running cell
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
        """Autosaves may fail (a disk that is full for a moment); the last one may not: see
        notebook_complete."""
        try:
            super().save(**kwargs)
        except RunError as error:
            logger.warning(str(error))

    def notebook_complete(self, **kwargs: Any) -> None:
        """Write the end. Unlike papermill's, this does not turn pending cells into completed ones."""
        if self.console is not None:
            self.console.close()
        self.set_end()
        if self.status in ("preempted", "killed"):
            self.nb.cells.insert(0, self._banner())
        self.save()
        self._keep_copy()
        fields = {
            "status": self.status,
            "end": now(),
            "error": self.error,
            "cell": self.where,
            "stop": self.stop,
        }
        if self.peak_memory_gb:
            fields["peak_memory_gb"] = self.peak_memory_gb
        self.run.update(**fields, seconds=seconds_between(self.run.manifest["start"], fields["end"]))

    def set_end(self) -> None:
        self.end_time = self.now()
        self.nb.metadata.papermill["end_time"] = self.end_time.isoformat()
        self.nb.metadata.papermill["duration"] = (self.end_time - self.start_time).total_seconds()
        self.nb.metadata.papermill["exception"] = self.status != "done" or None

    def verdict_on(self, error: BaseException) -> tuple[str, dict[str, Any]]:
        """(status, manifest error) for an exception that ended the execution."""
        if isinstance(error, Stopped):
            return error.status, {
                "type": error.kind,
                "message": error.cause,
                "sentence": self.sentence(error.cause),
            }
        message = f"{type(error).__name__}: {error}"
        return "failed", {
            "type": type(error).__name__,
            "message": str(error),
            "sentence": self.sentence(message),
        }

    def sentence(self, cause: str) -> str:
        if self.where is None:
            return f"before the first cell: {cause}"
        title = f' ("{self.where["title"]}")' if self.where["title"] else ""
        return f"cell {self.where['index']} of {self.where['of']}{title}: {cause}"

    def note_stop(self, request: dict[str, str]) -> None:
        """Write down that a stop was asked for, so that the reason is known even if this process is killed
        next."""
        self.stop = request
        with contextlib.suppress(RunError):
            self.run.update(stop=request)

    def note_progress(self, line: str) -> None:
        """The running cell's own progress bar has moved."""
        self.inner = line
        if self.console is not None:
            self.console.progress(line)

    def beat(self) -> dict[str, Any]:
        """The facts of a heartbeat."""
        memory = memory_gb(self.kernel_pid) if self.kernel_pid else None
        self.peak_memory_gb = max(self.peak_memory_gb, memory or 0.0)
        return {
            "pid": self.kernel_pid,
            "cell": self.where,
            "progress": self.inner,
            "memory_gb": memory,
            "stop": self.stop,
        }

    def _keep_copy(self) -> None:
        """The executed notebook belongs to the run, wherever else papermill was told to put it."""
        copy = self.run.copy_path
        if self.output_path is None or Path(self.output_path).absolute().parent != copy.parent:
            write_whole(copy, nbformat.writes(self.nb))

    def _banner(self) -> Any:
        cell = nbformat.v4.new_markdown_cell(f"**This run was {self.status}** at {self.error['sentence']}.")
        cell.metadata["tags"] = [ERROR_TAG]
        cell.metadata["papermill"] = {"status": "completed"}
        return cell


class ArcnbClient(PapermillNotebookClient):
    """Runs the cells one by one and raises Stopped when that ends early for any reason but a failing cell."""

    def __init__(self, record: RunRecord, stop: StopSignals, **settings: Any):
        # A tagged or tolerated error would end as done here and as an exception in papermill: let none pass.
        settings |= {
            "force_raise_errors": True,
            "coalesce_streams": True,
            "iopub_timeout": 60,
            "record_timing": True,
        }
        super().__init__(record, **settings)
        self.record = record
        self.stop = stop

    def execute(self, **settings: Any) -> Any:
        self.reset_execution_trackers()
        oom_kills = out_of_memory_kills()
        process = None
        try:
            with self.setup_kernel(**settings):
                process = self.km.provisioner.process
                self.km.shutdown_wait_time = 20.0  # what a stage may take for its exit handlers
                self.stop.pid = self.record.kernel_pid = process.pid
                heartbeat = Heartbeat(self.record.run.path, self.record.beat, self.stop.tick)
                self.record.heartbeat = heartbeat
                heartbeat.start()
                try:
                    self.papermill_execute_cells()
                finally:
                    heartbeat.finish()
                    self.record.beat()
                self.set_widgets_metadata()
        except DeadKernelError:
            if self.stop.received:
                raise self.stop.stopped() from None
            cause = death_cause(process and process.poll(), out_of_memory_kills() - oom_kills)
            raise Stopped("killed", "DeadKernelError", f"the kernel died: {cause}") from None
        finally:
            self.stop.kill()  # the kernel is gone by now; whatever it started goes with it
        return self.nb

    def create_kernel_manager(self) -> Any:
        manager = super().create_kernel_manager()
        if manager.kernel_name == "python3" and manager.kernel_spec is not None:
            # A kernel of that name in the user's home may belong to another environment: ours runs in this
            # one.
            manager.kernel_spec.argv[0] = sys.executable
        if hasattr(manager, "transport_encryption"):  # jupyter_client 8.10: other users of the node stay out
            manager.transport_encryption = "auto"
        return manager

    def papermill_execute_cells(self) -> None:
        for index, cell in enumerate(self.nb.cells):
            if self.stop.received:
                raise self.stop.stopped()
            self.record.cell_start(cell, index)
            self.stop.told = False
            try:
                self.execute_cell(cell, index)
            except CellExecutionError as error:
                if self.stop.received:
                    self.record.cell_stopped(cell, "preempted")
                    raise self.stop.stopped() from error
                self.record.cell_exception(cell, index, exception=error)
                self.record.cell_complete(cell, index)
                self._fail(error)
                return
            except DeadKernelError:
                self.record.cell_stopped(cell, "preempted" if self.stop.received else "killed")
                raise
            except BaseException:
                self.record.cell_stopped(cell, "failed")
                raise
            finally:
                self.stop.cell_is_running = False
            self.record.cell_complete(cell, index)

    def _fail(self, error: CellExecutionError) -> None:
        """Note the failure; papermill itself raises it, after marking the cell. It takes `SystemExit: 0` for
        success, so that one is raised here: the cells below did not run."""
        self.record.status = "failed"
        message = f"{error.ename}: {error.evalue}"
        self.record.error = {
            "type": error.ename,
            "message": error.evalue,
            "sentence": self.record.sentence(message),
        }
        if error.ename == "SystemExit":
            raise Stopped("failed", error.ename, message)

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "execute_input":
            self.stop.cell_is_running = True
            self.stop.tell_cell()
        elif msg["msg_type"] in ("display_data", "update_display_data"):
            data = msg["content"]["data"]
            if "arcnb-progress" in data.get("text/html", ""):
                self.record.note_progress(data.get("text/plain", ""))
        elif (
            msg["msg_type"] == "stream" and "%|" in msg["content"]["text"]
        ):  # a bar of tqdm, from any library
            self.record.note_progress(msg["content"]["text"].rstrip().rpartition("\r")[2].rpartition("\n")[2])
        return super().process_message(msg, cell, cell_index)
