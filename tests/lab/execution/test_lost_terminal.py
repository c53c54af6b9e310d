"""A run does not need its terminal."""

import os
import subprocess
import sys

import pytest

from arcnb.lab.execution.lost_terminal import Steady
from arcnb.lab.runs.finding import list_runs


def command(*arguments):
    return [sys.executable, "-m", "arcnb.lab.cli", *map(str, arguments)]


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_a_run_without_standard_streams_is_done(notebook, closed):
    path = notebook("# One", "print(n)", "# Two", "run.record({'n': n})")
    result = subprocess.run(
        command("run", path), preexec_fn=lambda: [os.close(number) for number in closed], timeout=120
    )
    assert result.returncode == 0
    assert [run.status for run in list_runs()] == ["done"]


def test_a_run_whose_reader_goes_away_is_done(notebook):
    path = notebook("# One", "import time; time.sleep(0.5)", "# Two", "print(n)", "# Three", "run.record()")
    process = subprocess.Popen(command("run", path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout.readline().startswith(b"run folder: ")
    process.stdout.close()
    assert process.wait(120) == 0
    assert [run.status for run in list_runs()] == ["done"]


def test_a_terminal_without_the_characters_gets_escapes(tmp_path):
    with open(tmp_path / "a.txt", "w", encoding="ascii") as file:
        Steady(file).write("1 · \ud800\n")
    assert (tmp_path / "a.txt").read_text() == "1 \\xb7 \\ud800\n"
