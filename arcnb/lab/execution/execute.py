"""Running the cells of a notebook and writing down what happens; `ArcnbEngine` is the way in."""

import asyncio
import os
import shutil
import sys
import uuid
from pathlib import Path
from typing import Any

import nbformat
import zmq
import zmq.asyncio
from jupyter_client.asynchronous import AsyncKernelClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.exceptions import PapermillException
from papermill.iorw import LocalHandler
from papermill.log import logger
from papermill.utils import chdir
from traitlets import default

from arcnb.lab.execution.journal import Console, RunRecord
from arcnb.lab.execution.kernel_end import STATEMENT
from arcnb.lab.execution.stopping import Stopped, StopSignals
from arcnb.lab.execution.terminal_text import printed
from arcnb.lab.runs.heartbeat import Heartbeat
from arcnb.lab.runs.manifest import RUN_DIR, RUNS, working_folder
from arcnb.lab.runs.run import Run, runs_root
from arcnb.machine.files import write_whole
from arcnb.machine.processes import death_cause, out_of_memory_kills

REPLY_SECONDS = 2.0  # after an interrupted cell's last message; its reply comes in milliseconds
SILENT_SECONDS = 60.0  # without a message after a cell's reply: what it showed last is lost
NEVER = 2**30  # seconds


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
    # Until the end is in the manifest a stop is only noted, and the heart beats: who sees none takes the run
    # for dead, and resumes or removes it.
    with StopSignals(grace_seconds, record.note_stop) as stop:
        try:
            record.notebook_start()
            client = ArcnbClient(
                record, stop, kernel_name=kernel_name, log=logger, log_output=log_output, **settings
            )
            client.execute(env=_environment(run), cwd=_working_folder(run))
        except BaseException as error:
            record.note_end(error)
            raise RunStopped(record.error["sentence"]) from error
        finally:
            try:
                record.notebook_complete()
            finally:
                if record.heartbeat is not None:
                    record.heartbeat.finish()
    return nb


# glibc gives every large array back to the system at once, and takes its pages anew, zeroed one by one: a
# fifth of a training step on two cores. So it keeps up to four gigabytes for the next one.
_KEEPING_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(4 * 2**30)}


def _environment(run: Run) -> dict[str, str]:
    """The kernel's; its paths are absolute, because a kernel may work in another folder than this process."""
    allocator = {} if shutil.which("nvidia-smi") else _KEEPING_MEMORY
    return allocator | os.environ | {RUN_DIR: str(run.path.resolve()), RUNS: str(runs_root())}


def _working_folder(run: Run) -> str | None:
    """Where the kernel works, so that relative paths in the parameters mean the same in every attempt."""
    manifest = run.manifest
    folder = working_folder(manifest)
    if folder is None and manifest.get("cwd"):
        print(
            f"arcnb: {manifest['cwd']}, where {run.path.name} was started, cannot be entered; "
            f"relative paths in its parameters start from {Path.cwd()}",
            file=sys.stderr,
        )
    return folder


def _write_copy(self: LocalHandler, text: str, path: str) -> None:
    """Stands in for papermill's way of writing a local file, which begins by emptying it."""
    with chdir(self._cwd):
        write_whole(Path(path).absolute(), text)


class UnlimitedClient(AsyncKernelClient):
    """Takes messages as fast as they come. ZeroMQ's limit of a thousand would let the kernel wait, for a
    reader that waits for the kernel."""

    @default("context")
    def _unlimited_context(self) -> zmq.asyncio.Context:
        self._created_context = True
        context = zmq.asyncio.Context()
        context.setsockopt(zmq.RCVHWM, 0)
        return context


