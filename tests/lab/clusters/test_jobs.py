"""Job descriptions and submit files: options, typos, environments, both renderers. Needs no scheduler."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.batch.parameter_sets import ParameterSet
from arcnb.lab.batch.sweeps import find_sweep, plan_sweep
from arcnb.lab.clusters import htcondor, jobs, slurm, status, submitting
from arcnb.lab.clusters.tools import ENDED, RUNNING, WAITING, JobState
from arcnb.lab.commands import cluster
from arcnb.lab.execution.resuming import reopen
from arcnb.lab.runs import provenance
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.heartbeat import HEARTBEAT
from arcnb.lab.runs.manifest import cause, write_manifest
from arcnb.lab.runs.queueing import queue_run
from arcnb.lab.runs.run import new_run
from arcnb.machine.processes import process_identity
from tests.lab.watching import wait_for


@pytest.fixture
def path(notebook):
    return notebook("import os\nrun.record({'inside': os.environ.get('INSIDE', ''), 'n': n})")


def dry_run(path, scheduler, *options):
    return cli.main(["submit", "--on", scheduler, str(path), "--dry-run", *map(str, options)])


@pytest.mark.parametrize("scheduler", [slurm, htcondor])
def test_a_job_that_cannot_be_noted_is_cancelled_and_its_run_withdrawn(path, scheduler, monkeypatch, capsys):
    def full(*where, **how):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    cancelled = []
    monkeypatch.setattr(scheduler, "submit", lambda job: ["17"])
    monkeypatch.setattr(scheduler, "cancel", cancelled.extend)
    monkeypatch.setattr(submitting, "note_task", full)
    assert cli.main(["submit", "--on", scheduler.NAME, str(path)]) == 2
    assert "took 17, which could not be noted and is cancelled: " in capsys.readouterr().err
    assert cancelled == ["17"]
    assert list_runs() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4h", 240),
        ("90m", 90),
        ("1d12h", 2160),
        ("2:30:00", 150),
        ("1-00:00:00", 1440),
        ("45", 45),
        ("30:00", 30),
        ("2:30", 3),
        ("1-12", 2160),
        ("1-12:30", 2190),
        ("0-00:00:90", 2),
        ("45s", 1),
    ],
)
def test_times_are_those_of_slurm(text, expected):
    assert jobs.minutes(text, "x") == expected


@pytest.mark.parametrize(("text", "expected"), [("4h", 240), ("14400", 240), ("2:30:00", 150), ("90", 2)])
def test_a_bare_number_is_seconds_to_htcondor(text, expected):
    assert jobs.minutes(text, "x", "htcondor") == expected


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--memory", "64", "memory 64 means 64 MB; is that meant? Write it like 64G or 512M"),
        ("--memory", "16000G", "memory 16000G means 15.6 TB; is that meant?"),
        (
            "--time",
            "1m",
            "with time 1m and grace 60 a run would be told to stop as it starts; give a time of 3m",
        ),
        ("--grace", "14400", "with time 4h and grace 14400 a run would be told to stop as it starts"),
        ("--time", "600000", "time 600000 means 417 days; is that meant?"),
        ("--gpus", "10000", "gpus must be at least 0 and at most 1024, got 10000"),
    ],
)
def test_absurd_sizes_are_asked_back(path, option, value, message, capsys):
    assert dry_run(path, "slurm", option, value) == 2
    assert message in capsys.readouterr().err
    assert list_runs() == []


def test_what_may_be_hours_or_minutes_is_asked_back(path, capsys):
    assert dry_run(path, "htcondor", "--time", "2:30") == 2
    assert "is time 2:30 hours or minutes? Write 2h30m, 2:30:00 or 30m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"), [("16G", 16384), ("512M", 512), ("1.5T", 1572864), ("16000", 16000), ("2GiB", 2048)]
)
def test_memory(text, expected):
    assert jobs.megabytes(text, "x") == expected


@pytest.mark.parametrize("text", ["", "0", "soon", "h", "-3h", "4x"])
def test_sizes_that_are_none(text):
    with pytest.raises(ArcnbError, match="time must be written like"):
        jobs.minutes(text, "x")
    with pytest.raises(ArcnbError, match="memory must be written like"):
        jobs.megabytes(text, "x")


def test_a_site_file_then_the_command_line(path, tmp_path, capsys):
    site = tmp_path / "site.yaml"
    site.write_text(
        "partition: a100\ntime: 2h\nmemory: 64000\nextra: [--qos=high, '--account=lab']\n"
        "env: {HF_HUB_OFFLINE: '1'}\n"
    )
    assert (
        dry_run(path, "slurm", "--job", site, "--time", "3h", "--gpus", 2, "--no-requeue", "--grace", 90) == 0
    )
    shown = capsys.readouterr().out
    for line in (
        "#SBATCH --partition=a100",
        "#SBATCH --time=180",
        "#SBATCH --mem=64000M",
        "#SBATCH --gres=gpu:2",
        "#SBATCH --qos=high",
        "#SBATCH --account=lab",
        "#SBATCH --no-requeue",
        "#SBATCH --signal=B:TERM@120",
        "export HF_HUB_OFFLINE=1",
    ):
        assert f"{line}\n" in shown
    assert "--array" not in shown
    assert list_runs() == [], "a dry run leaves nothing"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu: 2", "site.yaml has no parameter 'gpu'; did you mean 'gpus'?"),
        ("memry: 2G", "site.yaml has no parameter 'memry'; did you mean 'memory'?"),
        ("gpus: many", "parameter 'gpus' must be int"),
        ("gpus: -1", "gpus must be at least 0 and at most 1024, got -1"),
        ('extra: ["a\\nb"]', "extra must be one line"),
        ("env: {'A B': x}", "'A B' is no name of an environment variable"),
        ("packed: nowhere.txt", "there is no requirements file nowhere.txt"),
        ("gpus: [", "site.yaml, line 2: expected the node content"),
    ],
)
def test_a_bad_site_file_is_one_sentence(path, tmp_path, text, message, capsys):
    site = tmp_path / "site.yaml"
    site.write_text(text + "\n")
    assert dry_run(path, "slurm", "--job", site) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list_runs() == []


def test_a_scheduler_that_is_not_here(path, monkeypatch, capsys, tmp_path):
    assert cli.main(["submit", "--on", "slrm", str(path)]) == 2
    assert "arcnb knows no scheduler 'slrm'; did you mean 'slurm'?" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, tool in (("slurm", "sbatch"), ("htcondor", "condor_submit")):
        assert cli.main(["submit", "--on", name, str(path)]) == 2
        assert (
            f"arcnb: {name} is not installed here: there is no {tool} in the PATH; submit on a"
            in capsys.readouterr().err
        )
    assert list_runs() == []


def test_htcondor_has_its_own_words(path, capsys):
    assert (
        dry_run(path, "htcondor", "--grid", "n=1,2", "--constraint", "GPUs_Capability >= 9", "--at-once", 1)
        == 0
    )
    shown = capsys.readouterr().out
    for line in (
        "universe = vanilla",
        "request_gpus = 1",
        "request_memory = 16384MB",
        "allowed_execute_duration = 14400",
        "requirements = GPUs_Capability >= 9",
        "max_materialize = 1",
        'My.ArcnbRun = "$(run)"',
    ):
        assert f"{line}\n" in shown
    assert dry_run(path, "htcondor", "--container", "/images/arcnb.sif", "--no-requeue") == 0
    shown = capsys.readouterr().out
    assert "universe = container\ncontainer_image = /images/arcnb.sif\ntransfer_container = false\n" in shown
    assert "periodic_remove = JobStatus == 1 && NumJobStarts > 0\n" in shown
    assert "command=(python3)\n" in shown


def test_the_last_node_serves_and_the_others_train(path, capsys):
    assert dry_run(path, "slurm", "--nodes", 3, "--serve", "default --max-model-len 4096") == 0
    shown = capsys.readouterr().out
    assert "#SBATCH --nodes=3\n" in shown
    assert "\nexport ARCNB_NODES=2 " in shown
    assert 'arcnb.rl.engine.server_node "${role[@]:1}" default --max-model-len 4096)\n' in shown
    assert dry_run(path, "htcondor", "--nodes", 2, "--serve", "/model") == 0
    shown = capsys.readouterr().out
    assert "machine_count = 2\n" in shown
    assert "export ARCNB_SERVER_NODE=$ARCNB_NODES\n" in shown
    assert dry_run(path, "slurm", "--serve", "default") == 2
    assert "serve needs nodes of at least 2: the last one serves, the others train" in capsys.readouterr().err
    assert dry_run(path, "slurm", "--nodes", 2, "--serve", "'default") == 2
    assert """serve "'default": No closing quotation""" in capsys.readouterr().err
    assert list_runs() == []


def test_a_container_sees_runs_notebooks_and_the_package(path, tmp_path, monkeypatch):
    """With a stand-in for apptainer that says what it was given and runs the command here."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tools / "apptainer").write_text(
        '#!/bin/bash\necho "apptainer $*"\nwhile [ "$1" != python3 ]; do shift; done\n'
        'export INSIDE=yes\nexec "$@"\n'
    )
    (tools / "python3").symlink_to(Path(sys.executable))
    for tool in tools.iterdir():
        if not tool.is_symlink():
            tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    assert cli.main(["submit", "--on", "slurm", str(path), "--container", "/x.sif", "--name", "boxed"]) == 0
    (run,) = list_runs()
    assert run.manifest["waits_for"] == "slurm 7"
    task = run.path / "job" / "task.sh"
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run(["bash", str(task), "0", "7"], env=environment, timeout=120, check=False)
    assert result.returncode == 0, (run.path / "log.txt").read_text()
    wait_for(lambda: run.status == "done")
    assert run.manifest["outcome"]["inside"] == "yes"
    assert run.manifest["job"] == "slurm 7"
    called = (run.path / "log.txt").read_text().splitlines()[1]
    assert called.startswith("apptainer exec --nv --bind ")
    for place in (run.path.parent, path.parent):
        assert f"--bind {place} " in called


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """tool("sbatch", "echo 7") makes a stand-in for a scheduler's tool, or another one in its place."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def make(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make


@pytest.mark.parametrize(("interrupted", "code"), [("sbatch", 130), ("scontrol", 2)])
def test_an_interrupted_submission_leaves_no_job_and_no_run(notebook, tmp_path, tool, interrupted, code):
    """Of a pipeline's second stage: while Slurm is asked, and while its answer is noted."""
    notebook("run.record({'n': n})", name="a")
    file = tmp_path / "road.yaml"
    file.write_text("stages: {one: {notebook: a.ipynb}, two: {notebook: a.ipynb, after: one}}\n")
    stop = f"[ $(wc -l < {tmp_path}/asked) = 2 ] && kill -INT $PPID && exec sleep 5"
    ask = f"echo x >> {tmp_path}/asked"
    tool("sbatch", f"{ask}\n{stop if interrupted == 'sbatch' else ''}\ncat {tmp_path}/asked | wc -l")
    tool("scontrol", stop if interrupted == "scontrol" else "")
    tool("scancel", f"echo $@ >> {tmp_path}/cancelled")
    assert cli.main(["submit", "--on", "slurm", str(file)]) == code
    assert "1" in (tmp_path / "cancelled").read_text().split()
    assert list_runs() == []


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (["road.yaml"], "stage 'one' is under way already"),
        (["a.ipynb", "--grid", "n=1,2", "--name", "many"], "nothing is left to submit"),
        (["--resume", "early"], "nothing is left to submit"),
    ],
)
def test_two_that_submit_the_same_at_once_submit_it_once(
    what, told, notebook, tmp_path, tool, start, monkeypatch
):
    path = notebook("run.record({'n': n})", name="a")
    queue_run("early", path, {"n": 3}, provenance.surroundings())
    (tmp_path / "road.yaml").write_text("stages: {one: {notebook: a.ipynb}}\n")
    tool("sbatch", f"echo x >> {tmp_path}/asked; sleep 1; echo 7")
    tool("scontrol", "exit 1")
    monkeypatch.chdir(tmp_path)
    both = [start("submit", "--on", "slurm", *what) for _ in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert sum(told in error for error in errors) == 1
    assert (tmp_path / "asked").read_text() == "x\n"


def test_paths_that_a_shell_would_execute_are_refused(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "r `touch PWNED`"))
    for scheduler in ("slurm", "htcondor"):
        assert dry_run(path, scheduler) == 2
        error = capsys.readouterr().err
        assert "backticks" in error
        assert error.count("\n") == 1
    assert list_runs() == []


