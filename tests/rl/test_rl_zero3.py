"""ZeRO-3 by `accelerate launch` and deepspeed, here on a CPU with gloo.

Run: pytest tests/rl/test_rl_zero3.py (about two minutes; needs deepspeed, or `make install`)
"""

import os
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from safetensors.torch import load_file

from arcnb.models.training_log import read_metrics
from arcnb.rl.guard import GuardOptions, Thresholds
from arcnb.rl.launch import GrpoPlan, run_grpo
from arcnb.rl.options import GrpoOptions

SETTINGS = {"num_generations": 8, "max_completion_length": 24, "learning_rate": 1e-2, "warmup_steps": 0}
SPREAD = {"reward_weights": {"overlong": 1.0}, "overlong_buffer": 24}
# See test_rl_accelerate.py.
ALWAYS = GuardOptions(
    "rollback", window=2, max_rollbacks=1, thresholds=Thresholds(unique_tokens=100.0, kl=1e9)
)

APART = Path(sys.prefix) / "zero3"  # see requirements-zero3.txt

pytestmark = [
    pytest.mark.skipif(not APART.is_dir() and find_spec("deepspeed") is None, reason="needs deepspeed"),
    pytest.mark.timeout(400),
]


@pytest.fixture
def plan(letter_model, tasks, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.syspath_prepend(APART)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(APART), os.environ.get("PYTHONPATH", "")]).strip(":")
    )
    arguments = {
        "settings": SETTINGS,
        "lora": {"r": 2},
        "workers": 2,
        "num_processes": 2,
        "parallel": "zero3",
    }
    return GrpoPlan(tasks, tmp_path / "unbroken", model=str(letter_model.folder), **arguments)


def steps(folder):
    return [row for row in read_metrics(folder / "metrics.jsonl") if "reward" in row]


def adapter(folder):
    return load_file(folder / "adapter" / "adapter_model.safetensors")


@pytest.mark.long("deepspeed starts processes that import torch, several times")
def test_a_resumed_run_goes_on_as_an_unbroken_one(plan, tmp_path):
    settings = SETTINGS | {"max_steps": 4, "save_steps": 2}
    plan = replace(plan, settings=settings, options=GrpoOptions(**SPREAD))
    assert run_grpo(plan).status == "done"
    unbroken = steps(plan.output)
    assert max(row["kl"] for row in unbroken) > 0.1, "it learns"

    broken = tmp_path / "broken"
    shutil.copytree(plan.output, broken)
    shutil.rmtree(broken / "checkpoints" / "checkpoint-4")
    shutil.rmtree(broken / "adapter")
    report = run_grpo(replace(plan, output=broken))
    assert (report.status, report.steps) == ("done", 4)
    for name in ("loss", "kl", "reward", "learning_rate"):
        assert [row[name] for row in steps(broken)] == [row[name] for row in unbroken]
    one, other = (
        load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (plan.output, broken)
    )
    assert all((one[name] == other[name]).all() and one[name].numel() for name in one)


@pytest.mark.long("deepspeed starts processes that import torch, several times")
def test_it_rolls_back_to_its_start(plan, tasks, tmp_path):
    options = GrpoOptions(**SPREAD, guard=ALWAYS, held_out_every=100, held_out_repeats=1)
    settings = SETTINGS | {"max_steps": 9, "save_steps": 100}
    report = run_grpo(replace(plan, settings=settings, options=options, held_out_tasks=tasks))
    assert (report.status, report.rollbacks, len(report.pages)) == ("collapsed", 1, 2)
    first, again = steps(plan.output / "abandoned" / "1"), steps(plan.output)
    assert first[-1]["kl"] > 1e-4 > again[0]["kl"], "it went on with weights of before"
    assert {row["learning_rate"] for row in first} == {1e-2}
    assert {row["learning_rate"] for row in again} == {5e-3}
    assert again[-1]["kl"] > 1e-4, "it learns again"
