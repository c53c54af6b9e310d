"""ZeRO-3 by `accelerate launch` and deepspeed, here on a CPU with gloo.

(about two minutes; needs deepspeed, or `make install`)
"""

import os
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from safetensors.torch import load_file

from arcnb.models.training.log import read_metrics
from arcnb.rl.launch import run_grpo
from arcnb.rl.plan.grpo import GrpoPlan
from tests.rl.conftest import QUICK

SIZES = {"num_generations": 8, "max_completion_length": 24, "max_grad_norm": 0.1, "rewards.terms": {}}
SPREAD = {"overlong_weight": 1.0, "overlong_buffer": 24}
# See test_accelerate.py.
ALWAYS = {"guard.action": "rollback", "guard.window": 2, "guard.max_rollbacks": 1}
ALWAYS |= {"guard.thresholds.unique_tokens": 100.0, "guard.thresholds.kl": 1e9}

APART = Path(sys.prefix) / "zero3"  # see requirements-zero3.txt

pytestmark = [
    pytest.mark.skipif(not APART.is_dir() and find_spec("deepspeed") is None, reason="needs deepspeed"),
    pytest.mark.timeout(400),
]


@pytest.fixture
def plan(letter_model, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.syspath_prepend(APART)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(APART), os.environ.get("PYTHONPATH", "")]).strip(":")
    )
    two = {"model": str(letter_model.folder), "workers": 2, "num_processes": 2, "parallel": "zero3"}
    return GrpoPlan.of(QUICK | SIZES | SPREAD | two, output=tmp_path / "unbroken")


def steps(folder):
    return [row for row in read_metrics(folder / "metrics.jsonl") if "reward" in row]


def adapter(folder):
    return load_file(folder / "adapter" / "adapter_model.safetensors")


@pytest.mark.long("deepspeed starts processes that import torch, several times")
def test_a_resumed_run_goes_on_as_an_unbroken_one(plan, tasks, tmp_path):
    plan = plan.changed({"max_steps": 4, "save_steps": 2})
    assert run_grpo(plan, tasks).status == "done"
    unbroken = steps(plan.output)
    assert max(row["kl"] for row in unbroken) > 0.1, "it learns"

    broken = tmp_path / "broken"
    shutil.copytree(plan.output, broken)
    shutil.rmtree(broken / "checkpoints" / "checkpoint-4")
    shutil.rmtree(broken / "adapter")
    report = run_grpo(replace(plan, output=broken), tasks)
    assert (report.status, report.steps) == ("done", 4)
    for name in ("loss", "kl", "reward", "learning_rate"):
        assert [row[name] for row in steps(broken)] == [row[name] for row in unbroken]
    one, other = (
        load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (plan.output, broken)
    )
    assert all((one[name] == other[name]).all() and one[name].numel() for name in one)


@pytest.mark.long("deepspeed starts processes that import torch, several times")
def test_it_rolls_back_to_its_start(plan, tasks, tmp_path):
    steps_of = {"max_steps": 9, "save_steps": 100, "eval_steps": 100, "num_generations_eval": 1}
    report = run_grpo(plan.changed(ALWAYS | steps_of), tasks, tasks)
    assert (report.status, report.rollbacks, len(report.pages)) == ("collapsed", 1, 2)
    first, again = steps(plan.output / "abandoned" / "1"), steps(plan.output)
    assert first[-1]["kl"] > 1e-4 > again[0]["kl"], "it went on with weights of before"
    assert {row["learning_rate"] for row in first} == {1e-2}
    assert {row["learning_rate"] for row in again} == {5e-3}
    assert again[-1]["kl"] > 1e-4, "it learns again"