@pytest.mark.parametrize("given", [["-p", "n", "1"], ["-f", "demo"], ["--name", "x"], ["--again"]])
def test_what_a_pipelines_file_says_is_refused_as_it_was_written(given, notebook, tmp_path, capsys):
    notebook("run.record({'n': n})", name="a")
    (tmp_path / "road.yaml").write_text("stages: {data: {notebook: a.ipynb}}\n")
    assert cli.main(["submit", "--on", "slurm", str(tmp_path / "road.yaml"), *given]) == 2
    assert capsys.readouterr().err.endswith(f"; leave out {given[0]}\n")


@pytest.mark.parametrize(
    "given",
    [
        ["-p", "n", "1"],
        ["-f", "demo"],
        ["--grid", "n=1,2"],
        ["--sets", "sets.yaml"],
        ["--shards", "0"],
        ["--name", "x"],
        ["--again"],
        ["01"],
    ],
)
def test_what_a_resumed_run_would_not_take_is_refused_as_it_was_written(given, path, tool, capsys):
    run = queue_run("early", path, {"n": 3}, provenance.surroundings())
    tool("sbatch", "echo 7")
    assert cli.main(["submit", "--on", "slurm", "--resume", "early", *given]) == 2
    said = "arcnb: a resumed run has its notebook, name and parameters already; leave out "
    assert capsys.readouterr().err == f"{said}{given[0]}\n"
    assert run.manifest.get("waits_for") is None
    given_again = ["--gpus", "2", "--time", "2h", "--after", "5"]
    assert cli.main(["submit", "--on", "slurm", "--resume", "early", *given_again]) == 0
    assert run.manifest["waits_for"] == "slurm 7"


