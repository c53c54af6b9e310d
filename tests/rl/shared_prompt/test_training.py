"""Whole GRPO runs of TRL's trainer and of the one that shares prompts, at equal seeds."""

import os
from contextlib import nullcontext

import pytest
import torch

from arcnb.rl.shared_prompt.trainer import let_segments_grow
from tests.rl.whole_runs import COMPARED, STEPS, train


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lora": False},
        # half a group a micro-batch, old log-probabilities of a policy that moves on
        {"per_device_train_batch_size": 2, "steps_per_generation": 2, "num_iterations": 2},
        # two groups a generation, one a micro-batch
        {"gradient_accumulation_steps": 2, "steps_per_generation": 2},
        # two groups, left-padded, in one micro-batch
        {"per_device_train_batch_size": 8, "loss_type": "dr_grpo"},
        # ratios of sequences, probabilities at a temperature
        {
            "per_device_train_batch_size": 2,
            "steps_per_generation": 2,
            "importance_sampling_level": "sequence",
            "loss_type": "grpo",
            "temperature": 0.7,
        },
        # entropies choose the tokens, and are rewarded
        {"top_entropy_quantile": 0.5, "entropy_coef": 0.01, "loss_type": "bnpo"},
    ],
    ids=[
        "one group",
        "whole model and reference",
        "off policy",
        "accumulation",
        "two groups",
        "sequence ratios",
        "entropy",
    ],
)
def test_the_learning_curve_is_trls(small_model, tmp_path, settings):
    theirs, their_tokens = train(small_model, tmp_path, share=False, **settings)
    ours, our_tokens = train(small_model, tmp_path, share=True, **settings)
    assert len(ours) == len(theirs) == STEPS
    for step, (found, expected) in enumerate(zip(ours, theirs, strict=True)):
        assert found.keys() == expected.keys()
        for name in found.keys() & COMPARED:
            assert found[name] == pytest.approx(expected[name], rel=2e-4, abs=2e-6), (step, name)
    assert our_tokens < 0.8 * their_tokens
    # the policy has moved: equality is not that of standing still
    assert max(row["kl"] for row in ours) > 1e-5


def test_four_prompts_sampled_at_once_are_four_steps_of_one_prompt_each(small_model, tmp_path):
    """The same as steps that run every prompt again, with old log-probabilities of a policy that moves on."""
    settings = {"steps_per_generation": 4}
    theirs, their_tokens = train(small_model, tmp_path, share=False, ordered=True, **settings)
    for offload in (False, True):
        ours, our_tokens = train(small_model, tmp_path, share=True, offload=offload, **settings)
        for step, (found, expected) in enumerate(zip(ours, theirs, strict=True)):
            for name in found.keys() & COMPARED:
                assert found[name] == pytest.approx(expected[name], rel=2e-4, abs=2e-6), (step, name)
        assert our_tokens < 0.8 * their_tokens
        assert max(row["kl"] for row in ours) > 1e-4


def test_what_waits_in_the_hosts_memory_changes_nothing(small_model, tmp_path, monkeypatch):
    plain, _ = train(small_model, tmp_path, share=True)
    waited, save_on_cpu = [], torch.autograd.graph.save_on_cpu

    class Counted(save_on_cpu):
        def __init__(self, **options):
            super().__init__(**options)
            leave = self.pack_hook
            self.pack_hook = lambda tensor: waited.append(tensor.shape) or leave(tensor)

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", Counted)
    ours, _ = train(small_model, tmp_path, share=True, offload=True)
    assert len(waited) >= 2 * STEPS  # a hidden state a layer and step
    for found, expected in zip(ours, plain, strict=True):
        assert all(found[name] == expected[name] for name in found.keys() & COMPARED)


def test_what_training_left_in_the_gpus_cache_is_given_back_before_each_generation(
    small_model, tmp_path, monkeypatch
):
    from trl import GRPOTrainer

    said = []
    generate = GRPOTrainer._generate
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: said.append("empty"))
    monkeypatch.setattr(GRPOTrainer, "_generate", lambda *a: said.append("generate") or generate(*a))
    train(small_model, tmp_path, share=True, steps_per_generation=2)
    assert said == ["empty", "generate"] * (STEPS // 2)


@pytest.mark.parametrize("given", [{}, {"PYTORCH_CUDA_ALLOC_CONF": "x"}, {"PYTORCH_ALLOC_CONF": "x"}])
def test_segments_grow_unless_the_environment_has_settings(monkeypatch, given):
    told = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", told.append)
    monkeypatch.setattr(os, "environ", dict(given))
    let_segments_grow()
    grown = "expandable_segments:True"
    assert os.environ == (given or {"PYTORCH_CUDA_ALLOC_CONF": grown})
    assert told == ([] if given else [grown])


def test_adapters_see_half_precision_under_autocast_and_learn_the_same(small_model, tmp_path, monkeypatch):
    import peft.tuners.lora.layer as lora

    seen = []
    forward = lora.Linear.forward

    def watched(self, x, *args, **kwargs):
        handle = self.lora_A["default"].register_forward_pre_hook(
            lambda _, inputs: seen.append(inputs[0].dtype)
        )
        try:
            return forward(self, x, *args, **kwargs)
        finally:
            handle.remove()

    monkeypatch.setattr(lora.Linear, "forward", watched)
    half = {"bf16": True, "half": True, "max_completion_length": 4}
    ours, _ = train(small_model, tmp_path, share=True, **half)
    with_ours, seen = set(seen), []
    monkeypatch.setattr("arcnb.rl.shared_prompt.trainer.input_casting", lambda model, enabled: nullcontext())
    plain, _ = train(small_model, tmp_path, share=True, **half)
    for found, expected in zip(ours, plain, strict=True):
        assert {name: found[name] for name in found.keys() & COMPARED} == {
            name: expected[name] for name in expected.keys() & COMPARED
        }
    assert torch.bfloat16 in with_ours
    assert torch.bfloat16 not in set(seen)
