"""Sweeps: every parameter set a run folder; failures stay alone; what is done is not done again."""

import csv
import errno
import os
import shutil
import signal
import time
from types import SimpleNamespace

import pytest

from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.batch import parameter_sets, workers
from arcnb.lab.batch.parameter_sets import ParameterSet
from arcnb.lab.batch.sweeps import find_sweep, plan_sweep
from arcnb.lab.notebooks.parameters import Declared, Parameter
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.run import new_run
from tests.lab.watching import wait_for

WORK = """
import os, time
if label == 'bad':
    raise ValueError('this one is bad')
(run.path / 'ready').write_text('x')
while seconds and not (run.path.parent / 'go').exists():
    time.sleep(0.05)
"""
RECORD = "run.record({'n_squared': n * n, 'gpu': os.environ.get('CUDA_VISIBLE_DEVICES', 'none')})"

VALUES = {"n": 3, "seconds": 1.0, "label": "x"}


@pytest.fixture
def path(notebook):
    return notebook(WORK, RECORD)


def sets_of(*numbers):
    return [ParameterSet({"n": n}, {"n": n}) for n in numbers]


@pytest.mark.parametrize("room", [1, 2, 3])
def test_a_sweep_without_space_for_all_of_its_runs_leaves_none(path, runs_root, monkeypatch, room):
    plan_sweep("wide", path, VALUES, sets_of(1))
    calls = iter(range(room))

    def fill(descriptor):
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fill)
    with pytest.raises(ArcnbError, match="No space left on device"):
        plan_sweep("wide", path, VALUES, sets_of(1, 2, 3))
    monkeypatch.undo()
    monkeypatch.setenv("ARCNB_RUNS", str(runs_root))
    assert [run.name for run in list_runs()] == ["wide.n_1"]
    assert len(plan_sweep("wide", path, VALUES, sets_of(1, 2, 3)).members) == 3


def runs_by_name():
    return {run.name: run for run in list_runs()}


