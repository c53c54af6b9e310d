"""What arcnb's `generate` costs on top of plain `LLM.generate`: the same engine, prompts and sampling.

    python bench/generation.py                      # embedded model, 2 CPU cores: about 5 minutes
    python bench/generation.py --prompts 64 --n 8 --max-tokens 400 --prompt-tokens 3780 --model FOLDER --dummy

Both ways use one engine and take turns; a rest of the machine's load hits both alike. Every completion runs
to `max_tokens` (no stop at the end token), so that both generate the same number of tokens. Printed: tokens
a second of each turn, the CPU time of this process (the engine has its own), the medians, and
overhead = 1 - arcnb/plain.
"""

import argparse
import statistics
import time

from arcnb.models.generation import EngineOptions, Request, Sampling, open_backend


def plain(backend, requests: list[Request], sampling: Sampling, seeded: bool) -> float:
    """Tokens a second of `LLM.generate`, with its own fan-out of a prompt into n completions."""
    from vllm import SamplingParams

    params = [
        SamplingParams(
            n=request.n,
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            ignore_eos=True,
            seed=request.seed if seeded else None,
        )
        for request in requests
    ]
    prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
    start = time.perf_counter()
    outputs = backend._llm.generate(prompts, params, use_tqdm=False)
    n_tokens = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    return n_tokens / (time.perf_counter() - start)


def ours(backend, requests: list[Request], sampling: Sampling) -> float:
    """Tokens a second of arcnb's generate."""
    start = time.perf_counter()
    n_tokens = sum(len(completion.token_ids) for completion in backend.generate(iter(requests), sampling))
    return n_tokens / (time.perf_counter() - start)


def never_stop(backend) -> None:
    """Makes the backend's completions as long as allowed, as `plain` does."""
    original = backend._sampling_params

    def endless(sampling, seed):
        params = original(sampling, seed)
        params.ignore_eos = True
        return params

    backend._sampling_params = endless


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--dummy", action="store_true", help="random weights")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=400)
    parser.add_argument("--n", type=int, default=4, help="completions a prompt")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--unseeded-plain", action="store_true", help="plain vllm without seeds")
    arguments = parser.parse_args()
    context = arguments.prompt_tokens + arguments.max_tokens + 16
    options = EngineOptions(max_model_len=context, load_format="dummy" if arguments.dummy else "auto")
    sampling = Sampling(max_tokens=arguments.max_tokens)
    with open_backend("vllm", arguments.model, options=options) as backend:
        never_stop(backend)
        rates: dict[str, list[float]] = {"plain": [], "arcnb": []}
        for turn in range(arguments.turns + 1):  # the first turn warms up
            for name in ("plain", "arcnb") if turn % 2 else ("arcnb", "plain"):
                # Fresh prompts each time, or prefix caching would favor whoever comes second.
                stamp = 2 * turn + (name == "plain")
                requests = [
                    Request(
                        [10 + (7 * i + j * j + 31 * stamp) % 4000 for j in range(arguments.prompt_tokens)],
                        arguments.n,
                        seed=i,
                        key=i,
                    )
                    for i in range(arguments.prompts)
                ]
                cpu = time.process_time()
                if name == "plain":
                    rate = plain(backend, requests, sampling, not arguments.unseeded_plain)
                else:
                    rate = ours(backend, requests, sampling)
                if turn:
                    rates[name].append(rate)
                    cpu = time.process_time() - cpu
                    print(f"turn {turn} {name:5} {rate:9.1f} tokens/s, {cpu:.3f} CPU s here", flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"median plain {medians['plain']:.1f}, arcnb {medians['arcnb']:.1f} tokens/s,", end=" ")
    print(f"overhead {100 * (1 - medians['arcnb'] / medians['plain']):.1f}%")


if __name__ == "__main__":
    main()
