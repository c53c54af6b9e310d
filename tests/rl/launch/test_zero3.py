"""ZeRO-3 by `accelerate launch` and deepspeed, here on a CPU with gloo.

(needs deepspeed, or `make install`)
"""

import json
import os
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from arcnb.models.training.checkpoints import newest_complete
from arcnb.models.training.processes import launch
from arcnb.rl.plan.grpo import GrpoPlan
from tests.paths import ROOT
from tests.rl.conftest import QUICK
from tests.rl.launch.test_launch import steps

SIZES = {"num_generations": 8, "max_completion_length": 24, "max_grad_norm": 0.1, "rewards.terms": {}}
SIZES |= {"overlong_weight": 1.0, "overlong_buffer": 24}
STEPS = {"max_steps": 4, "save_steps": 2, "eval_steps": 100, "num_generations_eval": 1}
STEPS |= {"gradient_checkpointing": True}
# Any share of distinct tokens is taken for a collapse, once there is a first window to compare with.
ALWAYS = {"guard.action": "rollback", "guard.window": 3, "guard.max_rollbacks": 1}
ALWAYS |= {"guard.thresholds.unique_tokens": 100.0, "guard.thresholds.kl": 1e9}

APART = Path(sys.prefix) / "zero3"  # see requirements-zero3.txt

pytestmark = [
    pytest.mark.skipif(not APART.is_dir() and find_spec("deepspeed") is None, reason="needs deepspeed"),
    pytest.mark.long("two processes import deepspeed and TRL and train four times"),
]


@pytest.fixture(scope="module")
def runs(letter_model, tasks, tmp_path_factory):
    """The folders of an unbroken run, of one that went on from its second step, and of one that rolled back
    at its fourth, and the report of the last. One pair of processes carries out all of it: that run_grpo
    starts another one after a rollback is shown in test_rollbacks.py."""
    folder = tmp_path_factory.mktemp("zero3")
    unbroken, resumed, broken = (folder / name for name in ("unbroken", "resumed", "broken"))
    two = {"model": str(letter_model.folder), "workers": 2, "num_processes": 2, "parallel": "zero3"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("DS_ACCELERATOR", "cpu")
        patch.syspath_prepend(APART)
        paths = [str(APART), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        plan = GrpoPlan.of(QUICK | SIZES | STEPS | two, output=unbroken)
        goes_on = replace(plan, output=resumed, resume=str(unbroken / "checkpoints" / "checkpoint-2"))
        guarded = replace(plan.changed(ALWAYS), output=broken)
        replace(guarded, resume="auto").write(tasks, tasks)
        again = shutil.copytree(broken / "launch", broken / "again") / "launch.json"
        written = [str(one.write(tasks, tasks)) for one in (plan, goes_on, guarded)]
        launched = [str(folder), *written, str(again)]
        launch("tests.rl.launch.in_turn", launched, 2, folder / "log.txt", parallel="zero3")
        reports = [json.loads((broken / name / "report.json").read_text()) for name in ("launch", "again")]
        assert reports[0]["status"] == "rolled back"
        return unbroken, resumed, broken, SimpleNamespace(**reports[1])


def test_a_resumed_run_goes_on_as_an_unbroken_one(runs):
    unbroken, resumed = steps(runs[0]), steps(runs[1])
    assert [row["step"] for row in unbroken] == [1, 2, 3, 4]
    assert [row["step"] for row in resumed] == [3, 4]
    assert max(row["kl"] for row in unbroken) > 0.1, "it learns"
    for name in ("loss", "kl", "reward", "learning_rate"):
        assert [row[name] for row in resumed] == [row[name] for row in unbroken[2:]]


def test_it_rolls_back_to_its_start(runs):
    *_, broken, report = runs
    assert (report.status, report.rollbacks, len(report.pages)) == ("collapsed", 1, 2)
    first, again = steps(broken / "abandoned" / "1"), steps(broken)
    assert first[-1]["kl"] > 1e-4 > again[0]["kl"], "it went on with weights of before"
    assert {row["learning_rate"] for row in first} == {1e-2}
    assert {row["learning_rate"] for row in again} == {5e-3}
    assert again[-1]["kl"] > 1e-4, "it learns again"


def test_the_adapter_is_left_whole(runs):
    for folder in runs[:3]:
        last = newest_complete(folder / "checkpoints")
        left, saved = (load_file(one / "adapter_model.safetensors") for one in (folder / "adapter", last))
        assert left.keys() == saved.keys()
        assert all((left[name] == saved[name]).all() and left[name].numel() for name in left)


def test_recomputed_layers_are_released_one_by_one(runs):
    """TRL asks for reentrant checkpoints, under which DeepSpeed holds the whole model."""
    for folder in runs[:3]:
        arguments = newest_complete(folder / "checkpoints") / "training_args.bin"
        asked = torch.load(arguments, weights_only=False).gradient_checkpointing_kwargs
        assert asked == {"use_reentrant": False}
