"""Relative paths in parameters stay the same files, from wherever a run is resumed."""

import os

import pytest

from arcnb.lab import cli
from arcnb.lab.runs import disk, provenance
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.fingerprints import fingerprint
from arcnb.lab.runs.manifest import write_manifest
from arcnb.lab.runs.queueing import queue_run
from arcnb.lab.runs.run import new_run, runs_root

READ = "from pathlib import Path\nfound = Path(label).read_text()\nPath('made.txt').write_text(found)"
ROOT = "from arcnb.lab.runs.run import runs_root"
RECORD = "run.record({'found': found, 'root': str(runs_root())})"


@pytest.fixture
def here_and_there(tmp_path, monkeypatch):
    """Two folders with a file of the same name; we are in the first."""
    folders = tmp_path / "here", tmp_path / "far" / "there"
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "rows.txt").write_text(folder.name)
    monkeypatch.chdir(folders[0])
    return folders


def test_a_resumed_run_goes_on_where_it_was_started(notebook, here_and_there, monkeypatch):
    here, there = here_and_there
    path = notebook("assert (run.path / 'go').exists()", READ, ROOT, RECORD)
    assert cli.main(["run", str(path), "-p", "label", "./rows.txt", "--quiet"]) == 1
    (run,) = list_runs()
    assert run.manifest["cwd"] == str(here)
    (run.path / "go").touch()
    root = runs_root()
    monkeypatch.chdir(there)
    monkeypatch.setenv("ARCNB_RUNS", "../../runs")  # relative to this folder, so the kernel must be told
    assert cli.main(["run", "--resume", str(run.path), "--quiet"]) == 0
    assert run.manifest["outcome"] == {"found": "here", "root": str(root)}
    assert (here / "made.txt").is_file()
    assert not (there / "made.txt").exists()
    assert os.getcwd() == str(there), "only the kernel works elsewhere"


def test_a_queued_run_starts_where_it_was_queued(notebook, here_and_there, monkeypatch):
    here, there = here_and_there
    path = notebook(READ, ROOT, RECORD)
    values = {"n": 3, "seconds": 0.0, "label": "./rows.txt"}
    run = queue_run("waiting", path, values, provenance.surroundings(), references={})
    monkeypatch.chdir(there)
    assert cli.main(["run", "--resume", "waiting", "--quiet"]) == 0
    assert run.manifest["outcome"]["found"] == "here"
    assert run.manifest["inputs"]["parameters"]["label"] == f"./rows.txt @ {fingerprint(here / 'rows.txt')}"


@pytest.mark.parametrize("left", ["nothing", "an older manifest"])
def test_without_its_folder_a_run_works_where_it_is_resumed(
    left, notebook, here_and_there, monkeypatch, capfd
):
    here, there = here_and_there
    run = queue_run("w", notebook(READ, ROOT, RECORD), {"n": 3, "seconds": 0.0, "label": "./rows.txt"}, {})
    monkeypatch.chdir(there)
    before = {name: value for name, value in run.manifest.items() if name != "cwd"}
    write_manifest(run.path, before | ({"cwd": str(here / "gone")} if left == "nothing" else {}))
    assert cli.main(["run", "--resume", "w", "--quiet"]) == 0
    assert run.manifest["outcome"]["found"] == "there"
    assert ("cannot be entered; relative paths" in capfd.readouterr().err) == (left == "nothing")


def test_what_a_relative_path_points_to_is_kept(here_and_there, monkeypatch):
    here, there = here_and_there
    needed = new_run("needed")
    waiting = new_run("waiting", {"tasks": os.path.relpath(needed.path / "manifest.json", here)})
    monkeypatch.chdir(there)
    assert disk.pointers(list_runs()) == {needed.path: {waiting.path}}
