"""Waiting for other processes; the only run, and what an executed notebook says of its cells."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import nbformat

from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.run import Run


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> object:
    """Poll until the condition gives something true; the deadline is a failure."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"still not after {seconds} s: {condition}")


def meanwhile(act: Callable[[], object]) -> AbstractContextManager[None]:
    """Call act() in a thread while the block runs. Where it fails, the block is interrupted and the failure
    is raised: nothing waits for what will not come."""
    return _beside(lambda interrupt: act())


def interrupted_when(ready: Callable[[], object]) -> AbstractContextManager[None]:
    """The block gets one SIGINT once ready() holds."""

    def act(interrupt: Callable[[], None]) -> None:
        wait_for(ready, 400)  # two processes that import TRL on a busy machine
        interrupt()

    return _beside(act)


@contextmanager
def _beside(act: Callable[[Callable[[], None]], object]) -> Iterator[None]:
    """Call act(interrupt) in a thread while the block runs. interrupt() sends SIGINT, but not to what follows
    the block: that would end the whole session."""
    failures: list[BaseException] = []
    over, turn = threading.Event(), threading.Lock()

    def interrupt() -> None:
        with turn:  # the end of the block waits for it
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    def run() -> None:
        try:
            act(interrupt)
        except BaseException as failure:
            failures.append(failure)
            interrupt()

    threading.Thread(target=run, daemon=True).start()
    try:
        yield
    finally:
        with turn:
            over.set()
        if failures:
            raise failures[0]


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it has just gone
        return False


def only_run() -> Run:
    """The run, if there is one and no other."""
    (run,) = list_runs()
    return run


def statuses(path: Path) -> list[str]:
    """What the executed copy says of its code cells (markers that were added on top have no status)."""
    cells = nbformat.read(path, as_version=4).cells
    return [cell.metadata.papermill.status for cell in cells if cell.cell_type == "code"]
