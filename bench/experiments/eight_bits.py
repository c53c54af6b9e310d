"""How far a sampler whose layers compute in eight bits is from the policy, without a GPU.

    python bench/experiments/eight_bits.py --tasks 12

The embedded model with its adapter samples by vLLM at temperature 1; transformers computes the
log-probabilities of what was sampled in float32, then with layers rounded to e4m3 as vLLM's
`fp8_per_tensor` has them: a scale for each matrix that vLLM has (query, key and value are one, gate and up
are one), one for the activations of each token. Also: a scale for each output channel; matrices alone.
Printed, a token: mean |difference| (what `sampling/logp_gap` is), KL of policy to sampler (nats), and the
share of tokens with a ratio of probabilities above 2. A quarter of an hour on two cores with other work.

    python bench/experiments/eight_bits.py --random 512 1024 2048

The same gap on random tokens, of models of 32 layers of these widths with random weights: a minute.
"""

import argparse
import math

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, LlamaConfig

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.arc.views import View
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer, resolve_adapter, resolve_model
from arcnb.models.sampling.backends import EngineOptions, Request, Sampling, open_backend

EIGHT_BITS = torch.float8_e4m3fn
LARGEST = torch.finfo(EIGHT_BITS).max
VOCABULARY = 32000
LONGEST_PROMPT, LONGEST_COMPLETION = 900, 256
ARMS = {"as vLLM": (False, True), "a scale a channel": (True, True), "matrices alone": (False, False)}


def samples(n_tasks: int, n_each: int) -> list[tuple[list[int], list[int]]]:
    """(ids of the prompt, of a completion) of that many tasks with short prompts."""
    model, form = resolve_model("default"), prompt_format()
    tokenizer, requests = load_tokenizer(model), []
    for task in load_tasks("arc-agi-1/training").sample(400, 0):
        if len(requests) == n_tasks:
            break
        view = View(Augmentation(), tuple(range(len(task.train))), 0)
        ids = form.prompt_ids(tokenizer, view.apply(task))
        if len(ids) <= LONGEST_PROMPT:
            requests.append(Request(ids, n_each, len(requests), len(requests)))
    context = EngineOptions(max_model_len=LONGEST_PROMPT + LONGEST_COMPLETION)
    with open_backend("vllm", model, "default", context) as backend:
        found = list(backend.generate(requests, Sampling(max_tokens=LONGEST_COMPLETION)))
    return [(list(requests[one.key].prompt_ids), list(one.token_ids)) for one in found]


def policy() -> torch.nn.Module:
    model = resolve_model("default")
    base = AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.float32)
    return PeftModel.from_pretrained(base, resolve_adapter("default", model)).merge_and_unload().eval()


def random_model(width: int) -> torch.nn.Module:
    """Of Llama-3.1-8B's depth and proportions, 4,096 wide, with a smaller vocabulary."""
    sizes = {"hidden_size": width, "intermediate_size": width * 7 // 2, "num_hidden_layers": 32}
    heads = {"num_attention_heads": width // 128, "num_key_value_heads": max(1, width // 512)}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=VOCABULARY, **sizes, **heads)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def random_gaps(width: int) -> tuple[float, float]:
    """Mean |difference| a token from float32, nats: in bfloat16 throughout, and with layers in eight bits."""
    ids = torch.randint(0, VOCABULARY, (256,), generator=torch.Generator().manual_seed(0)).tolist()
    sampled = [(ids[:8], ids[8:])]
    truth = log_probs(random_model(width), sampled)
    half = log_probs(random_model(width).to(torch.bfloat16), sampled)
    eight = log_probs(in_eight_bits(random_model(width), by_channel=False, activations=True), sampled)
    return (half - truth).abs().mean().item(), (eight - truth).abs().mean().item()


def rounded(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (values / scale).clamp(-LARGEST, LARGEST).to(EIGHT_BITS).to(values.dtype) * scale


@torch.no_grad()
def in_eight_bits(model: torch.nn.Module, by_channel: bool, activations: bool) -> torch.nn.Module:
    def narrow(layer, inputs):
        return (rounded(inputs[0], inputs[0].abs().amax(-1, keepdim=True).clamp_min(1e-12) / LARGEST),)

    for block in model.model.layers:
        own, mlp = block.self_attn, block.mlp
        together = ([own.q_proj, own.k_proj, own.v_proj], [own.o_proj], [mlp.gate_proj, mlp.up_proj])
        for layers in (*together, [mlp.down_proj]):
            largest = max(layer.weight.abs().max() for layer in layers)
            for layer in layers:
                of_rows = layer.weight.abs().amax(1, keepdim=True) if by_channel else largest
                layer.weight.copy_(rounded(layer.weight, of_rows / LARGEST))
                if activations:
                    layer.register_forward_pre_hook(narrow)
    return model


@torch.no_grad()
def log_probs(model: torch.nn.Module, sampled: list[tuple[list[int], list[int]]]) -> torch.Tensor:
    """Of every token of every completion, nats, (n,) float32."""
    found = []
    for prompt, completion in sampled:
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        found.append(logits.float().log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0])
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--completions", type=int, default=4, help="of each task")
    parser.add_argument("--random", type=int, nargs="+", metavar="WIDTH", help="random weights in its place")
    args = parser.parse_args()
    if args.random:
        for width in args.random:
            half, eight = random_gaps(width)
            print(f"width {width}: gap {half:.3f} in bfloat16, {eight:.3f} in eight bits", flush=True)
        return
    sampled = samples(args.tasks, args.completions)
    truth = log_probs(policy(), sampled)
    print(f"{len(sampled)} completions, {len(truth)} tokens, {-truth.mean():.3f} nats a token")
    for arm, (by_channel, activations) in ARMS.items():
        away = log_probs(in_eight_bits(policy(), by_channel, activations), sampled) - truth
        far = (away.abs() > math.log(2)).float().mean()
        print(
            f"{arm:18} gap {away.abs().mean():.4f}, KL {-away.mean():.4f}, ratio above 2: {far:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
