"""Notebook 02 by `arcnb run`, stopped by a signal and run again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from arcnb.models.training.checkpoints import newest_complete
from arcnb.models.training.log import read_metrics

pytestmark = pytest.mark.slow


@pytest.fixture
def arcnb(tmp_path):
    """arcnb("run", "02", ...) -> the process, its run folders below tmp_path."""

    def start(*arguments):
        command = [sys.executable, "-m", "arcnb.lab.cli", *map(str, arguments)]
        environment = os.environ | {"ARCNB_RUNS": str(tmp_path)}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def manifest(run):
    return json.loads((run / "manifest.json").read_text())


@pytest.mark.long("whole notebooks, each in a kernel of its own")
def test_a_run_that_is_stopped_saves_and_goes_on_as_if_it_had_not_been(arcnb, small_model, tmp_path):
    parameters = {
        "model": small_model.path,
        "n_shown": 0,
        "lora_r": 2,
        "max_steps": 12,
        "learning_rate": 1e-2,
    }
    pairs = [item for pair in parameters.items() for item in ("-p", *pair)]
    whole = arcnb("run", "02", "--quiet", *pairs)
    output, errors = whole.communicate(timeout=300)
    assert whole.returncode == 0, errors
    whole = Path(output.strip())

    process = arcnb("run", "02", "--name", "stopped", *pairs)
    deadline = time.monotonic() + 180
    while not any(log.stat().st_size for log in tmp_path.glob("*-stopped/metrics.jsonl")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "no step was made"
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGTERM
    (run,) = tmp_path.glob("*-stopped")
    assert f"arcnb run --resume {run}" in errors
    assert manifest(run)["status"] == "preempted"
    assert newest_complete(run / "checkpoints") is not None

    process = arcnb("run", "--resume", run)
    assert process.wait(timeout=300) == 0, process.communicate()[1]
    assert manifest(run)["status"] == "done"
    losses = [
        [row["loss"] for row in read_metrics(one / "metrics.jsonl") if "loss" in row] for one in (run, whole)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 12
    weights = [load_file(one / "adapter" / "adapter_model.safetensors") for one in (run, whole)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
