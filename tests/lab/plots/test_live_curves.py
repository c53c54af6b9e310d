"""Curves are drawn while a cell runs, and stay in the executed copy."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat

from arcnb.lab import cli
from arcnb.lab.plots.live_curves import live_curves
from arcnb.lab.runs.finding import list_runs
from tests.lab.watching import wait_for

WRITE = """
import json, time
from arcnb.lab.plots.live_curves import live_curves
path = run.path / "metrics.jsonl"
with live_curves(path, ["loss"]):
    for step in range(n):
        with path.open("a") as file:
            file.write(json.dumps({"step": step, "loss": 1 / (1 + step)}) + "\\n")
        time.sleep(seconds)
    print("logged")
"""


def outputs(path):
    notebook = nbformat.read(path, as_version=4)
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def pictures(path):
    found = [output for output in outputs(path) if output.output_type == "display_data"]
    return [output["data"]["image/svg+xml"] for output in found if "image/svg+xml" in output["data"]]


def test_one_picture_stays_and_shows_the_last_step(notebook):
    assert cli.main(["run", str(notebook(WRITE)), "-p", "n", "31", "--quiet"]) == 0
    (run,) = list_runs()
    (picture,) = pictures(run.copy_path)
    assert ">30<" in picture, "the axis reaches the last step"
    assert ">loss<" in picture


def test_a_killed_run_keeps_the_picture_that_was_drawn_live(notebook, tmp_path):
    copy, program = tmp_path / "copy.ipynb", Path(sys.executable).with_name("papermill")
    command = [program, "--engine", "arcnb", "--autosave-cell-every", "1", "--no-progress-bar"]
    command += ["-p", "n", "1000", "-p", "seconds", "0.2", notebook(WRITE), copy]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: process.poll() is not None or (copy.is_file() and pictures(copy)))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    (run,) = list_runs()
    logged = len((run.path / "metrics.jsonl").read_text().splitlines())
    assert 1 < logged < 1000
    assert len(pictures(copy)) == 1


def test_trouble_is_said_and_stops_nothing(notebook):
    broken = WRITE.replace('json.dumps({"step": step, "loss": 1 / (1 + step)})', "'{'")
    assert cli.main(["run", str(notebook(broken)), "--quiet"]) == 0
    (run,) = list_runs()
    texts = [output["data"].get("text/markdown", "") for output in outputs(run.copy_path) if "data" in output]
    assert any("No curves: " in text and "line 1 is not a JSON object" in text for text in texts)


def test_outside_of_a_notebook_nothing_is_drawn(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    with live_curves(path, ["loss"]):
        path.write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n")
    assert capsys.readouterr().out == ""
