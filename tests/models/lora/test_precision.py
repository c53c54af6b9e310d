"""Adapters that leave their inputs as they are under autocast."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from arcnb.models.lora.precision import input_casting


@pytest.fixture
def model(small_model):
    base = AutoModelForCausalLM.from_pretrained(small_model.path, dtype=torch.bfloat16)
    torch.manual_seed(0)
    lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    return get_peft_model(base, lora)


def gradients(model, enabled: bool):
    """(loss, gradients of the adapters, dtypes that the adapters' first layers were given)"""
    model.zero_grad()
    seen = set()
    layers = [module for name, module in model.named_modules() if name.endswith("lora_A.default")]
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.add(given[0].dtype)) for layer in layers]
    ids = torch.arange(48).reshape(2, 24)
    with input_casting(model, enabled), torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
    for hook in hooks:
        hook.remove()
    return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}, seen


def test_the_loss_and_the_adapters_gradients_are_the_same_without_the_round_trip(model):
    loss, expected, with_it = gradients(model, True)
    found_loss, found, without = gradients(model, False)
    assert (with_it, without) == ({torch.float32}, {torch.bfloat16})
    assert found_loss == loss
    assert len(found) == 8
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, expected[name])


def test_the_switch_is_put_back(model):
    layer = next(m for m in model.modules() if hasattr(m, "cast_input_dtype_enabled"))
    within = []

    def fail():
        with input_casting(model, False):
            within.append(layer.cast_input_dtype_enabled)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError):
        fail()
    assert within == [False]
    assert layer.cast_input_dtype_enabled
