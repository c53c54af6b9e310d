"""What synchronising does to a half-precision base: TRL's way, which merges the adapter in and out, and ours.

    python bench/merge_drift.py        # CPU, two threads, about two minutes

The embedded model in bfloat16 with the shipped adapter, whose weights move at random by 4e-5 a step. Printed
of each way: relative change of the base's weights, and KL (nats a token, on random ids) of the policy with
its first adapter put back.
"""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
from trl.generation.vllm_generation import VLLMGeneration

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from arcnb.models.lora.options import Lora
from arcnb.models.registry import resolve_adapter, resolve_model
from arcnb.rl.engine.weight_sync import merged_weights
from arcnb.rl.trainer.policies import load_policy

STEPS = (1, 10, 30, 100)


def main() -> None:
    torch.set_num_threads(2)
    for way in (trls, ours):
        print(f"{way.__name__}:")
        drift_of(way)


def trls(policy) -> None:
    policy.merge_adapter()
    policy.unmerge_adapter()


def ours(policy) -> None:
    gathered = SimpleNamespace(gather_params=lambda parameters: nullcontext())
    generation = object.__new__(VLLMGeneration)  # its walk alone: no engine is opened
    generation.model, generation._dist = policy, gathered
    for _ in merged_weights(generation):
        pass


def drift_of(synchronise) -> None:
    torch.manual_seed(0)
    model = resolve_model("default")
    adapter = resolve_adapter("default", model)
    policy, _ = load_policy(model, adapter, Lora().config, load_in_4bit=False, on_gpu=False)
    policy = policy.to(torch.bfloat16)
    for name, weight in policy.named_parameters():
        if "lora_" in name:
            weight.data = weight.data.float()
    base = {name: w.detach().clone() for name, w in policy.named_parameters() if "base_layer" in name}
    lora = [weight for name, weight in policy.named_parameters() if "lora_" in name]
    start = [weight.detach().clone() for weight in lora]
    ids = torch.randint(5, 40_000, (2, 64))
    with torch.no_grad():
        before = torch.log_softmax(policy(ids).logits.float(), -1)
    for step in range(1, STEPS[-1] + 1):
        for weight in lora:
            weight.data += 4e-5 * torch.sign(torch.randn_like(weight))
        synchronise(policy)
        if step not in STEPS:
            continue
        named = dict(policy.named_parameters())
        drift = [(named[name] - w).float().norm() / w.float().norm() for name, w in base.items()]
        now = [weight.detach().clone() for weight in lora]
        for weight, first in zip(lora, start, strict=True):
            weight.data.copy_(first)
        with torch.no_grad():
            after = torch.log_softmax(policy(ids).logits.float(), -1)
        for weight, moved in zip(lora, now, strict=True):
            weight.data.copy_(moved)
        kl = (before.exp() * (before - after)).sum(-1).mean()
        print(f"{step} steps: drift {torch.stack(drift).mean():.5f}, KL {kl:.5f}", flush=True)


if __name__ == "__main__":
    main()