def test_a_sweep_has_no_second_runs_of_its_sets(path, capsys):
    assert dry_run(path, "slurm", "--grid", "n=1,2", "--again") == 2
    said = "arcnb: a sweep goes on in its runs, or takes another --name; leave out --again\n"
    assert capsys.readouterr().err == said


def test_a_dag_in_a_folder_with_spaces_is_refused(notebook, tmp_path, monkeypatch, tool, capsys):
    tool("condor_submit_dag", "echo submitted to cluster 5")
    notebook("run.record({'n': n})", name="a")
    (tmp_path / "road.yaml").write_text("stages: {data: {notebook: a.ipynb}}\n")
    command = ["submit", "--on", "htcondor", str(tmp_path / "road.yaml")]
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "my runs"))
    assert cli.main(command) == 2
    assert "HTCondor takes no spaces in the paths of a pipeline's jobs" in capsys.readouterr().err
    assert list_runs() == []
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "runs"))
    assert cli.main(command) == 0


def test_another_cluster_says_nothing_of_a_run(path, tool, tmp_path, capsys):
    tool("sbatch", "echo 7")
    tool("scontrol", "echo 'ClusterName             = one'")
    tool("squeue", "exit 0")
    tool("sacct", "exit 1")
    tool("scancel", f"touch {tmp_path}/cancelled")
    assert cli.main(["submit", "--on", "slurm", str(path), "--name", "far"]) == 0
    (run,) = list_runs()
    tool("scontrol", "echo 'ClusterName             = two'")
    capsys.readouterr()
    assert cli.main(["status"]) == 0
    line = capsys.readouterr().out
    assert "slurm 7: it was sent to the cluster one, and here is two" in line
    assert (run.status, run.manifest["waits_for"]) == ("queued", "slurm 7")
    assert cli.main(["cancel", "far"]) == 1
    assert "sent to the cluster one" in capsys.readouterr().err
    assert not (tmp_path / "cancelled").exists(), "job 7 of this cluster is another one"
    tool("scontrol", "echo 'ClusterName             = one'")
    assert cli.main(["status"]) == 0
    assert run.verdict()[1].startswith("it never started: slurm 7 is no longer known")


