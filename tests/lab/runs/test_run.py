"""Run folders and manifests: unique, atomic, found again, honest about artifacts."""

import errno
import json
import math
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from arcnb.errors import ArcnbError
from arcnb.lab.execution.sessions import open_run
from arcnb.lab.runs import disk, provenance
from arcnb.lab.runs.cards import flat, machine_text, news, short_text, size_text, value_text
from arcnb.lab.runs.finding import find_run, list_runs
from arcnb.lab.runs.heartbeat import Heartbeat, read_heartbeat
from arcnb.lab.runs.run import Run, new_run, runs_root
from tests.lab.watching import wait_for
from tests.paths import ROOT


def test_folder_name_and_manifest(runs_root):
    run = new_run("03_inference", {"n": 2})
    assert re.fullmatch(r"\d{8}-\d{6}-03_inference", run.path.name)
    assert run.path.parent == runs_root
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["parameters"] == {"n": 2}
    assert manifest["git"]["commit"]
    assert manifest["packages"]["numpy"] == np.__version__
    assert manifest["hardware"]["cores"] >= 1
    assert run.status == "running"


def test_two_runs_in_one_second_get_two_folders():
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: new_run("same"), range(8)))
    assert len({run.path for run in runs}) == 8
    assert len(list_runs()) == 8


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", ".hidden"])
def test_names_that_are_no_folder_names_are_refused(name):
    with pytest.raises(ArcnbError, match="may hold letters"):
        new_run(name)


def test_a_root_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "file"))
    with pytest.raises(ArcnbError, match=r"cannot make a run folder in .*/file: ") as caught:
        new_run("x")
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "file" / "deeper"))
    with pytest.raises(ArcnbError, match=r"cannot make a run folder in .*/file/deeper: Not a directory"):
        new_run("x")


