"""Runs on a real HTCondor pool: arrays, GPUs, states, hold, removal, eviction, DAGs, dead daemons.

    tests/lab/clusters/htcondor_root.sh /tmp/htcondor
    ARCNB_HTCONDOR_ROOT=/tmp/htcondor pytest tests/lab/clusters/test_htcondor.py     (a minute)

Skipped without such a folder. The pool has process ids of its own: its runs look as if on another machine.
"""

import json
import os
import sys
from functools import partial

import pytest

from arcnb.lab import cli
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.heartbeat import HEARTBEAT, read_heartbeat
from tests.lab.clusters import condor_daemons, standin_vllm
from tests.lab.clusters.clusters import PATIENT, RECORD, started, status, submit_to, task_of
from tests.lab.clusters.images import image_of_mount_points
from tests.lab.watching import only_run, wait_for

pytestmark = pytest.mark.skipif(bool(condor_daemons.missing()), reason=condor_daemons.missing())


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    pool = condor_daemons.CondorPool(tmp_path_factory.mktemp("htcondor"))
    try:
        pool.start()
        yield pool
    finally:
        pool.stop()


@pytest.fixture(autouse=True)
def _in_path(pool, monkeypatch):
    monkeypatch.setenv("PATH", str(pool.path), prepend=os.pathsep)


@pytest.fixture
def path(notebook):
    return notebook("# Wait", PATIENT, RECORD)


submit = partial(submit_to, "htcondor")


def test_a_sweep_is_one_submission_and_gpus_are_handed_out(path, runs_root, capsys):
    assert submit(path, "--grid", "n=1,2,3", "--name", "many", "--gpus", "1") == 0
    runs = list_runs()
    assert capsys.readouterr().out.split() == [str(run.path) for run in runs]
    wait_for(lambda: sum(started(run) for run in runs) == 2)
    lines = wait_for(lambda: (found := status(capsys)) and "waiting: " in found[0] and found)
    assert "Running on " in lines[0]
    assert "cell 6/7 (Wait), waiting: " in lines[0]
    assert lines[2].startswith("queued ")
    assert f"htcondor {task_of(runs[2])}: Idle" in lines[2]
    assert "request_gpus = 1\n" in (runs[0].path / "job" / "job.sub").read_text()
    (runs_root / "go").touch()
    wait_for(lambda: {run.status for run in runs} == {"done"})
    assert {run.manifest["outcome"]["gpu"] for run in runs[:2]} == {"FAKE-GPU0", "FAKE-GPU1"}
    assert [run.manifest["job"] for run in runs] == [f"htcondor {task_of(run)}" for run in runs]
    assert wait_for(lambda: all("Completed" in line for line in (status(capsys, "many")))) is True
    assert status(capsys) == []


def test_an_evicted_run_saves_waits_and_goes_on_in_its_folder(path, pool):
    assert submit(path, "--name", "evicted", "--gpus", 0) == 0
    run = only_run()
    wait_for(lambda: started(run))
    pool.call("condor_vacate_job", task_of(run))
    wait_for(lambda: run.status == "done")
    assert [attempt["status"] for attempt in run.manifest["attempts"]] == ["preempted"]
    assert (run.path / "log.txt").read_text().count(f"htcondor {task_of(run)} on ") == 2
    assert len(list_runs()) == 1


def test_held_jobs_say_so_and_removed_ones_too(path, pool, capsys):
    assert submit(path, "--name", "waiting", "--constraint", 'Arch == "VAX"') == 0
    assert submit(path, "--name", "working") == 0
    waiting, working = sorted(list_runs(), key=lambda run: run.name)
    wait_for(lambda: started(working))
    pool.call("condor_hold", "-reason", "for lunch", task_of(working))
    wait_for(lambda: working.status == "preempted")
    assert (working.path / "saved").is_file()
    line = wait_for(lambda: (found := status(capsys, "working")[0]) and "Held" in found and found)
    assert "Held (for lunch" in line
    assert "waits to go on; cell 6 of 7" in line
    # A job that is released before its eviction is over confuses HTCondor.
    wait_for(lambda: pool.call("condor_q", task_of(working), "-af", "RemoteHost") == "undefined")
    pool.call("condor_release", task_of(working))
    wait_for(lambda: working.status == "done")
    assert "Idle" in status(capsys)[0]
    assert cli.main(["cancel", "waiting"]) == 0
    assert waiting.verdict() == ("killed", "before it started: cancelled")
    wait_for(lambda: "Removed" in status(capsys, "waiting")[0])


def test_tasks_that_are_made_later_wait_and_are_cancelled_with_their_job(path, pool, runs_root, capsys):
    assert submit(path, "--grid", "n=1,2,3", "--name", "few", "--gpus", 0, "--at-once", 1) == 0
    first, second, third = list_runs()
    wait_for(lambda: started(first))
    lines = status(capsys)
    assert [line.split()[0] for line in lines] == ["running", "queued", "queued"]
    assert "waits until others of its job have ended" in lines[2]
    assert cli.main(["cancel", "few.n_3"]) == 2
    assert "cancel the whole sweep" in capsys.readouterr().err
    assert third.status == "queued"
    assert cli.main(["cancel", "few"]) == 0
    wait_for(
        lambda: first.status == "preempted" and not pool.call("condor_q", "-factory", "-af", "ClusterId")
    )
    assert {run.verdict() for run in (second, third)} == {("killed", "before it started: cancelled")}
    assert not started(second)


