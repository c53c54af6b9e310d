"""Removing runs, runs of other versions, taken names, homes without space."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.execution import usable_home
from arcnb.lab.runs import disk, provenance
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.heartbeat import Heartbeat
from arcnb.lab.runs.run import Run, new_run
from tests.lab.watching import wait_for


def run_with(name, size=0, **parameters):
    run = new_run(name, parameters)
    (run.path / "data.bin").write_bytes(os.urandom(size))
    return run.record({"x": 1}, artifacts=["data.bin"])


def test_disk_use_and_what_others_need(runs_root, capsys):
    mother = run_with("mother", 3_000_000)
    daughter = run_with("daughter", 1_000_000, tasks=str(mother.path / "data.bin"))
    other = run_with("other", 10, predictions=f"{daughter.path}, {mother.path}/data.bin")
    waiting = new_run(
        "waiting",
        {"tasks": "${data.x}"},
        None,
        "engine",
        None,
        {"status": "queued", "references": {"data": str(other.path)}},
    )
    assert cli.main(["rm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[-3:-1]] == [daughter.path.name, mother.path.name]
    assert lines[-2].split()[0].startswith("3")
    assert lines[-1].endswith(f"4 runs in {runs_root}")

    for name, holder in (("mother", daughter), ("daughter", other), ("other", waiting)):
        assert cli.main(["rm", name]) == 2
        error = capsys.readouterr().err
        assert "is kept: " in error
        assert holder.path.name in error
    assert len(list_runs()) == 4
    assert cli.main(["rm", "daughter", "other", "waiting", "--dry-run"]) == 0, "what goes together may go"
    assert capsys.readouterr().out.count("would remove") == 3
    assert len(list_runs()) == 4
    assert cli.main(["rm", "mother", "--force"]) == 0
    assert not mother.path.exists()
    assert cli.main(["rm", "daughter", "other", "waiting"]) == 0
    assert list_runs() == []
    assert list(runs_root.iterdir()) == []


def test_folders_that_lost_their_manifest_are_counted_and_stay(runs_root, capsys):
    run_with("whole")
    (runs_root / "sweeps").mkdir()
    assert cli.main(["rm"]) == 0
    assert not capsys.readouterr().err
    half = run_with("half", 3_000_000)
    (half.path / "manifest.json").unlink()
    assert cli.main(["rm"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].endswith(f"1 runs in {runs_root}")
    assert "not counted: 1 folder of runs without a manifest or half removed, 3" in said.err
    assert said.err.endswith(f", the first {half.path.name}\n")
    assert half.path.is_dir()


def test_what_an_interrupted_removal_left_is_counted(runs_root, capsys, monkeypatch):
    run = run_with("half", 3_000_000)

    def killed(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(disk.shutil, "rmtree", killed)
    assert cli.main(["rm", "half"]) == 130
    (left,) = runs_root.glob(".removed.*/*")
    assert left.name == run.path.name
    assert capsys.readouterr().err == "arcnb: interrupted\n"
    assert cli.main(["rm"]) == 0
    said = capsys.readouterr().err
    assert "not counted: 1 folder of runs without a manifest or half removed, 3" in said
    assert said.endswith(f", the first {left.relative_to(runs_root)}\n")


def test_a_run_that_cannot_be_removed_is_still_a_run(capsys, monkeypatch):
    run = new_run("kept").record()
    (run.path / "a.txt").touch()

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    def half(path):
        (Path(path) / "a.txt").unlink()
        refused(path)

    with monkeypatch.context() as patch:
        patch.setattr(disk.shutil, "rmtree", refused)
        assert cli.main(["rm", "kept"]) == 2
        assert capsys.readouterr().err == f"arcnb: cannot remove {run.path}: Permission denied\n"
        assert list_runs() == [run]
        patch.setattr(disk.shutil, "rmtree", half)
        assert cli.main(["rm", "kept"]) == 2
    (left,) = disk.folders_without_manifest()
    assert f"Permission denied; what is left of it is {left}\n" in capsys.readouterr().err
    assert list_runs() == []


def test_a_run_that_is_a_link_is_not_removed(runs_root, tmp_path, capsys):
    run = new_run("far").record()
    run.path.rename(tmp_path / "far")
    run.path.symlink_to(tmp_path / "far")
    assert cli.main(["rm", run.path.name]) == 2
    assert (
        capsys.readouterr().err == f"arcnb: {run.path} is a link to {tmp_path / 'far'}; remove both by hand\n"
    )
    assert list_runs() == [run]
    assert [path.name for path in runs_root.iterdir()] == [run.path.name]


def test_running_runs_are_not_removed(capsys):
    run = new_run("busy")
    assert cli.main(["rm", "busy"]) == 2
    assert "is running; stop it before you remove it" in capsys.readouterr().err
    assert run.path.is_dir()


def test_a_root_that_is_a_link_protects_as_well(tmp_path, monkeypatch, capsys):
    (tmp_path / "far").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "far")
    monkeypatch.delenv("ARCNB_RUNS")  # the root of a checkout is taken as it is
    monkeypatch.setattr(provenance, "repository", lambda: tmp_path)
    mother = new_run("mother").record({"x": 1})
    new_run("daughter", {"tasks": str(mother.path / "data.bin")}).record({"x": 1})
    for name in ("mother", str(mother.path), str(mother.path.resolve())):
        assert cli.main(["rm", name]) == 2
        assert "is kept: " in capsys.readouterr().err
    assert cli.main(["rm", "mother", "daughter"]) == 0
    assert list((tmp_path / "far").iterdir()) == []


def test_runs_that_were_moved_or_copied_still_know_what_they_need(tmp_path, monkeypatch, capsys):
    mother = run_with("mother")
    new_run("daughter", {"tasks": str(mother.path / "data.bin")}).record({"x": 1})
    shutil.copytree(mother.path.parent, tmp_path / "copied")
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "copied"))
    assert cli.main(["rm", "mother"]) == 2
    assert "daughter points to it" in capsys.readouterr().err
    shutil.rmtree(mother.path.parent)
    assert cli.main(["rm", "mother"]) == 2
    assert cli.main(["rm", "daughter", "mother"]) == 0


def test_what_is_at_work_is_not_removed_by_force_either(capsys):
    busy = new_run("busy")
    waiting = new_run("waiting", fields={"status": "queued", "waits_for": "slurm 7"})
    for force in ([], ["--force"]):
        assert cli.main(["rm", "busy", *force]) == 2
        assert "is running; stop it before you remove it" in capsys.readouterr().err
        assert cli.main(["rm", "waiting", *force]) == 2
        assert f"{waiting.path} waits as slurm 7; arcnb cancel it first" in capsys.readouterr().err
    assert busy.path.is_dir()
    assert waiting.path.is_dir()


@pytest.mark.parametrize("manifest", ["", '{"schema": 99}'])
def test_what_gives_a_sign_of_life_is_not_removed_though_its_manifest_cannot_be_read(manifest, capsys):
    run = new_run("busy")
    (run.path / "manifest.json").write_text(manifest)
    heartbeat = Heartbeat(run.path, dict)
    heartbeat.start()
    for force in ([], ["--force"]):
        assert cli.main(["rm", "busy", *force]) == 2
        assert re.search(rf"{run.path} has a heartbeat \d+ s old; stop it", capsys.readouterr().err)
    heartbeat.finish()
    assert cli.main(["rm", "busy"]) == 0


def test_folders_that_are_not_runs_are_left_alone(tmp_path, monkeypatch, capsys):
    """Web pages and browser extensions have a manifest.json, too."""
    run_with("mine")
    folder = tmp_path / "extension"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"manifest_version": 3, "schema": 1, "name": "mine"}))
    monkeypatch.chdir(tmp_path)
    for name in ("extension", "./extension", str(folder)):
        assert cli.main(["rm", name, "--force"]) == 2
        assert f"there is no run '{name}'" in capsys.readouterr().err
    with pytest.raises(ArcnbError, match="extension is not a run of arcnb, so it is left alone"):
        disk.remove(Run(folder))
    assert (folder / "manifest.json").is_file()
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("ARCNB_RUNS", str(tmp_path / "others"))
        far = new_run("far").record({"x": 1})
    assert cli.main(["rm", str(far.path)]) == 0, "a run of another root has a manifest of ours"
    assert not far.path.exists()


@pytest.mark.parametrize("reference", ["", " ", "2", "20", "m"])
def test_only_whole_names_are_removed(reference, capsys):
    run = run_with("mine")
    assert cli.main(["rm", reference]) == 2
    capsys.readouterr()
    assert run.path.is_dir()
    assert cli.main(["show", run.path.name[:4]]) == 0, "for looking a beginning will do"
    assert cli.main(["show", ""]) == 2
    assert "an empty text names no run" in capsys.readouterr().err


def test_a_file_with_two_names_counts_once(tmp_path):
    (tmp_path / "a").write_bytes(os.urandom(100_000))
    os.link(tmp_path / "a", tmp_path / "b")
    assert 100_000 <= disk.disk_bytes(tmp_path) < 110_000


def test_runs_of_other_versions_are_named_and_still_protect(runs_root, capsys):
    mother = run_with("mother")
    for version in (0, 2):
        folder = runs_root / f"20200101-00000{version}-old"
        folder.mkdir()
        manifest = {"schema": version, "name": "old", "parents": [str(mother.path)]}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    assert cli.main(["ls"]) == 0
    out = capsys.readouterr().out
    assert out.count("unreadable ") == 2
    assert "has schema 0, this version of arcnb reads schema 1" in out
    for command, code in (
        (["show"], 2),
        (["run", "--resume"], 2),
        (["status"], 1),
        (["cancel"], 2),
        (["submit", "--on", "slurm", "--resume"], 2),
    ):
        assert cli.main([*command, "20200101-000000-old"]) == code
        assert "has schema 0" in capsys.readouterr().err
    assert cli.main(["status"]) == 0
    assert cli.main(["rm", "mother"]) == 2
    assert "is kept: 20200101-000000-old and 1 more point to it" in capsys.readouterr().err
    assert cli.main(["rm", "20200101-000000-old", "20200101-000002-old", "mother"]) == 0
    assert list_runs() == []


def test_a_manifest_nested_without_end_points_to_nothing():
    mother, other = run_with("mother"), run_with("other")
    (other.path / "manifest.json").write_text('{"parents":' * 100_000)
    assert disk.pointers([mother, other]) == {}


def test_a_name_that_is_taken(notebook, capsys):
    run = run_with("mine")
    path = notebook("run.record({})")
    for command in (["run", str(path)], ["submit", "--on", "slurm", str(path)]):
        assert cli.main([*command, "--name", "mine"]) == 2
        error = capsys.readouterr().err
        assert f"there is a run called 'mine' already, {run.path} (done)" in error
        assert error.count("\n") == 1
    assert len(list_runs()) == 1
    assert cli.main(["run", str(path), "--name", "mine", "--again"]) == 0
    assert len(list_runs()) == 2


def test_a_run_that_failed_and_left_nothing_gives_its_name_back(notebook, capsys):
    refused = notebook("raise ValueError('n must be more')", "run.record({})")
    assert cli.main(["run", str(refused), "--name", "mine", "--quiet"]) == 1
    assert cli.main(["submit", "--on", "slurm", str(refused), "--name", "mine", "--dry-run"]) == 0
    late = notebook("(run.path / 'part').write_text('x')", "raise ValueError('too late')")
    assert cli.main(["run", str(late), "--name", "mine", "--quiet"]) == 1
    capsys.readouterr()
    assert cli.main(["run", str(late), "--name", "mine"]) == 2
    assert f"there is a run called 'mine' already, {list_runs()[-1].path} (failed)" in capsys.readouterr().err
    assert len(list_runs()) == 2, "what the first one said is kept"


def test_cancel_stops_a_run_of_this_machine(notebook, start, runs_root, capsys):
    wait = "import time\n(run.path / 'ready').write_text('x')\ntime.sleep(60)"
    process = start("run", notebook(wait), "--name", "here")
    wait_for(lambda: list(runs_root.glob("*/ready")))
    assert cli.main(["cancel", "here"]) == 0
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + 15, errors
    (run,) = list_runs()
    assert run.status == "preempted"
    capsys.readouterr()
    assert cli.main(["cancel", "here"]) == 0
    assert "preempted already" in capsys.readouterr().err


def record_task(run, scheduler, task):
    """As if it had been submitted."""
    (run.path / "job").mkdir()
    record = {"scheduler": scheduler, "task": task, "folder": "", "submitted": ""}
    (run.path / "job" / "job.json").write_text(json.dumps(record))


@pytest.fixture
def scancel(tmp_path, monkeypatch):
    """The file in which a stand-in for scancel, which refuses to know job 8, writes what it was given."""
    tools, log = tmp_path / "tools", tmp_path / "scancel.log"
    tools.mkdir()
    (tools / "scancel").write_text(
        f'#!/bin/bash\necho "$*" >> {log}\n[[ " $* " != *" 8 "* ]] || {{ echo "no job 8" >&2; exit 1; }}\n'
    )
    (tools / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    return log


def test_a_run_that_was_submitted_once_and_now_runs_here_is_stopped_here(
    notebook, start, runs_root, scancel, capsys
):
    wait = "import time\n(run.path / 'ready').write_text('x')\ntime.sleep(60)"
    process = start("run", notebook(wait), "--name", "here")
    wait_for(lambda: list(runs_root.glob("*/ready")))
    (run,) = list_runs()
    record_task(run, "slurm", "7")
    assert cli.main(["cancel", "here"]) == 0
    assert "told to stop" in capsys.readouterr().err
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + 15, errors
    assert cli.main(["cancel", "here"]) == 0
    assert "preempted already" in capsys.readouterr().err
    assert not scancel.exists(), "job 7 is none of this run any more"
    run.update(job="slurm 7")
    assert cli.main(["cancel", "here"]) == 0, "preempted by its scheduler, where it waits to go on"
    assert scancel.read_text() == "7\n"


def test_one_that_cannot_be_cancelled_leaves_the_others(scancel, capsys):
    tasks = {"a": ("slurm", "7"), "b": ("slurm", "8"), "c": ("slurm", "9"), "d": ("htcondor", "5 (DAG)")}
    for name, (scheduler, task) in tasks.items():
        run = new_run(name, fields={"status": "queued", "waits_for": f"{scheduler} {task}"})
        record_task(run, scheduler, task)
    new_run("e", fields={"status": "queued"})
    assert cli.main(["cancel", "d", "a", "b", "c", "e"]) == 2
    errors = capsys.readouterr().err
    assert "slurm 8: Slurm did not cancel: no job 8" in errors
    assert "htcondor is not installed here" in errors
    assert {run.name: run.status for run in list_runs()} == {
        "a": "killed", "b": "queued", "c": "killed", "d": "queued", "e": "killed",
    }  # fmt: skip
    assert scancel.read_text().splitlines() == ["7 8 9", "7", "8", "9"]


@pytest.mark.parametrize("home", ["full", "missing"])
def test_a_home_without_space_stops_no_run(notebook, tmp_path, home):
    """In a process of its own with a home of its own: a file system of 64 kB where one can be mounted."""
    folder = tmp_path / "home"
    folder.mkdir()
    path = notebook(
        "import matplotlib\nfrom IPython.paths import get_ipython_dir",
        "run.record({'ipython': get_ipython_dir(), 'n': n})",
    )
    command = [sys.executable, "-m", "arcnb.lab.cli", "run", str(path)]
    if home == "full":
        mount = f"mount -t tmpfs -o size=64k tmpfs {folder}"
        if (
            os.geteuid() != 0
            or subprocess.run(["unshare", "--mount", "sh", "-c", mount], check=False).returncode
        ):
            pytest.skip("no file system can be mounted here")
        command = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", *command]
    else:
        shutil.rmtree(folder)
    environment = {name: value for name, value in os.environ.items() if name not in usable_home.HABITS}
    result = subprocess.run(
        command,
        env=environment | {"HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    reason = "No space left on device" if home == "full" else "No such file or directory"
    assert f"arcnb: the home folder takes no files ({folder}: {reason})" in result.stderr
    (run,) = list_runs()
    assert run.status == "done"
    assert not run.manifest["outcome"]["ipython"].startswith(str(folder))


def test_a_home_with_space_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    with usable_home.substitute_home() as problem:
        assert problem is None
    assert list(tmp_path.iterdir()) == []