def queued(name, task, scheduler="slurm"):
    """A run that was handed in."""
    run = new_run(name)
    run.update(status="queued", waits_for=f"{scheduler} {task}")
    submitting.note_task(run, scheduler, task, run.path / "job", [])
    return run


def test_a_queued_run_of_another_user_is_left_alone(tool, monkeypatch, capsys, tmp_path):
    mine, others = queued("mine", "7"), queued("others", "8")
    for module in (status, slurm):
        monkeypatch.setattr(module, "owner", lambda path: 4242 if "others" in str(path) else os.getuid())
    tool("scontrol", "exit 1")
    tool("sacct", "exit 1")
    tool("squeue", f"echo $* > {tmp_path}/asked")
    assert cli.main(["status"]) == 0
    assert f"-u {','.join(map(str, sorted([os.getuid(), 4242])))} " in (tmp_path / "asked").read_text()
    assert "slurm 8: not told of another user" in capsys.readouterr().out
    assert [run.status for run in (mine, others)] == ["killed", "queued"]


def test_htcondor_is_asked_for_the_jobs_of_all_users(tool, tmp_path):
    tool("condor_q", f"echo $* >> {tmp_path}/asked")
    tool("condor_history", "exit 0")
    htcondor.states({str(tmp_path): "7 (DAG)"})
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["-allusers", "-allusers"]


