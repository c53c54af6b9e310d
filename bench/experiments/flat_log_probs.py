"""What an object for each token's log-probability costs a round of samples, and what lists of numbers do.

    python bench/experiments/flat_log_probs.py                          # on a CPU, a tiny model: 2 minutes
    python bench/experiments/flat_log_probs.py --model FOLDER --prompt-tokens 3800    # on a GPU

One engine in this process, as TRL opens it. Rounds take turns: TRL's way (a dictionary and an object a
token, read by TRL), and flat (vLLM's lists, read by arcnb.rl.engine.options). Printed, of each round:
seconds until vLLM is done, seconds until TRL has its lists, and how many of both were garbage collection.
"""

import argparse
import gc
import os
import tempfile
import time
from types import SimpleNamespace

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

from arcnb.rl.engine.options import sample_numbers_alone, vllm_environment


class Collections:
    """Seconds of garbage collection until now."""

    seconds = 0.0

    def __init__(self) -> None:
        gc.callbacks.append(self._tell)

    def _tell(self, phase: str, info: dict) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._began = now
        else:
            self.seconds += now - self._began


def tiny_model(folder: str) -> str:
    """One layer and 1,024 tokens of vocabulary: a pass of it is little beside vLLM's own work."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16384,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="a folder; without it a tiny model is made")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--completions", type=int, default=32, help="of each prompt")
    parser.add_argument("--prompt-tokens", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=1024, help="of each completion")
    parser.add_argument(
        "--turns", type=int, default=3, help="rounds of each way that are timed; one more is not"
    )
    parser.add_argument("--share", type=float, default=0.35, help="of the GPU's memory")
    args = parser.parse_args()
    os.environ |= vllm_environment()
    from trl.generation import vllm_generation
    from vllm import LLM, SamplingParams

    plain = vllm_generation.extract_logprobs
    engine = SimpleNamespace(mode="colocate", generation_kwargs={})
    sample_numbers_alone(SimpleNamespace(vllm_generation=engine))
    ways = {
        "TRL": ({"detokenize": False}, plain),
        "flat": (engine.generation_kwargs, vllm_generation.extract_logprobs),
    }
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(
            model=args.model or tiny_model(folder),
            skip_tokenizer_init=True,
            max_model_len=args.prompt_tokens + args.tokens,
            max_num_seqs=args.prompts * args.completions,
            max_num_batched_tokens=4096,
            gpu_memory_utilization=args.share,
            logprobs_mode="processed_logprobs",
        )
    common = {"max_tokens": args.tokens, "min_tokens": args.tokens, "ignore_eos": True, "logprobs": 0}
    collected = Collections()
    print(
        "| round | way | sampling, s | reading, s | of both collecting, s |\n|---|---|---|---|---|",
        flush=True,
    )
    for turn in range(args.turns + 1):
        for way, (options, read) in ways.items():
            shift = 11 * turn + len(way)  # no prompt is in the cache
            prompts = [
                {"prompt_token_ids": [1 + (i * 7 + number + shift) % 1000 for i in range(args.prompt_tokens)]}
                for number in range(args.prompts)
                for _ in range(args.completions)
            ]
            before, began = collected.seconds, time.perf_counter()
            outputs = llm.generate(prompts, SamplingParams(**common | options), use_tqdm=False)
            sampled = time.perf_counter()
            values, _ = read(outputs)
            values = [[of_token[0] for of_token in sample] for sample in values]  # as TRL does
            done = time.perf_counter()
            assert sum(map(len, values)) == len(prompts) * args.tokens
            times = (sampled - began, done - sampled, collected.seconds - before)
            if turn:
                print(
                    f"| {turn} | {way} | " + " | ".join(f"{value:.2f}" for value in times) + " |", flush=True
                )


if __name__ == "__main__":
    main()
