"""vLLM on a CPU by its type of numbers: python bench/cpu_dtype.py bfloat16; python bench/cpu_dtype.py float32

The embedded model, prompts of 700 tokens; seconds for reading four of them, for 4 x 64 tokens of one, and
of four.
"""

import sys
import time

from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.models.sampling.backends import EngineOptions, Request, Sampling, open_backend

if __name__ == "__main__":
    model = resolve_model("default")
    ids = load_tokenizer(model)("def transform(grid):\n    return [[0, 1, 2]]\n" * 90)["input_ids"][:700]
    with open_backend("vllm", model, options=EngineOptions(max_model_len=1024, dtype=sys.argv[1])) as backend:
        backend.engines.admit(wait=True)
        for n_prompts, n, tokens in ((4, 1, 1), (1, 4, 64), (4, 4, 64)):
            began = time.perf_counter()
            requests = iter([Request(ids[i:], n, i, i) for i in range(n_prompts)])
            made = sum(len(one.token_ids) for one in backend.generate(requests, Sampling(max_tokens=tokens)))
            print(f"{n_prompts} x {n}: {made} tokens in {time.perf_counter() - began:.1f} s", flush=True)