def test_a_stage_of_a_dag_is_not_told_of_by_an_earlier_job_of_its_run(tool, tmp_path):
    folder = str(tmp_path / "data")
    ended = {"ClusterId": 5, "ProcId": 0, "JobStatus": 4, "ExitCode": 1, "ArcnbRun": folder}
    tool("condor_q", """case "$*" in *-constraint*) ;; *) echo '[{"ClusterId": 9, "ProcId": 0}]' ;; esac""")
    tool("condor_history", f"echo '{json.dumps([ended])}'")
    assert htcondor.states({folder: "9 (DAG)"})[folder].text == "waits in its DAG"
    tool("condor_history", f"echo '{json.dumps([ended, ended | {'ClusterId': 10}])}'")
    assert htcondor.states({folder: "9 (DAG)"})[folder].task == "10.0"


def test_a_manifest_that_cannot_be_written_concerns_its_own_line(tool, monkeypatch, capsys):
    for name, task in (("first", "7"), ("second", "8"), ("third", "9")):
        queued(name, task)

    def refused(folder, manifest):
        if "second" in folder.name:
            raise ArcnbError("cannot write it: Permission denied")
        write_manifest(folder, manifest)

    monkeypatch.setattr(status, "write_manifest", refused)
    for name in ("scontrol", "sacct"):
        tool(name, "exit 1")
    tool("squeue", "exit 0")
    assert cli.main(["status"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert "never started" in first
    assert second.endswith("cannot write it: Permission denied")
    assert "never started" in third
    tool("scancel", "exit 0")
    for run in list_runs():
        run.update(status="queued", waits_for="slurm 7", end=None, error=None)
    assert cli.main(["cancel", "first", "second", "third"]) == 2
    assert [run.manifest["status"] for run in list_runs()] == ["killed", "queued", "killed"]


def test_shards_are_an_array_that_shares_one_output(notebook, capsys):
    parameters = "shard = 0  # number\nn_shards = 1  # of so many\noutput = ''  # folder\n"
    path = notebook("run.record({'x': 1})", name="03_shards", parameters=parameters)
    assert (
        cli.main(["submit", "--on", "slurm", str(path), "--shards", "3", "--name", "eval", "--dry-run"]) == 0
    )
    assert "#SBATCH --array=0-2\n" in capsys.readouterr().out
    assert (
        cli.main(["sweep", str(path), "--shards", "2", "--name", "here", "--jobs", "2", "--gpus", "0"]) == 0
    )
    first, second = sorted(list_runs(), key=lambda run: run.name)
    assert first.manifest["parameters"]["output"].endswith("/runs/sweeps/here/predictions")
    assert first.manifest["parameters"] == second.manifest["parameters"] | {"shard": 0}
    assert second.manifest["parameters"]["n_shards"] == 2


@pytest.mark.parametrize(("options", "code"), [(["--venv", "/nowhere"], 2), (["--dry-run"], 0)])
def test_a_sweep_that_is_not_submitted_leaves_nothing(path, runs_root, options, code, capsys):
    sweep = ["submit", "--on", "slurm", str(path), "--name", "sw", "--grid"]
    assert cli.main([*sweep, "n=1,2", *options]) == code
    assert [item for item in runs_root.rglob("*") if item.is_file()] == []
    assert not (runs_root / "sweeps" / "sw").exists()
    for command in (["show", "sw"], ["cancel", "sw"]):
        assert cli.main(command) == 2
        assert "there is no run 'sw'" in capsys.readouterr().err


def test_a_dry_run_makes_nothing_and_changes_nothing(notebook, tmp_path, runs_root, monkeypatch, capsys):
    def built(requirements):
        raise AssertionError("an environment was built")

    monkeypatch.setattr(submitting, "build_archive", built)
    path = notebook("run.record({'n': n})")
    (tmp_path / "few.txt").write_text("six\n")
    road = tmp_path / "road.yaml"
    road.write_text("stages: {a: {notebook: 01_small.ipynb}, b: {notebook: 01_small.ipynb, after: a}}\n")
    for scheduler in ("slurm", "htcondor"):
        for asked in ([path], [path, "--grid", "n=1,2"], [road]):
            assert dry_run(asked[0], scheduler, *asked[1:], "--packed", tmp_path / "few.txt") == 0
            assert "task.sh\n#!/bin/bash" in capsys.readouterr().out
    assert not runs_root.exists()
    assert cli.main(["pipeline", str(road)]) == 0
    first, last = list_runs()
    for run in (first, last):
        run.update(status="failed", error=cause("it failed"))
        (run.path / "job").mkdir()
        (run.path / "job" / "task.sh").write_text("mine")
    before = contents(runs_root)
    assert dry_run(road, "slurm") == 0
    assert cli.main(["submit", "--on", "slurm", "--resume", first.name, "--dry-run"]) == 0
    assert f"{first.path}\n" in capsys.readouterr().out
    assert contents(runs_root) == before


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def test_a_dry_run_refuses_what_the_scheduler_cannot_take(notebook, tmp_path, monkeypatch, capsys):
    notebook("run.record({'n': n})", name="a")
    (tmp_path / "road.yaml").write_text("stages: {data: {notebook: a.ipynb}}\n")
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "my runs"))
    assert dry_run(tmp_path / "road.yaml", "htcondor") == 2
    said = capsys.readouterr()
    assert "HTCondor takes no spaces in the paths of a pipeline's jobs" in said.err
    assert said.out == ""


