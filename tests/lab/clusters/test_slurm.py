"""Runs on a real Slurm: arrays, GPUs, states, hold, cancel, requeue, preemption, dependencies, dead
daemons."""

import json
import os
import shutil
import sys
import zipfile
from functools import partial

import pytest

from arcnb.lab import cli
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.heartbeat import read_heartbeat
from tests.lab.clusters import slurm_daemons
from tests.lab.clusters.clusters import PATIENT, RECORD, SMALL, started, status, submit_to, task_of
from tests.lab.clusters.images import image_of_mount_points
from tests.lab.watching import only_run, wait_for

pytestmark = pytest.mark.skipif(bool(slurm_daemons.missing()), reason=slurm_daemons.missing())


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    daemons = slurm_daemons.SlurmDaemons(tmp_path_factory.mktemp("slurm"))
    try:
        daemons.start()
        yield daemons
    finally:
        daemons.stop()


@pytest.fixture(autouse=True)
def _configured(slurm, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(slurm.folder / "slurm.conf"))
    yield
    slurm.call("scancel", "--state=PENDING", "-u", slurm_daemons.getpass.getuser())


@pytest.fixture
def path(notebook):
    return notebook("# Wait", PATIENT, RECORD)


submit = partial(submit_to, "slurm")


def test_a_sweep_is_an_array_and_gpus_are_handed_out(path, runs_root, capsys):
    assert submit(path, "--grid", "n=1,2,3", "--name", "many", "--gpus", "1") == 0
    runs = list_runs()
    assert capsys.readouterr().out.split() == [str(run.path) for run in runs]
    wait_for(lambda: sum(started(run) for run in runs) == 2)
    lines = wait_for(
        lambda: (
            len(found := status(capsys)) == 3
            and "waiting: " in found[0]
            and "(Resources)" in found[2]
            and found
        )
    )
    assert "RUNNING on localhost" in lines[0]
    assert "cell 6/7 (Wait), waiting: " in lines[0]
    assert lines[0].endswith("s ago")
    assert lines[2].startswith("queued ")
    assert "PENDING (Resources)" in lines[2]
    array = (runs[0].path / "job" / "job.sbatch").read_text()
    assert "#SBATCH --array=0-2\n" in array
    assert "#SBATCH --gres=gpu:1\n" in array
    (runs_root / "go").touch()
    wait_for(lambda: {run.status for run in runs} == {"done"})
    assert {run.manifest["outcome"]["gpu"] for run in runs[:2]} == {"0", "1"}
    assert runs[1].manifest["job"] == runs[0].manifest["job"].replace("_0", "_1")
    assert status(capsys) == []
    assert all(line.startswith("done ") for line in status(capsys, "many"))
    assert submit(path, "--grid", "n=1,2,3", "--name", "many") == 0
    assert "nothing is left to submit" in capsys.readouterr().err


