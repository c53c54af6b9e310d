"""Notebook 02 on two nodes of a real Slurm: the curve is that of one process with batches twice as large."""

import contextlib
import json
import os
import signal

import psutil
import pytest

from arcnb.arc.tasks.task_set import write_tasks
from arcnb.lab.clusters import submitting
from arcnb.models.sft.plan import SftPlan
from arcnb.models.sft.row_stream import RowStream
from arcnb.models.sft.training import train_sft
from arcnb.models.training.checkpoints import newest_complete, step_of
from arcnb.models.training.log import read_metrics
from tests.arc_tasks import taught_tasks
from tests.lab.clusters import slurm_daemons, standin_vllm
from tests.lab.clusters.clusters import PATIENT, started, submit_to, task_of
from tests.lab.watching import only_run, wait_for
from tests.rl.conftest import gpus  # noqa: F401

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(slurm_daemons.missing()), reason=slurm_daemons.missing()),
]
NODE = ["--cpus", "1", "--memory", "2G", "--time", "10m", "--gpus", "0"]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    (tmp_path / "slurm").mkdir()
    daemons = slurm_daemons.SlurmDaemons(tmp_path / "slurm", ("one", "two"))
    monkeypatch.setenv("SLURM_CONF", str(daemons.folder / "slurm.conf"))
    try:
        daemons.start()
        yield daemons
    finally:
        daemons.stop()


@pytest.fixture
def settings(tmp_path, small_model):
    write_tasks(taught_tasks(), tmp_path / "tasks.parquet")
    return {
        "tasks": str(tmp_path / "tasks.parquet"), "model": small_model.path, "adapter": "", "lora_r": 4,
        "max_steps": 3,
        "learning_rate": 1.0, "lr_scheduler_type": "constant", "optim": "sgd", "max_length": 1000,
        "train_sampling_strategy": "sequential", "backend": "transformers", "n_shown": 0,
    }  # fmt: skip


def words(settings, **more):
    return [str(word) for name, value in (settings | more).items() for word in ("-p", name, value)]


def losses(rows):
    return [row["loss"] for row in rows if "loss" in row]


def newest_step(run):
    found = newest_complete(run.path / "checkpoints", announce=lambda sentence: None)
    return step_of(found) if found else 0


def workers(slurm, node):
    """The processes of the training on a node."""
    own = [
        psutil.Process(one) for one in slurm_daemons.own_processes(slurm.folder) if slurm.node_of(one) == node
    ]
    return [one for one in own if "RANK" in one.environ() and one.parent().environ().get("RANK") is None]


@pytest.mark.long("a notebook trains on two nodes")
def test_two_nodes_learn_what_one_process_does_with_batches_twice_as_large_until_one_is_killed_and_named(
    slurm, settings, tmp_path
):
    on_two = words(settings, num_processes=2, per_device_train_batch_size=1, max_steps=40, save_steps=4)
    assert submit_to("slurm", "02", "--nodes", "2", "--no-requeue", *on_two, options=NODE) == 0
    run = only_run()
    wait_for(lambda: newest_step(run) or run.status == "failed", 280)
    assert list((run.path / "nodes").glob("*/1.alive")), "the second node is there"
    assert submitting.read_record(run)["task"] == run.manifest["job"].split()[1]
    (second,) = workers(slurm, "two")
    os.kill(second.pid, signal.SIGKILL)
    wait_for(lambda: run.status != "running")
    log = (run.path / "log.txt").read_text()
    assert run.status == "failed", log[-3000:]
    assert "node 2 of 2" in run.verdict()[1]
    assert "failed: process 1 was killed by SIGKILL" in run.verdict()[1]
    assert newest_step(run)
    plan = SftPlan.of(settings | {"num_processes": 1, "per_device_train_batch_size": 2})
    alone = losses(train_sft(plan, RowStream(run.path / "rows"), tmp_path / "alone", steps=3).history)
    assert len(alone) == 3
    assert losses(read_metrics(run.path / "metrics.jsonl"))[:3] == pytest.approx(alone, rel=1e-4)


def test_a_stopped_job_of_two_nodes_saves_and_goes_on(slurm, notebook):
    slow = PATIENT.replace("    (run.path / 'saved').w", "    time.sleep(3)\n    (run.path / 'saved').w")
    assert slow != PATIENT
    assert submit_to("slurm", notebook(slow), "--nodes", "2", options=NODE) == 0
    run = only_run()
    wait_for(lambda: started(run) and list(run.path.glob("nodes/*/1.alive")))
    slurm.call("scontrol", "requeue", task_of(run))
    wait_for(lambda: run.status == "preempted")
    assert (run.path / "saved").is_file()
    wait_for(lambda: run.status == "done")
    assert len(list(run.path.glob("nodes/*/1.alive"))) == 2


