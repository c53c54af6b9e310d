"""Small notebooks, real kernels: what the lab's tests share."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PARAMETERS = "n = 3  # how many\nseconds = 0.0  # wait per item\nlabel = 'x'  # any text\n"


@pytest.fixture(autouse=True)
def runs_root(tmp_path, monkeypatch) -> Path:
    root = tmp_path / "runs"
    monkeypatch.setenv("ARCNB_RUNS", str(root))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))  # signatures of executed notebooks
    monkeypatch.delenv("ARCNB_RUN_DIR", raising=False)
    return root


@pytest.fixture
def notebook(tmp_path) -> Callable[..., Path]:
    """notebook(cell, ..., name=..., parameters=...) writes a notebook; a cell beginning with # is
    markdown."""

    def write(*cells: str, name: str = "01_small", parameters: str = PARAMETERS) -> Path:
        nodes = [
            new_markdown_cell("# Small\nFor a test."),
            new_code_cell(parameters, metadata={"tags": ["parameters"]}),
            new_code_cell("from arcnb.lab.runs import open_run\nrun = open_run()"),
        ]
        nodes += [(new_markdown_cell if cell.startswith("#") else new_code_cell)(cell) for cell in cells]
        kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(new_notebook(cells=nodes, metadata={"kernelspec": kernel}), path)
        return path

    return write


@pytest.fixture
def start() -> Callable[..., subprocess.Popen]:
    """start("run", ...): the command line in a process of its own, killed at the end of the test."""
    processes = []

    def launch(*arguments: object) -> subprocess.Popen:
        command = [sys.executable, "-m", "arcnb.lab.cli", *map(str, arguments)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        processes.append(process)
        return process

    yield launch
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> object:
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
