"""A fresh LoRA on a model with an adapter folded in."""

import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from arcnb.errors import ArcnbError
from arcnb.models.lora.compatibility import adapter_rank
from arcnb.models.registry import resolve_adapter
from arcnb.rl.launch import run_grpo
from arcnb.rl.plan.grpo import GrpoPlan
from tests.rl.conftest import QUICK

SIZES = {"num_generations": 8, "max_completion_length": 24, "max_grad_norm": 0.1, "rewards.terms": {}}
# Lengths differ, so that there is something to learn.
SPREAD = {"overlong_weight": 1.0, "overlong_buffer": 24}


@pytest.fixture
def plan(letter_model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(letter_model.path)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(base, config).save_pretrained(tmp_path / "start")
    start = {"model": str(letter_model.folder), "adapter": str(tmp_path / "start"), "fold_adapter": True}
    steps = {"max_steps": 2, "save_steps": 2, "eval_steps": 2, "num_generations_eval": 1}
    asked = QUICK | SIZES | SPREAD | start | steps | {"lora.alpha": 8, "workers": 2}
    return GrpoPlan.of(asked, output=tmp_path / "run")


def distance(letter_model, one, other) -> float:
    """Between the outputs of the model with either adapter."""
    outputs = []
    for adapter in (one, other):
        model = AutoModelForCausalLM.from_pretrained(letter_model.path)
        with torch.no_grad():
            outputs.append(
                PeftModel.from_pretrained(model, str(adapter)).eval()(torch.arange(4, 40)[None]).logits
            )
    return float((outputs[0] - outputs[1]).abs().max())


def test_what_it_leaves_is_an_adapter_of_the_model_itself(plan, tasks, letter_model):
    report = run_grpo(plan, tasks, tasks)
    assert adapter_rank(resolve_adapter(report.adapter, letter_model)) == 4 + 2
    assert distance(letter_model, report.adapter, plan.adapter) > 1e-3, "it has learnt"
    best = resolve_adapter(plan.output / "best" / "adapter", letter_model)
    assert (plan.output / "best" / "checkpoint-0").is_dir()
    assert distance(letter_model, best, plan.adapter) < 1e-4, "step 0 is the start"

    checkpoint = plan.output / "checkpoints" / "checkpoint-2"
    with pytest.raises(ArcnbError, match=r"was trained on .*merged"):
        resolve_adapter(checkpoint, letter_model)


def test_it_goes_on_and_stays_one_sum(plan, tasks):
    first = run_grpo(plan, tasks, tasks)
    whole = {path.name: path.read_bytes() for path in first.adapter.glob("*.safetensors")}
    again = run_grpo(plan, tasks, tasks)
    assert again.steps == 2
    assert {path.name: path.read_bytes() for path in again.adapter.glob("*.safetensors")} == whole


def test_there_has_to_be_an_adapter(plan, tasks):
    with pytest.raises(ArcnbError, match="fold_adapter=True needs an adapter"):
        run_grpo(plan.changed({"adapter": ""}), tasks, tasks)


def test_an_adapter_that_could_not_be_added_to_is_refused_before_training(
    plan, tasks, letter_model, tmp_path
):
    base = AutoModelForCausalLM.from_pretrained(letter_model.path)
    config = LoraConfig(r=4, target_modules=["q_proj"], use_dora=True)
    get_peft_model(base, config).save_pretrained(tmp_path / "dora")
    with pytest.raises(ArcnbError, match="dora cannot be added to a second adapter: it has use_dora"):
        run_grpo(plan.changed({"adapter": str(tmp_path / "dora")}), tasks, tasks)
    assert not (plan.output / "metrics.jsonl").exists()


def test_a_checkpoint_is_refused_where_the_folded_model_is_not(plan, tasks, letter_model, tmp_path):
    """On another machine, say."""
    run_grpo(plan, tasks, tasks)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(ArcnbError, match=r"was trained on .*merged"):
        resolve_adapter(plan.output / "checkpoints" / "checkpoint-2", letter_model)
