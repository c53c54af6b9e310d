"""How far a base in four bits with its adapter merged in is from the policy: python bench/four_bit_merge.py

The embedded model with the shipped adapter on a CPU, two short programs: distance of the next token's
distribution from the policy's (total variation; KL in nats; means over tokens), of the base alone, of what
engines are sent (`arcnb.rl.engine.weight_sync`), and of a merge that peft quantizes again, as TRL would have
it.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM

from arcnb.models.registry import load_tokenizer, resolve_adapter, resolve_model
from arcnb.rl.engine.weight_sync import merged_weights
from arcnb.rl.trainer.policies import load_policy

PROGRAMS = (
    "def transform(grid):\n    grid = np.array(grid)\n    return np.flipud(grid).tolist()\n",
    "def transform(grid):\n    h, w = len(grid), len(grid[0])\n"
    "    return [[grid[j][i] for j in range(h)] for i in range(w)]\n",
)


@torch.no_grad()
def log_probabilities(model, tokenizer) -> torch.Tensor:
    """(tokens, vocabulary)"""
    ids = [tokenizer(text, return_tensors="pt")["input_ids"] for text in PROGRAMS]
    return torch.cat([model(one).logits.float().log_softmax(-1)[0, :-1] for one in ids])


def main() -> None:
    model = resolve_model("default")
    tokenizer = load_tokenizer(model)
    adapter = resolve_adapter("default", model)
    policy, _ = load_policy(model, adapter, {}, load_in_4bit=True, on_gpu=False)
    policy.eval()
    learner = log_probabilities(policy, tokenizer)

    def tell(what: str, other: torch.Tensor) -> None:
        variation = 0.5 * (learner.exp() - other.exp()).abs().sum(-1).mean()
        divergence = (learner.exp() * (learner - other)).sum(-1).mean()
        print(f"{what:28} {variation:.6f} {divergence:.6f}")

    with policy.disable_adapter():
        tell("without the adapter", log_probabilities(policy, tokenizer))
    plain = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32).eval()
    generation = SimpleNamespace(
        model=policy,
        _dist=SimpleNamespace(gather_params=lambda parameters: nullcontext()),
        _fix_param_name_to_vllm=lambda name, extra_prefixes: name.replace("modules_to_save.default.", ""),
    )
    plain.load_state_dict(dict(merged_weights(generation)), strict=False)
    tell("merged, unpacked", log_probabilities(plain, tokenizer))
    policy.merge_adapter()
    tell("merged and quantized again", log_probabilities(policy, tokenizer))


if __name__ == "__main__":
    main()
