"""Notebook 02 on two nodes of a real Slurm: the curve is that of one process with batches twice as large."""

from dataclasses import replace

import pytest

from arcnb.arc.tasks.task_set import TaskSet, load_tasks, write_tasks
from arcnb.models.sft.plan import SftPlan
from arcnb.models.sft.row_stream import RowStream
from arcnb.models.sft.training import train_sft
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


def losses(rows):
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.long("a notebook trains on two nodes")
def test_two_nodes_learn_what_one_process_does_with_batches_twice_as_large(slurm, settings, tmp_path):
    split = settings | {"num_processes": 2, "per_device_train_batch_size": 1}
    on_two = [str(word) for name, value in split.items() for word in ("-p", name, value)]
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