def test_a_run_of_no_notebook_cannot_be_sent(capsys):
    new_run("script").update(status="failed", error=cause("it failed"))
    assert cli.main(["submit", "--on", "slurm", "--resume", "script"]) == 2
    assert "does not say which notebook it ran" in capsys.readouterr().err


def test_a_refusal_keeps_what_the_sweep_had(path, runs_root):
    values = {"n": 3, "seconds": 0.0, "label": "x"}
    plan_sweep("sw", path, values, [ParameterSet({"n": 1}, {"n": 1})])
    sweep = ["submit", "--on", "slurm", str(path), "--name", "sw", "--grid"]
    assert cli.main([*sweep, "n=1,2", "--venv", "/nowhere"]) == 2
    assert [member.name for member in find_sweep("sw").members] == ["n_1"]
    assert [run.name for run in list_runs()] == ["sw.n_1"]
    assert not list((runs_root / "sweeps" / "sw").glob("jobs/*"))


def test_a_refusal_keeps_what_removed_runs_left_to_their_sweep(notebook, capsys):
    parameters = "shard = 0  # number\nn_shards = 1  # of so many\noutput = ''  # folder\n"
    path = notebook("run.record({'x': 1})", name="03_shards", parameters=parameters)
    shared = {"n_shards": 1, "output": "{sweep}/predictions"}
    folder = plan_sweep("eval", path, {"shard": 0}, [ParameterSet({"shard": 0}, {"shard": 0})], shared).folder
    (folder / "predictions").mkdir()
    (folder / "predictions" / "part.parquet").write_text("hours of work")
    assert cli.main(["rm", "eval"]) == 0
    assert f"{folder} stays, " in capsys.readouterr().err
    before = {item: found for item, found in contents(folder).items() if item.name != "sweep.json"}
    command = ["submit", "--on", "slurm", str(path), "--name", "eval", "--shards", "1", "--venv", "/nowhere"]
    assert cli.main(command) == 2
    assert "/nowhere" in capsys.readouterr().err
    assert {item: found for item, found in contents(folder).items() if item.name != "sweep.json"} == before
    assert find_sweep("eval").members == []
    assert list_runs() == []


