"""Notebook 02 on two nodes of a real Slurm: the curve is that of one process with batches twice as large."""

import os
import signal
from dataclasses import replace

import psutil
import pytest

from arcnb.arc.tasks.task_set import TaskSet, load_tasks, write_tasks
from arcnb.models.sft.plan import SftPlan
from arcnb.models.sft.row_stream import RowStream
from arcnb.models.sft.training import train_sft
from arcnb.models.training.checkpoints import newest_complete, step_of
from arcnb.models.training.log import read_metrics
from tests.lab.clusters import slurm_daemons
from tests.lab.clusters.clusters import only_run, submit_to
from tests.lab.watching import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(slurm_daemons.missing()), reason=slurm_daemons.missing()),
]
PROGRAM = "def transform(grid):\n    return grid[::-1]\n"
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
    everything = load_tasks("arc-agi-1/training")
    small = [t for t in everything if sum(p.input.size + p.output.size for p in t.train) < 250][:6]
    write_tasks(
        TaskSet("small", tuple(replace(task, program=PROGRAM) for task in small)), tmp_path / "tasks.parquet"
    )
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


@pytest.mark.long("a notebook trains on two nodes")
def test_two_nodes_learn_what_one_process_does_with_batches_twice_as_large(slurm, settings, tmp_path):
    on_two = words(settings, num_processes=2, per_device_train_batch_size=1)
    assert submit_to("slurm", "02", "--nodes", "2", *on_two, options=NODE) == 0
    run = only_run()
    wait_for(lambda: run.status in ("done", "failed", "killed"), 280)
    log = (run.path / "log.txt").read_text()
    assert run.status == "done", log[-2000:]
    whole = {"num_processes": 1, "per_device_train_batch_size": 2}
    rows = RowStream(run.path / "rows")
    report = train_sft(SftPlan.of(settings | whole), rows, tmp_path / "alone", steps=3)
    assert len(losses(report.history)) == 3
    assert losses(read_metrics(run.path / "metrics.jsonl")) == pytest.approx(losses(report.history), rel=1e-4)
    assert list((run.path / "nodes").glob("*/1.alive")), "the second node was there"


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
def test_a_killed_process_fails_the_run_with_its_name_and_leaves_a_whole_checkpoint(slurm, settings):
    more = words(settings, num_processes=2, per_device_train_batch_size=1, max_steps=40, save_steps=4)
    assert submit_to("slurm", "02", "--nodes", "2", "--no-requeue", *more, options=NODE) == 0
    run = only_run()
    wait_for(lambda: newest_step(run) or run.status == "failed", 280)
    (second,) = workers(slurm, "two")
    os.kill(second.pid, signal.SIGKILL)
    wait_for(lambda: run.status != "running", 120)
    log = (run.path / "log.txt").read_text()
    assert run.status == "failed", log[-3000:]
    assert "node 2 of 2" in run.verdict()[1]
    assert "failed: process 1 was killed by SIGKILL" in run.verdict()[1]
    assert newest_step(run)