def test_a_folder_without_room_for_a_manifest_does_not_stay(runs_root, monkeypatch):
    def full_disk(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(ArcnbError, match=r"manifest.json: No space left on device"):
        new_run("x")
    assert list(runs_root.iterdir()) == []


def test_recording_from_two_processes_loses_nothing():
    run = new_run("busy", owner="engine")
    script = """
import sys
from pathlib import Path
from arcnb.lab.runs.run import Run
for number in range(20):
    Run(Path(sys.argv[1])).record({f"{sys.argv[2]}{number}": number})
"""
    workers = [subprocess.Popen([sys.executable, "-c", script, run.path, name]) for name in "ab"]
    assert [worker.wait(300) for worker in workers] == [0, 0]
    assert len(run.manifest["outcome"]) == 40


def test_record_adds_up(runs_root):
    mother = new_run("mother")
    (mother.path / "tasks.parquet").write_text("")
    (runs_root / "manifest.json").write_text("{}")  # somebody else's: not a run
    parameters = {
        "tasks": str(mother.path / "tasks.parquet"),
        "more": ["x", str(runs_root)],
        "model": "default",
    }
    run = new_run("daughter", parameters)
    (run.path / "parts").mkdir()
    (run.path / "parts" / "a").write_bytes(b"12345")
    run.record({"solved": 1}, artifacts=["parts"])
    table = pd.DataFrame({"task": ["a", "b"], "rate": [0.5, math.nan]})
    run.record({"rate": np.float32(0.5), "table": table, "shape": np.arange(2)}, parents=[mother])
    manifest = run.manifest
    assert manifest["outcome"] == {
        "solved": 1,
        "rate": 0.5,
        "table": [{"task": "a", "rate": 0.5}, {"task": "b", "rate": None}],
        "shape": [0, 1],
    }
    assert manifest["artifacts"] == [{"path": "parts", "bytes": 5}]
    assert manifest["parents"] == [str(mother.path)]
    assert run.status == "done"


def test_parents_are_found_in_every_form_that_names_several_files():
    first, second, third = (new_run(name) for name in ("first", "second", "third"))
    for one in (first, second, third):
        (one.path / "tasks.parquet").write_text("")
    forms = {
        "comma": f"{first.path}/tasks.parquet, {second.path}",
        "recipe": f"rearc*3 + barc:{first.path}/tasks.parquet*2 + {second.path}/tasks.parquet",
        "arms": f"a = {first.path}[:64] | {second.path}; b = {first.path} + {second.path} | {first.path}",
    }
    for name, text in forms.items():
        assert new_run(name, {"p": text}).record().manifest["parents"] == [
            str(first.path),
            str(second.path),
        ]
    pointed = disk.pointers(list_runs())
    for one in (first, second):
        assert len(pointed[one.path]) == 3
    assert third.path not in pointed
    recipe = new_run("waiting", {"source": f"barc:{third.path}/tasks.parquet"})  # it has no parents yet
    assert disk.pointers(list_runs())[third.path] == {recipe.path}
    long = new_run("long", {"prompt": "Say why. " * 100, "home": "~nobody-at-all/x"})
    assert long.record().status == "done", "a text that is no path is no reason to fail at the end"


def test_record_refuses_artifacts_that_are_not_there():
    run = new_run("x")
    with pytest.raises(ArcnbError, match=r"artifact a\.txt does not exist in"):
        run.record(artifacts=["a.txt"])
    with pytest.raises(ArcnbError, match="is not below the run folder"):
        run.record(artifacts=["../other"])


def test_parents_are_found_in_lists_and_mappings():
    one, two = new_run("one"), new_run("two")
    given = {"files": {"a": str(one.path), "b": [[f"{two.path}/tasks.parquet"]]}}
    (two.path / "tasks.parquet").touch()
    assert new_run("child", given).record().manifest["parents"] == [str(one.path), str(two.path)]


def test_runs_below_a_link_record_artifacts_and_parents_as_others_do(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    monkeypatch.delenv("ARCNB_RUNS")
    monkeypatch.setattr("arcnb.lab.workspace.folders.home", lambda: tmp_path)
    mother = new_run("mother")
    (mother.path / "tasks.parquet").write_text("")
    run = new_run("daughter", {"tasks": str(mother.path / "tasks.parquet")})
    assert run.path.parent == tmp_path / "runs"
    (run.path / "table.html").write_bytes(b"12345")
    run.update(parameters=run.parameters | {"output": str(run.path)})
    run.record(artifacts=["table.html", run.path / "table.html"], parents=[mother, mother.path])
    assert run.manifest["artifacts"] == [{"path": "table.html", "bytes": 5}]
    assert run.manifest["parents"] == [str(mother.path.resolve())]
    with pytest.raises(ArcnbError, match="is not below the run folder"):
        run.record(artifacts=[mother.path / "tasks.parquet"])


def test_finding_runs():
    first, second, other = (new_run(name) for name in ("inference", "inference", "evaluate"))
    assert [run.path for run in list_runs()] == sorted(run.path for run in (first, second, other))
    assert find_run("inference").path == second.path
    assert find_run(str(first.path)).path == first.path
    assert find_run(other.path.name).path == other.path
    assert find_run("evaluate").path == other.path
    with pytest.raises(ArcnbError, match="there is no run 'nothing'"):
        find_run("nothing")
    with pytest.raises(ArcnbError, match="fits 3 runs"):
        find_run(first.path.name[:8])


def test_unreadable_manifests_are_named():
    run = new_run("x")
    (run.path / "manifest.json").write_text('{"schema": 1, "na')
    with pytest.raises(ArcnbError, match=r"manifest.json cannot be read"):
        run.manifest  # noqa: B018
    (run.path / "manifest.json").write_text('{"schema": 99}')
    with pytest.raises(ArcnbError, match="has schema 99, this version of arcnb reads schema 1"):
        run.manifest  # noqa: B018


def test_open_run_gives_the_engines_folder(monkeypatch):
    run = new_run("x")
    monkeypatch.setenv("ARCNB_RUN_DIR", str(run.path))
    assert open_run().path == run.path


def test_open_run_in_a_script():
    script = """
from arcnb.lab.execution.sessions import open_run
first = open_run("script")
assert open_run("script").path == first.path, "nothing was written yet"
(first.path / "a").write_text("x")
second = open_run("script")
assert second.path != first.path
second.record({"n": 1})
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert [run.status for run in list_runs()] == ["preempted", "done"]


def test_open_run_makes_another_when_the_first_was_removed():
    script = """
import shutil
from arcnb.lab.execution.sessions import open_run
first = open_run("script")
shutil.rmtree(first.path)
second = open_run("script")
(second.path / "manifest.json").write_text("{")
open_run("script").record({"n": 1})
"""
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "is not a run folder" in result.stderr
    assert [run.manifest["outcome"] for run in list_runs()[1:]] == [{"n": 1}]


def test_sigterm_still_ends_forked_workers():
    script = """
import multiprocessing, time
from arcnb.lab.execution.sessions import open_run
open_run("script")
context = multiprocessing.get_context("fork")
begun = context.Event()
def work():
    begun.set()
    time.sleep(60)
worker = context.Process(target=work)
worker.start()
begun.wait()
worker.terminate()
worker.join(10)
print(worker.exitcode)
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "-15\n"


def test_a_run_of_another_machine_lives_by_its_heartbeat():
    run = new_run("far")
    run.update(process=run.manifest["process"] | {"host": "elsewhere"})
    assert run.verdict() == ("running", "on elsewhere; no heartbeat to check it by")
    heartbeat = Heartbeat(run.path, lambda: {"cell": {"index": 3, "of": 5, "title": ""}})
    heartbeat.start()
    wait_for(lambda: read_heartbeat(run.path))
    assert run.verdict() == ("running", None)
    os.utime(run.path / "heartbeat.json", (0, 0))
    status, why = run.verdict()
    assert status == "killed"
    assert "on elsewhere is gone" in why
    run.update(stop={"signal": "SIGTERM", "time": "now"})
    assert run.status == "preempted"
    heartbeat.finish()
    assert read_heartbeat(run.path) is None


def test_a_run_whose_end_could_not_be_written_is_over_for_another_machine_too():
    """A full disk, then a crash: the heartbeat is gone, and the manifest says running for ever."""
    run = new_run("far")
    run.update(process=run.manifest["process"] | {"host": "elsewhere"})
    assert run.status == "running", "it may be starting, or ending"
    os.utime(run.path / "manifest.json", (0, 0))
    status, why = run.verdict()
    assert (status, why) == ("killed", "its process on elsewhere is gone (no heartbeat left)")
    (run.path / "heartbeat.json").write_text("")
    assert run.status == "killed"


def test_the_first_heartbeat_is_there_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)  # threads that come late
    Heartbeat(tmp_path, dict).start()
    assert read_heartbeat(tmp_path)


def test_a_heartbeat_does_not_wait_for_a_busy_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    heartbeat = Heartbeat(tmp_path, dict)
    heartbeat.start()
    wait_for(lambda: read_heartbeat(tmp_path))
    heartbeat.finish()
    assert synced == []


def test_a_heartbeat_survives_a_vanished_folder(tmp_path):
    heartbeat = Heartbeat(tmp_path / "gone", dict, tick=lambda: None)
    heartbeat.start()
    heartbeat.finish()
    assert not heartbeat.is_alive()


def test_provenance_without_git_or_gpu(tmp_path, monkeypatch):
    assert provenance.git_state(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git_state() is None
    assert provenance.gpus() == []


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["H200", "H100"]),
        ("2", ["H100"]),
        ("GPU-cc,0", ["H100", "H200"]),
        ("", []),
        ("-1", []),
        ("MIG-1234", ["H200", "H100"]),  # a slice, which nvidia-smi does not list
    ],
)
def test_gpus_are_those_that_the_process_may_use(tmp_path, monkeypatch, visible, names):
    rows = (
        "H200, 143771, 580.95, 0, GPU-aa",
        "H200, [N/A], 580.95, 1, GPU-bb",
        "H100, 81559, 580.95, 2, GPU-cc",
    )
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu["name"] for gpu in provenance.gpus()] == names
    memory = {"H200": 140.4, "H100": 79.6}
    assert all(
        gpu == {"name": gpu["name"], "memory_gb": memory[gpu["name"]], "driver": "580.95"}
        for gpu in provenance.gpus()
    )


