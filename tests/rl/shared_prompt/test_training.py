"""Whole GRPO runs of TRL's trainer and of the one that shares prompts, at equal seeds."""

import os
from contextlib import nullcontext

import pytest
import torch

from arcnb.models.registry import load_tokenizer
from arcnb.models.training.log import stop_printing
from arcnb.rl.shared_prompt.trainer import let_segments_grow, shared_prefix_trainer

PROMPTS = ["a b c d e f g h i j k l", "one two", "x y z x y z x y z x y z x y z", "nothing at all here"]
STEPS = 4
DEFAULTS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 8,
    "beta": 0.05,
    "bf16": False,
}
COMPARED = {"loss", "reward", "reward_std", "kl", "entropy", "grad_norm", "completions/mean_length"}


def share_of_letter_e(completions, **_):
    return [text.count("e") / 10 + len(text) / 100 for text in completions]


def with_old_log_probs(base: type) -> type:
    """The trainer with old log-probabilities at every generation, as TRL computes them for vLLM's samples."""

    class WithOld(base):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            ids, mask = (
                torch.cat([batch[f"prompt_{what}"], batch[f"completion_{what}"]], dim=1)
                for what in ("ids", "mask")
            )
            with torch.no_grad():
                batch["old_per_token_logps"], *_ = self._get_per_token_logps_and_entropies(
                    self.model, ids, mask, batch["completion_ids"].size(1)
                )
            assert not batch["old_per_token_logps"].requires_grad
            return batch

    return WithOld


def in_our_order(base: type) -> type:
    """The trainer that runs a prompt with every completion, on micro-batches that keep groups together."""

    class Ordinary(shared_prefix_trainer(base)):
        _get_per_token_logps_and_entropies = base._get_per_token_logps_and_entropies

    return Ordinary


def train(
    model,
    folder,
    share: bool,
    lora: bool = True,
    old: bool = False,
    half: bool = False,
    offload: bool = False,
    ordered: bool = False,
    **settings,
):
    """(logged steps, tokens that went through the model in training) of a run of 4 steps."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        num_generations=4,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        shuffle_dataset=False,
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
        **DEFAULTS | settings,
    )
    dtype = torch.bfloat16 if half else torch.float32
    policy = AutoModelForCausalLM.from_pretrained(model.path, dtype=dtype)
    base = in_our_order(GRPOTrainer) if ordered else GRPOTrainer
    base = shared_prefix_trainer(GRPOTrainer, offload=offload) if share else base
    trainer = (with_old_log_probs(base) if old else base)(
        model=policy,
        reward_funcs=share_of_letter_e,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS * 4]),
        processing_class=load_tokenizer(model),
        peft_config=LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]) if lora else None,
    )
    stop_printing(trainer)
    tokens = 0

    def count(module, args, output):
        nonlocal tokens
        if module.training:
            tokens += args[0].numel()

    policy.get_input_embeddings().register_forward_hook(count)
    trainer.train()
    return [row for row in trainer.state.log_history if "grad_norm" in row], tokens


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
    assert max(row["kl"] for row in ours) > 2e-5


@pytest.mark.parametrize("offload", [False, True])
def test_four_prompts_sampled_at_once_are_four_steps_of_one_prompt_each(small_model, tmp_path, offload):
    """The same as steps that run every prompt again, with old log-probabilities of a policy that moves on."""
    settings = {"steps_per_generation": 4}
    theirs, their_tokens = train(small_model, tmp_path, share=False, ordered=True, **settings)
    ours, our_tokens = train(small_model, tmp_path, share=True, offload=offload, **settings)
    for step, (found, expected) in enumerate(zip(ours, theirs, strict=True)):
        for name in found.keys() & COMPARED:
            assert found[name] == pytest.approx(expected[name], rel=2e-4, abs=2e-6), (step, name)
    assert our_tokens < 0.8 * their_tokens
    assert max(row["kl"] for row in ours) > 1e-4


@pytest.mark.parametrize("settings", [{"lora": False}, {"beta": 0.0}, {"gradient_checkpointing": False}])
def test_old_log_probabilities_and_the_loss_share_a_pass(small_model, tmp_path, settings):
    theirs, _ = train(small_model, tmp_path, share=False, old=True, **settings)
    ours, our_tokens = train(small_model, tmp_path, share=True, old=True, **settings)
    _, without_old = train(small_model, tmp_path, share=True, **settings)
    for found, expected in zip(ours, theirs, strict=True):
        for name in found.keys() & COMPARED:
            assert found[name] == pytest.approx(expected[name], rel=2e-4, abs=2e-6), name
    assert our_tokens == without_old


def test_what_waits_in_the_hosts_memory_changes_nothing(small_model, tmp_path, monkeypatch):
    plain, _ = train(small_model, tmp_path, share=True, old=True)
    waited, save_on_cpu = [], torch.autograd.graph.save_on_cpu

    class Counted(save_on_cpu):
        def __init__(self, **options):
            super().__init__(**options)
            leave = self.pack_hook
            self.pack_hook = lambda tensor: waited.append(tensor.shape) or leave(tensor)

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", Counted)
    ours, _ = train(small_model, tmp_path, share=True, old=True, offload=True)
    assert len(waited) >= 2 * STEPS  # a hidden state a layer and step
    for found, expected in zip(ours, plain, strict=True):
        assert all(found[name] == expected[name] for name in found.keys() & COMPARED)


def test_passes_are_not_shared_between_different_policies(small_model, tmp_path):
    settings = {"old": True, "num_iterations": 2}
    theirs, _ = train(small_model, tmp_path, share=False, **settings)
    ours, our_tokens = train(small_model, tmp_path, share=True, **settings)
    for found, expected in zip(ours, theirs, strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=2e-4, abs=2e-6)
    _, without_old = train(small_model, tmp_path, share=True, num_iterations=2)
    assert our_tokens > without_old


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