def test_a_runs_last_seconds_are_the_writing_of_its_page(monkeypatch):
    states = {}
    scheduler = SimpleNamespace(states=lambda tasks: dict.fromkeys(tasks, states["state"]))
    monkeypatch.setattr(status, "SCHEDULERS", {"slurm": scheduler})
    monkeypatch.setattr(status, "elsewhere", lambda record: None)
    run = new_run("written", fields={"job": "slurm 7"})
    (run.path / "job").mkdir()
    (run.path / "job" / "job.json").write_text('{"scheduler": "slurm", "task": "7"}')
    states["state"] = JobState(RUNNING, "RUNNING", "node1")

    def news():
        (line,) = status.status_lines([run])
        return line.status, line.news

    assert news() == ("running", "no heartbeat yet")
    run.record({"n": 1})
    assert news() == ("done", "writing the page")
    states["state"] = JobState(ENDED, "COMPLETED", "node1")
    assert news() == ("done", "")


@pytest.mark.parametrize(
    ("stop", "end"), [(None, "killed"), ({"signal": "SIGTERM", "time": ""}, "preempted")]
)
def test_a_run_that_was_stopped_and_ended_before_it_could_write_so_is_preempted(stop, end):
    run = new_run("stopped")
    gone = process_identity() | {"pid": 2**22 + 1}
    run.update(status="running", job="slurm 7", process=gone, stop=stop)
    status.settle(run, "slurm 7", JobState(ENDED, "CANCELLED"))
    assert run.manifest["status"] == end
    assert run.verdict() == (end, run.manifest["error"]["sentence"])


def test_the_status_of_a_damaged_run_leaves_out_no_other(capsys):
    for name in ("good", "damaged"):
        run = new_run(name, fields={"status": "failed"})
        (run.path / "job").mkdir()
        (run.path / "job" / "job.json").write_text('{"scheduler": "htcondor", "task": "7.0"}')
    (run.path / "manifest.json").write_text("{")
    assert cli.main(["status", "damaged", "good"]) == 1
    shown = capsys.readouterr()
    assert "manifest.json cannot be read" in shown.err
    assert [line.split()[0] for line in shown.out.splitlines()] == ["unreadable", "failed"]


def test_waiting_runs_are_cancelled_before_one_that_runs_makes_room_for_them(monkeypatch):
    running, waiting = (new_run(name) for name in ("first", "second"))
    running.update(status="running", process=process_identity())
    waiting.update(status="queued")
    told = []
    monkeypatch.setattr(cluster, "_cancel_here", lambda run: told.append(run.name))
    assert cli.main(["cancel", "first", "second"]) == 0
    assert told == ["second", "first"]


FAR = process_identity() | {"host": "node7"}


def test_a_run_that_goes_on_after_its_node_died_is_running(path):
    """As the login node sees it, before its kernel has a heartbeat."""
    run = new_run("again", {"n": 3}, provenance.notebook_record(path), "engine")
    run.update(process=FAR)
    (run.path / HEARTBEAT).write_text('{"time": "then"}')
    os.utime(run.path / HEARTBEAT, (0, 0))
    assert run.status == "killed"
    reopen(run, path, {"n": 3}, {})
    run.update(process=FAR)
    assert run.status == "running"


@pytest.mark.parametrize(("age", "expected"), [(0, "running"), (60, "killed")])
def test_a_run_that_began_after_its_scheduler_was_asked_is_running(age, expected):
    run = new_run("late")
    run.update(process=FAR, job="slurm 7")
    written = time.time() - age
    os.utime(run.path / "manifest.json", (written, written))
    status.settle(run, "slurm 7", JobState(WAITING, "PENDING"))
    assert run.manifest["status"] == expected
