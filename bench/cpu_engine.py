"""Ways to sample on a CPU side by side: vLLM as it comes, with one setting changed, as here; transformers.

    python bench/cpu_engine.py                      # all ways on this machine's cores, about 4 minutes on two
    python bench/cpu_engine.py --cores 2 4 8        # each number of cores that the machine has
    python bench/cpu_engine.py --ways arcnb own --turns 2 --prompts 8 --n 8

Every way draws the same number of completions of the same prompts (ARC-AGI-1 training tasks with the
smallest inputs, shipped adapter, a seed for every completion) in a process of its own, bound to the cores;
the ways take turns, and each says on stderr what it took. Printed: seconds until the engine is ready, seconds
of sampling, tokens a second, and the resident memory of all processes together.

own: vLLM's executor, which leaves one core to a scheduler that waits without a pause. reserved: the same with
VLLM_CPU_NUM_OF_RESERVED_CPU=0. arcnb: scheduler and model in one process, by
arcnb.models.sampling.cpu_executor. transformers: the backend of that name.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

WAYS = ("own", "reserved", "arcnb", "transformers")
FIGURES = ("start_seconds", "seconds", "tokens_a_second", "memory_mb")


def one(way: str, options: argparse.Namespace) -> dict:
    """The figures of one way, in this process."""
    from unittest import mock

    import psutil

    from arcnb.arc.tasks.task_set import load_tasks
    from arcnb.models.prompts.chat import prompt_ids
    from arcnb.models.prompts.format import prompt_format
    from arcnb.models.sampling import vllm_engine
    from arcnb.models.sampling.backends import EngineOptions, Request, Sampling, open_backend

    tasks = sorted(load_tasks("arc-agi-1/training"), key=lambda t: sum(p.input.size for p in t.train))
    if way == "reserved":
        os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    executor = vllm_engine._CPU_EXECUTOR if way == "arcnb" else "mp"
    backend = "transformers" if way == "transformers" else "vllm"
    began = time.perf_counter()
    with mock.patch.object(vllm_engine, "_CPU_EXECUTOR", executor):
        engine = open_backend(backend, "default", "default", EngineOptions(max_model_len=1024))
    with engine:
        ready = time.perf_counter()
        prompts = [
            prompt_ids(engine.tokenizer, prompt_format().prompt(task)) for task in tasks[: options.prompts]
        ]
        requests = [Request(ids, options.n, seed, seed) for seed, ids in enumerate(prompts)]
        sampling = Sampling(max_tokens=options.max_tokens, ignore_eos=True)
        tokens = sum(len(made.token_ids) for made in engine.generate(requests, sampling))
        ended = time.perf_counter()
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        memory = sum(process.memory_info().rss for process in processes) / 2**20
    seconds = ended - ready
    values = (round(ready - began, 1), round(seconds, 1), round(tokens / seconds), round(memory))
    return dict(zip(FIGURES, values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--cores", nargs="+", type=int, default=[len(os.sched_getaffinity(0))])
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--n", type=int, default=4, help="completions of a prompt")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options)))
        return
    available = sorted(os.sched_getaffinity(0))
    for cores in options.cores:
        if cores > len(available):
            print(f"{cores} cores: this machine has {len(available)}")
            continue
        figures: dict[str, list[dict]] = {way: [] for way in options.ways}
        for turn in range(options.turns):
            for way in options.ways[:: -1 if turn % 2 else 1]:
                figures[way].append(_apart(way, available[:cores]))
                print(f"{cores} cores, turn {turn}, {way}: {figures[way][-1]}", file=sys.stderr, flush=True)
        print(f"{cores} cores   " + "".join(f"{name:>17}" for name in FIGURES))
        for way, turns in figures.items():
            medians = [statistics.median(values[name] for values in turns) for name in FIGURES]
            print(f"{way:<13}" + "".join(f"{value:>17g}" for value in medians), flush=True)


def _apart(way: str, cores: list[int]) -> dict:
    """The figures of one way, from a process that has these cores."""
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--one", way],
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{way}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