def test_equal_gpus_are_counted():
    card = {"name": "H200", "memory_gb": 140.4, "driver": "580.95"}
    machine = {"cpu": "Xeon", "cores": 8, "memory_gb": 500.0}
    assert machine_text(machine | {"gpus": []}) == "Xeon, 8 cores, 500.0 GB, no GPU"
    assert machine_text(machine | {"gpus": [card]}).endswith(" GB, H200 (140 GB)")
    mixed = [card, card | {"name": "H100"}, card]
    assert machine_text(machine | {"gpus": mixed}).endswith(" GB, 2 × H200 (140 GB), H100 (140 GB)")


def test_the_root_without_the_variable_is_the_work_tree(monkeypatch):
    monkeypatch.delenv("ARCNB_RUNS")
    assert runs_root() == ROOT / "runs"


def test_long_lists_are_shown_short_and_kept_whole():
    names = [f"task{number:03}" for number in range(300)]
    run = new_run("x").record({"left_out": names})
    assert run.manifest["outcome"]["left_out"] == names
    shown = value_text(names)
    assert shown.startswith('300: "task000", "task001"')
    assert shown.endswith('", …')
    assert len(shown) < 140
    assert value_text([1, 2]) == "[1, 2]"


def test_a_headline_is_one_line_and_changes_no_terminal():
    assert news({"headline": "two\nlines \x1b[31mred"}) == "two lines  [31mred"


