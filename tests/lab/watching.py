"""Waiting for other processes, and reading what an executed notebook says of its cells."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import nbformat


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> object:
    """Poll until the condition gives something true; the deadline is a failure."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"still not after {seconds} s: {condition}")


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def statuses(path: Path) -> list[str]:
    """What the executed copy says of its code cells (markers that were added on top have no status)."""
    cells = nbformat.read(path, as_version=4).cells
    return [cell.metadata.papermill.status for cell in cells if cell.cell_type == "code"]
