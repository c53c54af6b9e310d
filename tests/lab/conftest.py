"""Small notebooks, real kernels: what the lab's tests share."""

import subprocess
import sys
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
            new_code_cell("from arcnb.lab import open_run\nrun = open_run()"),
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