def test_no_number_below_a_million_is_a_power_of_ten():
    numbers = {"rate": 0.25, "just": 999.7, "many": 123456, "mean": 1234.5}
    assert [short_text(value) for value in numbers.values()] == ["0.25", "1000", "123456", "1234"]
    assert news(numbers) == "rate 0.25, just 1000, many 123456, mean 1234"
    sizes = (999, 1000, 999_499, 999_700, 2_500_000_000_000)
    assert [size_text(size) for size in sizes] == ["999 B", "1 kB", "999 kB", "1 MB", "2.5 TB"]


def test_a_long_dictionary_of_an_outcome_is_one_entry():
    outcome = {"best": {"step": 50, "score": 0.5}, "left_out": {f"task{n:02}": 1000 + n for n in range(73)}}
    shown = flat(outcome)
    assert list(shown) == ["best/step", "best/score", "left_out"]
    assert value_text(shown["left_out"]).startswith('73: "task00": 1000, "task01": 1001, ')
    assert len(value_text(shown["left_out"])) < 130


def test_a_card_is_safe_html(monkeypatch):
    run = new_run("x", {"prompt": "<script>alert(1)</script>"})
    run.record({"rate": 0.123456789, "rows": [{"a": 1}]})
    card = run._repr_html_()
    assert "<script>" not in card
    assert "0.123457" in card
    assert ">done<" in card
    monkeypatch.setenv("ARCNB_RUN_DIR", str(run.path))
    assert "arcnb-badge" not in run._repr_html_(), "a run that shows itself is not finished yet"


def test_a_folder_is_called_as_its_run_is():
    run = new_run("a-b_1.x")
    (run.path / "manifest.json").write_text("damaged")
    assert run.called == "a-b_1.x"
    other = Run(run.path.rename(run.path.with_name("mine")))
    assert other.called == "mine"
    with pytest.raises(ArcnbError, match=r"there is no run 'min', .*; did you mean 'mine'\?"):
        find_run("min", beginnings=False)