def test_a_run_in_an_image_that_the_pool_starts(notebook, pool, tmp_path):
    path = notebook("import os", "run.record({'inside': os.path.exists('/mark'), 'n': n})")
    image = image_of_mount_points(tmp_path, (*pool.inside(), "apptainer"))
    programs = f"PATH={sys.prefix}/bin:/usr/bin:/bin"
    assert submit(path, "-p", "n", "5", "--container", image, "--gpus", "0", "--env", programs) == 0
    run = only_run()
    wait_for(lambda: run.status in ("done", "failed", "killed"))
    assert run.status == "done", (run.path / "log.txt").read_text()[-2000:]
    assert run.manifest["outcome"] == {"inside": True, "n": 5}


# Done when the other node has counted and its server has an address.
MEETS = """
from pathlib import Path
from arcnb.models.training.nodes import job_server
address = job_server()
(folder,) = run.path.glob('nodes/*')
while not (folder / '1.alive').exists():
    time.sleep(0.1)
run.record({'served': address.startswith('http://')})
"""


def test_the_last_node_of_a_parallel_job_serves_and_ends_with_it(notebook, tmp_path, small_model, capsys):
    standin_vllm.write_sitecustomize(tmp_path / "site")
    path = notebook("import time", MEETS)
    site = f"PYTHONPATH={tmp_path / 'site'}"
    how = ["--nodes", 2, "--serve", small_model.path, "--gpus", 0, "--env", site]
    assert submit(path, *how) == 0
    run = only_run()
    wait_for(lambda: run.status in ("done", "failed", "killed"))
    assert run.status == "done", (run.path / "log.txt").read_text()[-2000:]
    assert run.manifest["outcome"] == {"served": True}
    wait_for(lambda: "Completed" in status(capsys, run.path.name)[0])
    assert "the stand-in serves " in (run.path / "log-node1.txt").read_text()


def test_a_pipeline_is_a_dag_and_a_stage_that_fails_ends_those_behind_it(notebook, tmp_path, capsys):
    leave = "(run.path / 'tasks.txt').write_text('x' * n)"
    notebook(leave, "run.record({'n': n}, artifacts=['tasks.txt'])", name="a")
    read = "from pathlib import Path\nlength = len(Path(label).read_text())\nassert not seconds, 'bad'"
    notebook(read, "run.record({'length': length})", name="b")
    stages = {
        "last": {"notebook": "b.ipynb", "after": "bad"},
        "bad": {"notebook": "b.ipynb", "parameters": {"label": "${data.folder}/tasks.txt", "seconds": 1}},
        "data": {"notebook": "a.ipynb", "parameters": {"n": 4}},
        "good": {"notebook": "b.ipynb", "parameters": {"label": "${data.tasks}"}},
    }
    file = tmp_path / "road.yaml"
    file.write_text(json.dumps({"stages": stages}))
    assert submit(file, "--gpus", 0) == 0
    runs = {run.name.removeprefix("road-"): run for run in list_runs()}
    assert "(DAG)" in task_of(runs["data"])
    assert len(status(capsys)) == 4
    wait_for(lambda: (runs["good"].status, runs["bad"].status) == ("done", "failed"))
    assert runs["good"].manifest["outcome"] == {"length": 4}
    wait_for(lambda: status(capsys, "road-last")[0].startswith("killed"))
    assert "it never started: htcondor" in runs["last"].verdict()[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--constraint", "Memory >"], "HTCondor refused the job: ERROR: "),
        (["--extra", "request_disk = 5 lots"], "HTCondor refused the job: ERROR: "),
        (["--partition", "gold"], "HTCondor has no partitions; say what the nodes must have by constraint"),
        (["--after", "7"], "HTCondor jobs wait for others in a DAG only: submit a pipeline"),
    ],
)
def test_a_refusal_is_one_sentence_and_leaves_no_run(path, options, message, capsys):
    assert submit(path, "--grid", "n=1,2", options=options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list_runs() == []


def test_z_dead_daemons_are_told_from_dead_nodes(path, pool, capsys):
    """The last test: it ends the pool."""
    assert submit(path, "--name", "survivor", "--gpus", 0) == 0
    run = only_run()
    wait_for(lambda: (read_heartbeat(run.path) or {"progress": ""})["progress"])
    pool.kill("condor_schedd")
    line = status(capsys)[0]
    assert line.startswith("running ")
    assert "htcondor does not answer: " in line
    assert "waiting: " in line, "the heartbeat needs no scheduler"
    pool.stop()
    os.utime(run.path / HEARTBEAT, (0, 0))  # the time that a reader waits before it gives up a run
    state, why = run.verdict()
    assert state == "killed"
    assert "is gone (last seen " in why
    assert status(capsys, "survivor")[0].startswith("killed ")