@pytest.mark.long("a real Slurm schedules, preempts and loses jobs")
def test_a_preempted_run_saves_waits_and_goes_on_in_its_folder(path, slurm, capsys):
    assert submit(path, "--name", "victim", "--gpus", 0) == 0
    assert submit(path, "--name", "moved", "--gpus", 0) == 0
    moved, victim = sorted(list_runs(), key=lambda run: run.name)
    wait_for(lambda: started(victim) and started(moved))
    slurm.call("scontrol", "requeue", task_of(moved))
    wait_for(lambda: moved.status == "preempted")
    assert 'waits to go on; cell 6 of 7 ("Wait"): stopped by SIGTERM' in status(capsys, "moved")[0]
    # The urgent job wants the whole node.
    slurm.call("sbatch", "-p", "urgent", "-c", "4", "--mem", "1G", "-o", "/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: {victim.status, moved.status} == {"done"})
    for run in (victim, moved):
        assert [attempt["status"] for attempt in run.manifest["attempts"]] == ["preempted"]
        assert run.manifest["job"] == f"slurm {task_of(run)}"
        log = (run.path / "log.txt").read_text()
        assert log.count(f"slurm {task_of(run)} on ") == 2
    assert len(list_runs()) == 2
    assert status(capsys) == []


def test_a_job_that_is_sent_from_within_a_task_of_an_array_is_one_of_its_own(
    path, slurm, runs_root, monkeypatch
):
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    runs_root.mkdir()
    (runs_root / "go").touch()
    assert submit(path, "--name", "inner", "--gpus", 0) == 0
    run = only_run()
    wait_for(lambda: not slurm.call("squeue", "-h", "-j", task_of(run)))
    assert (run.status, run.manifest["job"]) == ("done", f"slurm {task_of(run)}")


def test_held_jobs_say_so_and_cancelled_ones_too(path, slurm, capsys):
    assert submit(path, "--name", "waiting", "--extra=--hold") == 0
    assert submit(path, "--name", "working") == 0
    waiting, working = sorted(list_runs(), key=lambda run: run.name)
    (line,) = status(capsys, "waiting")
    assert line.startswith("queued ")
    assert "PENDING (JobHeldUser)" in line
    assert cli.main(["run", "--resume", str(waiting.path)]) == 2
    assert f"waits as slurm {task_of(waiting)}; arcnb cancel it" in capsys.readouterr().err
    wait_for(lambda: started(working))
    assert cli.main(["cancel", "waiting", "working"]) == 0
    assert waiting.verdict() == ("killed", "before it started: cancelled")
    wait_for(lambda: working.status == "preempted")
    assert (working.path / "saved").is_file()
    wait_for(lambda: "CANCELLED" in status(capsys, "working")[0])
    assert status(capsys, "waiting")[0].startswith("killed ")
    assert submit("--resume", "working") == 0, "what was cancelled can be sent again"
    wait_for(lambda: working.status == "done")
    assert [attempt["status"] for attempt in working.manifest["attempts"]] == ["preempted"]


def test_a_run_that_is_sent_again_leaves_the_others_of_its_array_their_places(path, slurm, runs_root):
    assert submit(path, "--grid", "n=1,2", "--name", "many", "--extra=--hold") == 0
    (runs_root / "go").touch()
    first, second = list_runs()
    assert cli.main(["cancel", "many"]) == 0
    assert submit("--resume", "many", "--extra=--hold") == 0
    assert cli.main(["cancel", str(first.path)]) == 0
    assert submit("--resume", "many") == 0
    slurm.call("scontrol", "release", task_of(second))
    wait_for(lambda: (first.status, second.status) == ("done", "done"))


def test_stages_wait_for_each_other_and_one_that_fails_ends_those_behind_it(notebook, tmp_path, capsys):
    leave = "(run.path / 'tasks.txt').write_text('x' * n)"
    notebook(leave, "run.record({'n': n}, artifacts=['tasks.txt'])", name="a")
    read = "from pathlib import Path\nlength = len(Path(label).read_text())\nassert not seconds, 'bad'"
    notebook(read, "run.record({'length': length})", name="b")
    stages = {
        "last": {"notebook": "b.ipynb", "after": "bad", "job": {"memory": "2G"}},
        "good": {"notebook": "b.ipynb", "parameters": {"label": "${data.tasks}", "n": "${data.outcome.n}"}},
        "bad": {"notebook": "b.ipynb", "parameters": {"label": "${data.folder}/tasks.txt", "seconds": 1}},
        "data": {"notebook": "a.ipynb", "parameters": {"n": 4}},
    }
    file = tmp_path / "road.yaml"
    file.write_text(json.dumps({"stages": stages}))
    assert submit(file) == 0
    runs = {run.name.removeprefix("road-"): run for run in list_runs()}
    script = (runs["last"].path / "job" / "job.sbatch").read_text()
    assert f"#SBATCH --dependency=afterok:{task_of(runs['bad'])}\n" in script
    assert "#SBATCH --mem=2048M\n" in script
    assert submit(file) == 2
    assert "stage 'data' is under way already" in capsys.readouterr().err
    wait_for(lambda: (runs["good"].status, runs["bad"].status) == ("done", "failed"))
    assert runs["good"].manifest["outcome"] == {"length": 4}
    values = {"n": 4, "seconds": 0.0, "label": str(runs["data"].path / "tasks.txt")}
    assert runs["good"].manifest["parameters"] == values
    wait_for(lambda: status(capsys, "road-last")[0].startswith("killed"))
    assert "it never started: slurm" in runs["last"].verdict()[1]
    del stages["bad"], stages["last"]
    file.write_text(json.dumps({"stages": stages}))
    assert submit(file) == 0
    assert capsys.readouterr().err.count(": done with the same inputs") == 2


def test_an_environment_is_packed_once_and_unpacked_on_the_node(
    notebook, tmp_path, slurm, monkeypatch, capsys
):
    wheel = tmp_path / "lab_probe-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("lab_probe.py", "ANSWER = 42\n")
        archive.writestr(
            "lab_probe-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: lab-probe\nVersion: 1.0\n"
        )
        archive.writestr(
            "lab_probe-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("lab_probe-1.0.dist-info/RECORD", "")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"--no-index\n{wheel}\n")
    monkeypatch.setenv("ARCNB_SCRATCH", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    # What arcnb itself needs comes from here; a real requirements file has it all.
    site = next(path for path in sys.path if path.endswith("site-packages"))
    path = notebook("import sys, lab_probe", "run.record({'answer': lab_probe.ANSWER, 'prefix': sys.prefix})")
    assert submit(path, "--packed", requirements, "--env", f"PYTHONPATH={site}") == 0
    run = only_run()
    wait_for(lambda: run.status == "done")
    assert run.manifest["outcome"]["answer"] == 42
    assert run.manifest["outcome"]["prefix"].startswith(str(tmp_path / "scratch"))
    archives = list((tmp_path / "runs" / "environments").glob("*.tar.gz"))
    assert len(archives) == 1
    before = archives[0].stat().st_mtime_ns
    assert submit(path, "--packed", requirements, "--dry-run", "--name", "second") == 0
    assert str(archives[0]) in capsys.readouterr().out
    assert archives[0].stat().st_mtime_ns == before
    requirements.write_text("--no-index\nno-such-package-here\n")
    assert submit(path, "--packed", requirements, "--name", "third") == 2
    assert "no environment could be built from" in capsys.readouterr().err
    assert len(list_runs()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--partition", "gold"], "Slurm refused the job: sbatch: error: "),
        (["--memory", "100T"], "memory 100T means 100 TB; is that meant?"),
        (["--constraint", "h100"], "Slurm refused the job: sbatch: error: "),
        (["--gpus", "9"], "Slurm refused the job: sbatch: error: "),
        (["--extra=--quos=x"], "Slurm refused the job: sbatch: "),
        (["--time", "soon"], "arcnb submit: time must be written like 4h, 90m or 2:30:00, got 'soon'"),
        (["--container", "a", "--venv", "b"], "arcnb submit: give one of venv, container and packed"),
        (["--venv", "/nowhere"], "/nowhere is no venv: it has no bin/python"),
    ],
)
def test_a_refusal_is_one_sentence_and_leaves_no_run(path, options, message, capsys):
    assert submit(path, "--grid", "n=1,2", options=options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list_runs() == []


def test_a_sweep_that_is_larger_than_an_array_may_be_is_told_so(path, capsys):
    assert submit(path, "--grid", f"n={','.join(map(str, range(41)))}") == 2
    assert "41 runs are more than the MaxArraySize" in capsys.readouterr().err
    assert list_runs() == []


def test_a_node_without_the_python_ends_the_run_and_says_so(slurm, path, tmp_path, capsys):
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    held = [*SMALL, "--extra=--hold", "--venv", str(tmp_path / "venv")]
    assert submit(path, options=held) == 0
    python.unlink()  # a node that does not see it
    run = only_run()
    slurm.call("scontrol", "release", task_of(run))
    wait_for(lambda: status(capsys, run.path.name) and run.status == "killed")
    assert "it never started: slurm" in run.verdict()[1]
    assert f", {python}: No such file or directory; see {run.path / 'log.txt'}" in run.verdict()[1]


# `apptainer exec [--nv] [--bind PLACE]... IMAGE COMMAND...` by bubblewrap: an image is this system's programs
# and this environment.
APPTAINER = """#!/bin/bash
shift
while [[ $1 == --* ]]; do
    [ $1 = --bind ] && { places+=(--bind "$2" "$2"); shift; }
    shift
done
shift
exec bwrap --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \\
    --ro-bind /etc /etc --proc /proc --dev /dev --tmpfs /tmp --ro-bind PREFIX PREFIX --ro-bind BASE BASE \\
    --setenv PATH PREFIX/bin:/usr/bin "${places[@]}" "$@"
"""


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bwrap: install bubblewrap")
def test_a_run_in_a_container_sees_what_it_is_given_and_nothing_else(notebook, tmp_path, monkeypatch):
    (tmp_path / "secret").touch()
    sees = f"import os\nrun.record({{'secret': os.path.exists({str(tmp_path / 'secret')!r}), 'n': n}})"
    path = notebook(sees)
    (tmp_path / "notebooks").mkdir()
    path = path.rename(tmp_path / "notebooks" / path.name)
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(APPTAINER.replace("PREFIX", sys.prefix).replace("BASE", sys.base_prefix))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert submit(path, "-p", "n", "5", "--container", "/images/arcnb.sif", "--gpus", "0") == 0
    run = only_run()
    wait_for(lambda: run.status in ("done", "failed", "killed"))
    assert run.status == "done", (run.path / "log.txt").read_text()[-2000:]
    assert run.manifest["outcome"] == {"secret": False, "n": 5}


@pytest.mark.skipif(shutil.which("apptainer") is None, reason="no apptainer, which Debian has in sid alone")
def test_a_run_in_an_image_of_a_real_apptainer(notebook, tmp_path):
    image = image_of_mount_points(tmp_path)
    path = notebook("import os", "run.record({'inside': os.path.exists('/mark'), 'n': n})")
    places = f"APPTAINER_BIND=/usr,/etc,{sys.prefix},{sys.base_prefix}"
    python = f"APPTAINERENV_PREPEND_PATH={sys.prefix}/bin"
    asked = ["-p", "n", "5", "--container", image, "--gpus", "0", "--env", places, "--env", python]
    assert submit(path, *asked) == 0
    run = only_run()
    wait_for(lambda: run.status in ("done", "failed", "killed"))
    assert run.status == "done", (run.path / "log.txt").read_text()[-2000:]
    assert run.manifest["outcome"] == {"inside": True, "n": 5}


@pytest.mark.long("a real Slurm schedules, preempts and loses jobs")
def test_z_dead_daemons_are_told_from_dead_nodes(path, slurm, capsys, monkeypatch):
    """The last test: it leaves the node without power."""
    assert submit(path, "--name", "survivor") == 0
    run = only_run()
    wait_for(lambda: (read_heartbeat(run.path) or {"progress": ""})["progress"])
    slurm.wait_until_saved(task_of(run))
    slurm.kill("slurmctld")
    # Slurm's tools call a dead controller for twice this time; its daemons stay patient with a busy machine.
    impatient = (slurm.folder / "slurm.conf").read_text().replace("MessageTimeout=60", "MessageTimeout=5")
    (slurm.folder / "impatient.conf").write_text(impatient)
    monkeypatch.setenv("SLURM_CONF", str(slurm.folder / "impatient.conf"))
    (line,) = status(capsys)
    assert line.startswith("running ")
    assert "slurm does not answer: " in line
    assert "waiting: " in line, "the heartbeat needs no scheduler"
    slurm.start_controller()
    wait_for(lambda: "RUNNING on localhost" in status(capsys)[0])
    slurm.kill_node()
    wait_for(lambda: run.status == "killed")
    assert "is gone (last seen " in run.verdict()[1]
    (line,) = status(capsys)
    assert line.startswith("silent ")
    assert "though slurm says it is running on localhost" in line
    # Slurm's own pings take minutes to notice; here its administrator is told.
    slurm.call("scontrol", "update", "nodename=localhost", "state=down", "reason=power")
    wait_for(lambda: "died with its node" in status(capsys, "survivor")[0])
    assert run.status == "killed"
