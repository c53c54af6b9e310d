"""Notebook 02 by `arcnb run`, on tasks that notebook 01 made; repeated stopped by a signal and run again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.models.training.checkpoints import newest_complete
from arcnb.models.training.log import read_metrics
from tests.in_process import carried_out
from tests.rl.logged_keys import unknown_keys
from tests.road.test_grpo import manifest, stopped_at_a_step

pytestmark = pytest.mark.slow

STEPS = 8


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def arcnb(runs):
    """arcnb("run", "02", ...) -> the process, its run folders below runs."""

    def start(*arguments, **parameters):
        pairs = [word for name, value in parameters.items() for word in ("-p", name, value)]
        command = [sys.executable, "-m", "arcnb.lab.cli", *map(str, [*arguments, *pairs])]
        environment = os.environ | {"ARCNB_RUNS": str(runs)}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def done(process):
    """The run folder of a process that ran to its end."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return Path(output.strip())


@pytest.fixture(scope="module")
def made(runs):
    """A run of notebook 01 that made tasks."""
    recipe = "rearc*6 + dsl*12 + rearc/held_out*2"
    return carried_out(runs, "01", tasks=recipe, max_cells=800, max_prompt_length=3000)


@pytest.fixture(scope="module")
def training(made, small_model):
    """Parameters of a small training on them."""
    tasks = {"tasks": made.path / "tasks.parquet", "eval_tasks": "dsl/held_out*4", "max_cells": 800}
    rows = {"augment_programs": True, "packing": True, "max_length": 2000, "workers": 1}
    sizes = {"lora_r": 2, "max_steps": STEPS, "learning_rate": 1e-2}
    return tasks | rows | sizes | {"model": small_model.path, "backend": "transformers"}


@pytest.fixture(scope="module")
def whole(arcnb, training):
    """The folder of a run of notebook 02 that nothing stops."""
    return done(arcnb("run", "02", "--quiet", **training, n_shown=1))


def test_made_tasks_are_counted(made):
    assert made.outcome["with_program"] == made.outcome["tasks"] >= 12
    assert made.outcome["tasks_per_second_per_core"] > 0


def test_fine_tuning_learns_from_them_but_from_reserved_ones(whole):
    outcome = manifest(whole)["outcome"]
    assert (outcome["steps"], outcome["n_reserved"]) == (STEPS, 2)
    assert "Reserved tasks and eval tasks left out: 2." in (whole / "manifest.json").read_text()
    assert (whole / "adapter" / "adapter_model.safetensors").is_file()
    assert len(PredictionSet(whole / "predictions").read()) == 4
    assert unknown_keys(whole) == []


def test_the_page_says_what_a_gpu_would_need(whole):
    (page,) = whole.glob("02_sft*.ipynb")
    text = page.read_text()
    assert all(f">{what}</td>" in text for what in ("activations", "optimizer", "needed", "room"))


# test_grpo.py stops and resumes a notebook, tests/models/sft/test_training.py this training without one.
@pytest.mark.repetition
@pytest.mark.long("whole notebooks, each in a kernel of its own")
def test_a_run_that_is_stopped_saves_and_goes_on_as_if_it_had_not_been(arcnb, runs, training, whole):
    process = arcnb("run", "02", "--name", "stopped", **training, n_shown=0)
    run, code, errors = stopped_at_a_step(process, runs)
    assert code == 128 + signal.SIGTERM
    assert f"arcnb run --resume {run}" in errors
    assert manifest(run)["status"] == "preempted"
    assert newest_complete(run / "checkpoints") is not None

    assert done(arcnb("run", "--quiet", "--resume", run)) == run
    assert manifest(run)["status"] == "done"
    both = (run, whole)
    losses = [[row["loss"] for row in read_metrics(one / "metrics.jsonl") if "loss" in row] for one in both]
    assert losses[0] == losses[1]
    assert len(losses[0]) == STEPS
    weights = [load_file(one / "adapter" / "adapter_model.safetensors") for one in both]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_eval_tasks_without_programs_are_refused_by_their_name(runs, small_model):
    with pytest.raises(ArcnbError, match=r"eval_tasks: none of 400 tasks has a program"):
        carried_out(runs, "02", model=small_model.path, tasks="dsl*4", eval_tasks="arc-agi-1/evaluation")
