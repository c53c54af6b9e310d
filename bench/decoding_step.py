"""Milliseconds a token of vLLM's decoding, by running sequences, and the kernels of which a step is made.

    python bench/decoding_step.py --shape 8b --prompt-tokens 3700 --group-attention
    python bench/decoding_step.py --shape embedded --share 0.3 --prompt-tokens 64 --tokens 32 8 \\
        --batches 1x1 1x4  # a look on a CPU

Random weights and random prompts. A batch KxN is K prompts with N sequences each. What a token costs is the
difference of two calls of `LLM.generate` that differ in the number of tokens alone (--tokens), so that
reading the prompt and starting cancel; each batch is run once before it is timed. On a GPU, torch's profiler
then says where the time of 100 tokens goes, for the first and the last batch. One JSON line each. GRPO's
engine of such a shape is opened the same way (in the training process, with log-probabilities of the
sampled tokens).
"""

import argparse
import json
import os
import tempfile
import time
from contextlib import nullcontext

PROFILED_TOKENS = 100
N_KERNELS = 20
BATCHES = [(1, 1), (1, 8), (1, 32), (2, 32), (4, 32)]


def open_engine(shape: str, context: int, sequences: int, share: float, grouped: bool):
    """vLLM in this process with random weights of that shape, and no tokenizer."""
    from shared_prefix_floor import model_config
    from vllm import LLM

    from arcnb.rl.engine.options import group_attention

    options = {"gpu_memory_utilization": share} if share else {}
    if grouped:
        options["attention_backend"] = "FLASH_ATTN"
    with tempfile.TemporaryDirectory() as folder, group_attention() if grouped else nullcontext():
        config = model_config(shape)
        config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(folder)
        return LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=context,
            max_num_seqs=sequences,
            max_num_batched_tokens=max(context, 4096),
            logprobs_mode="processed_logprobs",
            seed=0,
            **options,
        )


class Decoding:
    """Calls of an engine on random prompts of the same length."""

    def __init__(self, engine, n_prompts: int, prompt_tokens: int):
        import torch

        self.engine, random = engine, torch.Generator().manual_seed(0)
        size = (n_prompts, prompt_tokens)
        self.prompts = [
            {"prompt_token_ids": ids} for ids in torch.randint(100, 30000, size, generator=random).tolist()
        ]

    def seconds(self, n_prompts: int, n: int, tokens: int) -> float:
        from vllm import SamplingParams

        params = SamplingParams(
            n=n, max_tokens=tokens, ignore_eos=True, temperature=1.0, logprobs=0, detokenize=False
        )
        began = time.perf_counter()
        outputs = self.engine.generate(self.prompts[:n_prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - began
        assert all(len(one.token_ids) == tokens for output in outputs for one in output.outputs)
        return seconds

    def milliseconds_a_token(self, n_prompts: int, n: int, most: int, least: int) -> float:
        shorter = self.seconds(n_prompts, n, least)
        return (self.seconds(n_prompts, n, most) - shorter) / (most - least) * 1000

    def kernels(self, n_prompts: int, n: int) -> dict:
        """Milliseconds a token by kernel, the longest first, and of all together."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            self.seconds(n_prompts, n, PROFILED_TOKENS)
        rows = [row for row in profiled.key_averages() if row.device_type.name == "CUDA"]
        rows.sort(key=lambda row: -row.self_device_time_total)
        times = {row.key[:100]: row.self_device_time_total / 1000 / PROFILED_TOKENS for row in rows}
        longest = dict(list(times.items())[:N_KERNELS])
        return {
            "kernels": round(sum(times.values()), 3),
            **{key: round(value, 3) for key, value in longest.items()},
        }


def batch(text: str) -> tuple[int, int]:
    n_prompts, n = map(int, text.split("x"))
    return n_prompts, n


def say(one: tuple[int, int], found: dict) -> None:
    print(json.dumps({"batch": "x".join(map(str, one)), **found}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=["embedded", "8b"], default="8b")
    parser.add_argument("--prompt-tokens", type=int, default=3700)
    parser.add_argument("--batches", type=batch, nargs="+", default=BATCHES)
    parser.add_argument("--tokens", type=int, nargs=2, default=[576, 64], metavar=("MOST", "LEAST"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--group-attention", action="store_true", help="a prompt is read once a step")
    parser.add_argument("--share", type=float, default=0.0, help="of the GPU's memory; 0: vLLM's own")
    args = parser.parse_args()
    if args.tokens[0] <= args.tokens[1]:
        parser.error("--tokens: the first number must be above the second")
    from arcnb.rl.engine.options import vllm_environment

    os.environ |= vllm_environment()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the profiler sees this process alone
    import torch

    sequences = max(n_prompts * n for n_prompts, n in args.batches)
    context = args.prompt_tokens + max(*args.tokens, PROFILED_TOKENS)
    engine = open_engine(args.shape, context, sequences, args.share, args.group_attention)
    decoding = Decoding(engine, max(n_prompts for n_prompts, _ in args.batches), args.prompt_tokens)
    for one in args.batches:
        decoding.seconds(*one, args.tokens[0])  # also reads the prompts, which the cache then keeps
        times = sorted(decoding.milliseconds_a_token(*one, *args.tokens) for _ in range(args.repeats))
        say(one, {"ms_a_token": [round(value, 3) for value in times]})
    if torch.cuda.is_available():
        for one in dict.fromkeys((args.batches[0], args.batches[-1])):
            say(one, decoding.kernels(*one))


if __name__ == "__main__":
    main()
    os._exit(0)  # an engine in this process may take its time to end