# tests/models/training/test_nodes.py loses a node without Slurm, and the test above a process with it.
@pytest.mark.repetition
@pytest.mark.long("a notebook trains on two nodes, twice")
def test_a_killed_node_fails_the_run_with_its_name_and_it_goes_on_as_an_unbroken_one(
    slurm, settings, tmp_path
):
    settings |= {"learning_rate": 0.1, "max_steps": 12}  # at larger rates the last bits of a loss grow
    more = words(settings, num_processes=2, per_device_train_batch_size=1, save_steps=2)
    assert submit_to("slurm", "02", "--nodes", "2", *more, options=NODE) == 0
    run = only_run()
    wait_for(lambda: newest_step(run) or run.status == "failed", 280)
    slurm.kill_node("two")
    wait_for(lambda: run.status != "running")
    assert run.status == "failed", run.verdict()
    assert "node 2 of 2 (two) is lost: no sign of it for " in run.verdict()[1]
    assert 0 < newest_step(run) < 12
    slurm.start_node("two")
    assert submit_to("slurm", "--resume", run.path, "--nodes", "2", options=NODE) == 0
    wait_for(lambda: len(run.manifest["attempts"]) == 1 and run.status in ("done", "failed", "killed"), 280)
    assert run.status == "done", (run.path / "log.txt").read_text()[-3000:]
    alone = SftPlan.of(settings | {"num_processes": 1, "per_device_train_batch_size": 2})
    report = train_sft(alone, RowStream(run.path / "rows"), tmp_path / "alone", steps=12)
    unbroken = losses(report.history)
    assert losses(read_metrics(run.path / "metrics.jsonl")) == pytest.approx(unbroken, rel=1e-4)
    assert max(unbroken) - min(unbroken) > 0.01


def serving(slurm):
    """The process of the server."""
    for one in map(psutil.Process, slurm_daemons.own_processes(slurm.folder)):
        with contextlib.suppress(psutil.Error):
            if standin_vllm.MODULE in one.cmdline():
                return one
    return None


# What needs NCCL, and so GPUs, is left out; the retries of TRL's client wait for nothing.
WITHOUT_NCCL = """
from trl.generation import vllm_client as client
client.VLLMClient.init_communicator = lambda self, device: None
client.VLLMClient.update_named_params = lambda self, metadata, named: [None for _ in named]
retry = client.Retry
client.Retry = lambda **options: retry(**options | {'backoff_factor': 0})
"""
TRAIN = """
from arcnb.arc import load_tasks
from arcnb.rl import GrpoPlan, run_grpo
options = json.loads(label)
plan = GrpoPlan.of(options, output=run.path)
report = run_grpo(plan, load_tasks(options['tasks']))
run.record({'steps': report.steps})
"""


@pytest.mark.long("a training on one node samples from a server on another")
@pytest.mark.parametrize("goes_on", [False, pytest.param(True, marks=pytest.mark.repetition)])
def test_a_server_on_the_last_node_samples_and_its_death_fails_the_run_with_its_address(
    slurm,
    settings,
    notebook,
    tmp_path,
    gpus,  # noqa: F811
    goes_on,
):
    """A stand-in plays vLLM: promised is how the server is started, found and ended, not what it says."""
    gpus("0, GPU-1, 81920, 81000")  # without which no training with a server begins
    standin_vllm.write_sitecustomize(tmp_path / "site")
    asked = {
        "tasks": settings["tasks"], "model": settings["model"], "adapter": "", "use_vllm": True,
        "vllm_mode": "server", "max_steps": 14, "save_steps": 2, "num_generations": 4, "eval_steps": 0,
        "max_completion_length": 8, "overlong_weight": 1.0, "max_prompt_length": 0, "workers": 1,
    }  # fmt: skip
    path = notebook("import json", WITHOUT_NCCL, TRAIN, name="05_small")
    how = [*NODE, "--env", f"PYTHONPATH={tmp_path / 'site'}", "--serve", f"{settings['model']} --seed 7"]
    more = ["--nodes", "2", "--no-requeue", "-p", "label", json.dumps(asked)]
    assert submit_to("slurm", path, *more, options=how) == 0
    run = only_run()
    wait_for(lambda: newest_step(run) or run.status == "failed", 280)
    log = run.path / "log.txt"
    assert run.status == "running", log.read_text()[-3000:]
    server = serving(slurm)
    assert slurm.node_of(server.pid) == "two"
    assert server.cmdline()[-4:] == ["--host", "0.0.0.0", "--seed", "7"]
    address = next(run.path.glob("nodes/*/server")).read_text()
    server.kill()
    wait_for(lambda: run.status != "running")
    assert run.status == "failed", log.read_text()[-3000:]
    assert f"the vLLM server at {address} does not answer" in run.verdict()[1]
    wait_for(lambda: slurm.call("squeue", "-h", "-t", "all", "-o", "%T") == "FAILED")
    if not goes_on:
        return
    before = read_metrics(run.path / "metrics.jsonl")
    assert submit_to("slurm", "--resume", run.path, "--nodes", "2", options=how) == 0
    wait_for(lambda: len(run.manifest["attempts"]) == 1 and run.status in ("done", "failed", "killed"), 280)
    assert run.status == "done", log.read_text()[-3000:]
    assert run.manifest["outcome"] == {"steps": 14}
    both = zip(losses(before), losses(read_metrics(run.path / "metrics.jsonl")), strict=False)
    assert [one == pytest.approx(other, rel=1e-4) for one, other in both] == [True] * len(losses(before))
    wait_for(lambda: serving(slurm) is None)