def test_files_of_the_folder_that_are_called_like_modules_stop_no_sweep(path, tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit('not the module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    assert cli.main(["sweep", str(path), "--grid", "n=1"]) == 0


def test_a_grid_and_a_list_run_once_and_then_only_the_rest(path, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    (tmp_path / "base.yaml").write_text("seconds: 0.0\n")
    (tmp_path / "sets.yaml").write_text("- {label: good}\n- {label: bad}\n")
    command = ["sweep", str(path), "-f", str(tmp_path / "base.yaml"), "--name", "demo", "--jobs", "2"]
    command += ["--sets", str(tmp_path / "sets.yaml")]
    assert cli.main([*command, "--grid", "n=-3"]) == 1
    runs = runs_by_name()
    good, bad = runs["demo.n_-3.label_good"], runs["demo.n_-3.label_bad"]
    assert len(runs) == 2
    assert (good.status, bad.status) == ("done", "failed")
    assert good.manifest["outcome"] == {"n_squared": 9, "gpu": "4"}, "one of the GPUs that this process has"
    shown = capsys.readouterr()
    assert 'n_-3.label_bad: failed: cell 5 of 6 ("Small"): ValueError: this one is bad\n' in shown.err
    assert shown.out.splitlines()[0].split() == ["n", "label", "status", "run_seconds", "n_squared", "run"]
    assert "ValueError: this one is bad" in (bad.path / "log.txt").read_text()
    with open(find_sweep("demo").folder / "table.csv") as file:
        rows = [(row["n"], row["label"], row["status"], row["n_squared"]) for row in csv.DictReader(file)]
    assert rows == [("-3", "good", "done", "9"), ("-3", "bad", "failed", "")]

    end = good.manifest["end"]
    (tmp_path / "sets.yaml").write_text("- {label: good}\n")
    assert cli.main([*command, "--grid", "n=-3", "-p", "seconds", "0.5"]) == 2
    assert "its run n_-3.label_good has seconds = 0.0, not 0.5" in capsys.readouterr().err
    assert cli.main([*command, "--grid", "n=-3,4"]) == 0, "more sets are welcome"
    assert sorted(runs_by_name()) == sorted([*runs, "demo.n_4.label_good"])
    assert good.manifest["end"] == end, "what was done did not run again"
    assert bad.status == "failed", "and what was not asked for was left alone"
    capsys.readouterr()
    assert cli.main(["show", "demo"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.long("several notebooks run")
def test_a_stopped_sweep_goes_on_in_the_same_folders(path, start, runs_root, capsys):
    command = ["sweep", path, "-p", "seconds", "1", "--grid", "n=1,2", "--name", "long", "--jobs", "1"]
    process = start(*command)
    wait_for(lambda: len(list(runs_root.glob("*/ready"))) == 1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    before = {name: run.path for name, run in runs_by_name().items()}
    assert [run.status for run in list_runs()] == ["preempted", "queued"], errors
    assert cli.main(["ls"]) == 0
    assert "queued" in capsys.readouterr().out

    last = next(run for run in list_runs() if run.status == "queued")
    assert cli.main(["run", "--resume", str(last.path), "-p", "n", "9"]) == 2, "its parameters are settled"
    (runs_root / "go").touch()
    assert cli.main([str(word) for word in command]) == 0
    assert {name: run.path for name, run in runs_by_name().items()} == before
    assert {run.status for run in list_runs()} == {"done"}
    capsys.readouterr()
    assert cli.main([str(word) for word in command]) == 0
    assert capsys.readouterr().err.count(": done\n") == 2


def test_a_cancelled_sweep_does_not_start_what_was_cancelled(path, start, runs_root):
    process = start("sweep", path, "-p", "seconds", "1", "--grid", "n=1,2,3", "--name", "long", "--jobs", "1")
    wait_for(lambda: len(list(runs_root.glob("*/ready"))) == 1)
    assert cli.main(["cancel", "long"]) == 0
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert [run.status for run in list_runs()] == ["preempted", "killed", "killed"]
    assert "n_2: killed: before it started: cancelled\n" in errors
    assert errors.count(": started, ") == 1


@pytest.mark.long("several notebooks run")
def test_a_run_whose_folder_is_gone_fails_alone(path, start, runs_root):
    process = start("sweep", path, "-p", "seconds", "1", "--grid", "n=1,2,3", "--name", "torn", "--jobs", "2")
    wait_for(lambda: len(list(runs_root.glob("*/ready"))) == 2)
    shutil.rmtree(runs_by_name()["torn.n_3"].path)
    (runs_root / "go").touch()
    table, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert [(run.name, run.status) for run in list_runs()] == [(f"torn.n_{n}", "done") for n in (1, 2)]
    assert "is not a run folder: it holds no manifest.json" in errors
    assert [line.split()[1] for line in table.splitlines()[1:]] == ["done", "done", "unreadable"]


def test_after_an_error_nobody_is_left_at_work(path):
    runs = [member.run for member in plan_sweep("x", path, VALUES, sets_of(1, 2)).members]

    def tell(run, code):
        if run == runs[1]:
            wait_for(lambda: (runs[0].path / "ready").exists())
            raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="the terminal is gone"):
        workers.run_queued(runs, [{}, {}], tell)
    assert runs[0].manifest["status"] == "preempted", "it was waited for"


def test_a_name_of_a_sweep_and_of_a_run_is_refused(path, capsys):
    """Both are called after the notebook unless told otherwise."""
    sweep = plan_sweep("twice", path, {"n": 3}, sets_of(1, 2))
    assert cli.main(["show", "twice"]) == 0
    run = new_run("twice").record({"x": 1})
    for command in (["show"], ["rm"], ["rm", "--force"], ["cancel"], ["report"], ["status"]):
        assert cli.main([*command, "twice"]) == 2
        error = capsys.readouterr().err
        assert f"'twice' is a sweep and a run; say which by its folder, {sweep.folder} or {run.path}" in error
    assert len(list_runs()) == 3
    assert cli.main(["rm", str(sweep.folder)]) == 0
    assert list_runs() == [run]
    assert cli.main(["rm", "twice"]) == 0, "a sweep without runs is in nobody's way"
    assert list_runs() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "n=1,2,1"], "set 3 of the sweep is the same as set 1: n = 1"),
        (["--grid", "n=3", "--grid", "n=4"], "--grid gives 'n' twice"),
        (["--grid", "seconds=0.0,0"], "set 2 of the sweep is the same as set 1: seconds = 0.0"),
        (["--grid", "lable=a,b"], "01_small.ipynb has no parameter 'lable'; did you mean 'label'?"),
        (["--grid", "n=few"], "01_small.ipynb: parameter 'n' must be int (default 3), got 'few' of type str"),
        (["--grid", "n"], "--grid 'n' should be written name=value,value"),
        (["--sets", "{tmp}/typo.yaml"], "typo.yaml, set 2 has no parameter 'lbel'; did you mean 'label'?"),
        (["--sets", "{tmp}/same.yaml"], "set 2 of the sweep is the same as set 1: n = 3"),
        (
            ["--sets", "{tmp}/map.yaml"],
            "map.yaml must hold a list of parameter sets (`- name: value` ...)",
        ),
        (["--sets", "{tmp}/key.yaml"], "key.yaml has an unknown key 'secnds'; did you mean 'seconds'?"),
        (
            ["--sets", "{tmp}/number.yaml"],
            "number.yaml: seconds must be a whole number, 0 or more",
        ),
        (["--sets", "{tmp}/axis.yaml"], "axis.yaml: the grid must give a list of values for 'n', not 3"),
        (["--sets", "{tmp}/set.yaml"], "are `name: value` lines, not 'x'"),
        (["--sets", "{tmp}/sets.yaml"], "are `name: value` lines, not 3"),
        (["--sets", "{tmp}/other.yaml"], "other.yaml are for 05_grpo, not for 01_small"),
        (["--sets", "{tmp}/none.yaml"], "none.yaml cannot be read: "),
        ([], "a sweep needs parameter sets"),
        (["--shards", "2"], "01_small.ipynb cannot be run in shards: it has no parameter 'shard'"),
        (["--grid", "n=1", "--name", "a b"], "run name 'a b' may hold letters"),
        (["--grid", "n=1", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--grid", "n=1", "--per-gpu", "0"], "--per-gpu must be at least 1, got 0"),
    ],
)
def test_refusals_come_before_any_run(path, tmp_path, arguments, message, capsys):
    (tmp_path / "typo.yaml").write_text("- label: a\n- lbel: b\n")
    (tmp_path / "same.yaml").write_text("- {}\n- n: 3\n")
    (tmp_path / "map.yaml").write_text("3\n")
    (tmp_path / "key.yaml").write_text("secnds: 3\n")
    (tmp_path / "number.yaml").write_text("seconds: long\n")
    (tmp_path / "axis.yaml").write_text("grid: {n: 3}\n")
    (tmp_path / "set.yaml").write_text("sets: {a: x}\n")
    (tmp_path / "sets.yaml").write_text("sets: 3\n")
    (tmp_path / "other.yaml").write_text("{notebook: 05, grid: {n: [1, 2]}}\n")
    arguments = [word.replace("{tmp}", str(tmp_path)) for word in arguments]
    assert cli.main(["sweep", str(path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list_runs() == []


def test_a_sweep_name_belongs_to_one_notebook(path, notebook, capsys):
    plan_sweep("mine", path, {"n": 3}, sets_of(1))
    other = notebook("run.record({})", name="02_other")
    assert cli.main(["sweep", str(other), "--grid", "n=1", "--name", "mine"]) == 2
    assert "there is a sweep 'mine' of" in capsys.readouterr().err


def test_names_of_sets_tell_them_apart():
    sets = [
        {"lr": 1e-5, "on": True, "x": None},
        {"lr": -1e20},
        {"tasks": "/data/a/tasks.parquet"},
        {"tasks": "/data/b/tasks.parquet"},
        {"sizes": [1, 2]},
        {"sizes": ["1-2"]},
        {"adapter": ""},
        {"text": "a b"},
        {"text": "a-b"},
        {f"parameter_{number}": number for number in range(30)},
        {f"parameter_{number}": -number for number in range(30)},
    ]
    names = [parameter_sets.set_name(values) for values in sets]
    assert names[:2] == ["lr_1e-05.on_true.x_null", "lr_-1e20"]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 100 and set(name) <= set(parameter_sets_characters) for name in names)


parameter_sets_characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


def test_values_with_commas_are_written_as_lists():
    declared = Declared({
        "adapters": Parameter("adapters", "none", "str", ""),
        "sizes": Parameter("sizes", [1], "list[int]", ""),
    })  # fmt: skip
    choices = parameter_sets.grid_choices(['adapters=["none, a", b]', "sizes=[[1, 2], [3]]"], declared, "x")
    assert choices == {"adapters": ["none, a", "b"], "sizes": [[1, 2], [3]]}
    assert len(parameter_sets.grid_sets(choices, declared, "x")) == 4
    with pytest.raises(ArcnbError, match="the grid and the sets both give 'n'"):
        parameter_sets.multiplied([sets_of(1), sets_of(2)])


@pytest.mark.parametrize(
    ("visible", "jobs", "each", "shared", "expected"),
    [
        ("0,1,2,3", None, 1, 1, ["0", "1", "2", "3"]),
        ("0,1,2", None, 2, 1, ["0,1"]),
        ("GPU-a,GPU-b", 1, 1, 1, ["GPU-a"]),
        ("", 3, 1, 1, [None] * 3),
        ("", None, 1, 4, [None]),
        ("0,1", 3, 0, 1, [None] * 3),
        ("-1", 2, 1, 1, [None] * 2),
        ("3,-1,1", None, 1, 1, ["3"]),
        ("0,1", None, 1, 2, ["0", "1", "0", "1"]),
        ("0,1", 3, 1, 2, ["0", "1", "0"]),
        ("0,1,2,3", None, 2, 2, ["0,1", "2,3", "0,1", "2,3"]),
    ],
)
def test_gpus_are_handed_out(monkeypatch, visible, jobs, each, shared, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [slot.get("CUDA_VISIBLE_DEVICES") for slot in workers.slots(jobs, each, shared)] == expected


@pytest.mark.parametrize(
    ("visible", "jobs", "shared", "each", "own", "expected"),
    [
        ("0,1,2,3", None, 1, 1, None, ["4"] * 4),
        ("0,1", None, 3, 1, None, ["2"] * 6),
        ("0,1", None, 1, 2, None, ["8"]),
        ("0,1", None, 12, 1, None, ["1"] * 24),
        ("0,1", None, 1, 1, "5", [None] * 2),
        ("0,1", None, 1, 0, None, [None]),
        ("0,1", 2, 1, 0, None, ["8"] * 2),
        ("", None, 1, 1, None, [None]),
        ("", 4, 1, 1, None, ["4"] * 4),
        ("", 4, 1, 1, "5", [None] * 4),
    ],
)
def test_runs_at_the_same_time_share_the_cores(monkeypatch, visible, jobs, shared, each, own, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(16))
    if own is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    slots = workers.slots(jobs, gpus_each=each, per_gpu=shared)
    assert [slot.get("OMP_NUM_THREADS") for slot in slots] == expected


@pytest.mark.parametrize(
    ("jobs", "each", "shared", "message"),
    [
        (3, 1, 1, "there is room for 2 runs at once on 2 GPUs, not for 3"),
        (2, 2, 1, "there is room for 1 runs at once on 2 GPUs, not for 2"),
        (5, 1, 2, "there is room for 4 runs at once on 2 GPUs, not for 5"),
        (None, 3, 1, "a run is to have 3 GPUs, and there are 2"),
    ],
)
def test_more_gpus_than_there_are_is_refused(monkeypatch, jobs, each, shared, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ArcnbError, match=message):
        workers.slots(jobs, each, shared)


def test_a_file_describes_a_whole_sweep(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    (tmp_path / "base.yaml").write_text("{seconds: 5.0, label: base}\n")
    (tmp_path / "arms.yaml").write_text(
        "{notebook: 01_small.ipynb, name: both, profile: base.yaml, parameters: {seconds: 0.0}, per_gpu: 2,"
        " sets: {one: {n: 1}, two: {n: 2, label: other}}, grid: {seconds: [9.0]}}\n"
    )
    monkeypatch.chdir(path.parent)
    command = ["sweep", str(path), "--sets", str(tmp_path / "arms.yaml")]
    assert cli.main([*command, "--grid", "seconds=0.0"]) == 0, "--grid goes before the file's"
    runs = runs_by_name()
    assert sorted(runs) == ["both.seconds_0.0.set_one", "both.seconds_0.0.set_two"]
    assert [run.manifest["parameters"]["label"] for run in runs.values()] == ["base", "other"]
    assert {run.manifest["outcome"]["gpu"] for run in runs.values()} == {"7"}
    assert capsys.readouterr().out.split()[:4] == ["seconds", "set", "status", "run_seconds"]


@pytest.mark.long("several notebooks run")
def test_the_end_of_the_time_preempts_what_is_at_work(path, runs_root, capsys, monkeypatch):
    def now():  # an hour passes when one is at work
        return 3600.0 if list(runs_root.glob("*/ready")) else 0.0

    command = ["sweep", str(path), "-p", "seconds", "1", "--grid", "n=1,2", "--name", "timed"]
    with monkeypatch.context() as patch:
        patch.setattr(workers, "time", SimpleNamespace(monotonic=now, sleep=time.sleep))
        assert cli.main([*command, "--seconds", "1800"]) == 1
    assert [run.status for run in list_runs()] == ["preempted", "queued"]
    assert "the time is up, and 2 runs are not done; the same command goes on" in capsys.readouterr().err
    folders = {run.path for run in list_runs()}
    (runs_root / "go").touch()
    assert cli.main([*command, "--seconds", "1800"]) == 0
    assert {run.path for run in list_runs()} == folders
    assert {run.status for run in list_runs()} == {"done"}


def test_runs_on_one_gpu_start_apart(path, monkeypatch):
    runs = [member.run for member in plan_sweep("x", path, VALUES, sets_of(1, 2, 3)).members]
    began, clock = {}, [0.0]

    class Process:
        returncode = 0

        def poll(self):
            return 0

    def begin(run, planned, slot, quiet):
        began[run.path] = (clock[0], slot["CUDA_VISIBLE_DEVICES"])
        return Process()

    def sleep(seconds):
        clock[0] += seconds

    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(workers, "_begin", begin)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    workers.run_queued(runs, workers.slots(per_gpu=2), lambda run, code: None, apart=0.5)
    (first, one), (second, other), (third, again) = (began[run.path] for run in runs)
    assert second == first
    assert {one, other} == {"0", "1"}
    assert third - first >= 0.5
    assert again == one