class ArcnbClient(PapermillNotebookClient):
    """Runs the cells one by one and raises Stopped when that ends early for any reason but a failing cell."""

    def __init__(self, record: RunRecord, stop: StopSignals, **settings: Any):
        # A tagged or tolerated error would end as done here and as an exception in papermill: let none pass.
        # How long outputs are waited for is seen to below.
        settings |= {"force_raise_errors": True, "iopub_timeout": NEVER, "record_timing": True}
        super().__init__(record, **settings)
        self.record = record
        self.stop = stop
        self.n_messages = 0

    def execute(self, **settings: Any) -> Any:
        self.reset_execution_trackers()
        oom_kills = out_of_memory_kills()
        process = None
        try:
            with self.setup_kernel(**settings):
                process = self.km.provisioner.process
                self.km.shutdown_wait_time = 20.0  # what a stage may take for its exit handlers
                self.stop.pid = process.pid
                self.record.note_kernel(process.pid)
                heartbeat = Heartbeat(self.record.run.path, self.record.beat, self.stop.tick)
                self.record.heartbeat = heartbeat
                heartbeat.start()
                try:
                    self.papermill_execute_cells()
                finally:
                    self.stop.write_request()  # the kernel may take longer to go than we are given
                    self.record.beat()
                self.set_widgets_metadata()
        except DeadKernelError:
            if self.stop.received:
                raise self.stop.stopped() from None
            cause = death_cause(process and process.poll(), out_of_memory_kills() - oom_kills)
            raise Stopped("killed", "DeadKernelError", f"the kernel died: {cause}") from None
        finally:
            self.stop.kill()  # the kernel is gone by now; whatever it started goes with it
            self.stop.pid = self.record.kernel_pid = None  # which another process may get
        return self.nb

    def create_kernel_manager(self) -> Any:
        manager = super().create_kernel_manager()
        if manager.kernel_name == "python3" and manager.kernel_spec is not None:
            # A kernel of that name in the user's home may belong to another environment: ours runs in this
            # one.
            manager.kernel_spec.argv[0] = sys.executable
            self.extra_arguments = [*self.extra_arguments, f"--IPKernelApp.exec_lines={STATEMENT}"]
        # Names in Linux's abstract space instead of ports, which another process may take between their
        # choice and their use; no file of theirs is left behind, and no path of theirs is too long.
        manager.client_factory = UnlimitedClient
        manager.transport, manager.ip = "ipc", f"@arcnb-{uuid.uuid4()}"
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
                self._fail(error, cell)
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

    def _fail(self, error: CellExecutionError, cell: Any) -> None:
        """Note the failure; papermill itself raises it, after marking the cell. It takes `SystemExit: 0` for
        success, so that one is raised here: the cells below did not run."""
        self.record.status = "failed"
        # The kernel's reply knows no exception of showing a value, which only the output names.
        shown = [one for one in cell.outputs if one.output_type == "error"]
        name, message = (shown[0].ename, shown[0].evalue) if shown else (error.ename, error.evalue)
        why = f"{name}: {message}"
        self.record.note_error(name, message, why)
        if name == "SystemExit":
            raise Stopped("failed", name, why)

    async def _async_poll_output_msg(self, parent_msg_id: str, cell: Any, cell_index: int) -> None:
        """Until the cell's last message, or until none has come for long though the cell has ended: then what
        else it showed is lost, and the run goes on."""
        reading = asyncio.ensure_future(super()._async_poll_output_msg(parent_msg_id, cell, cell_index))
        try:
            while not reading.done():
                ended, before = "shell.execute_reply" in cell.metadata.execution, self.n_messages
                await asyncio.wait({reading}, timeout=SILENT_SECONDS)
                if ended and not reading.done() and self.n_messages == before:
                    self.record.note_lost_outputs(cell, cell_index)
                    return
            reading.result()
        finally:
            reading.cancel()

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        self.n_messages += 1
        if msg["msg_type"] == "execute_input":
            self.stop.cell_is_running = True
            self.stop.tell_cell()
        elif self.stop.told and msg["msg_type"] == "status" and msg["content"]["execution_state"] == "idle":
            # An interrupt after a cell's last statement ends the kernel's handling of the cell before its
            # reply is sent, and nbclient would wait for that reply until the grace time is over.
            waiting = self.task_poll_for_reply
            asyncio.get_running_loop().call_later(REPLY_SECONDS, waiting.cancel)
        elif msg["msg_type"] in ("display_data", "update_display_data"):
            data = msg["content"]["data"]
            if "arcnb-progress" in data.get("text/html", ""):
                self.record.note_progress(data.get("text/plain", ""))
        elif msg["msg_type"] == "stream" and "%|" in msg["content"]["text"]:  # a bar of tqdm, by any library
            self.record.note_progress(printed("", msg["content"]["text"].strip()).rpartition("\n")[2])
        return super().process_message(msg, cell, cell_index)

    def output(self, outs: list[Any], msg: Any, display_id: str | None, cell_index: int) -> Any:
        """Let text that continues a stream join it, as a terminal would show it, instead of piling up."""
        if msg["msg_type"] != "stream" or self.output_hook_stack[msg["parent_header"].get("msg_id")]:
            return super().output(outs, msg, display_id, cell_index)
        name, text = msg["content"]["name"], msg["content"]["text"]
        if outs and not self.clear_before_next_output and outs[-1].get("name") == name:
            outs[-1]["text"] = printed(outs[-1]["text"], text)
            return nbformat.v4.new_output("stream", name=name, text=text)
        msg["content"]["text"] = printed("", text)
        return super().output(outs, msg, display_id, cell_index)
