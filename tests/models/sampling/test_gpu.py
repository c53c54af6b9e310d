"""Engines as only GPUs have them: a quantised base, a model spread over two GPUs.

Run on a node with GPUs: python -m tests.on_gpus
"""

import pytest
import torch

from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.models.sampling.backends import EngineOptions, Request, Sampling, open_backend
from tests.random_llama import random_llama

pytestmark = pytest.mark.long("engines that are compiled for the first time")
N_GPUS = torch.cuda.device_count()
SHORT = Sampling(max_tokens=24, temperature=0.0)


def written(model: str, **options) -> list[list[int]]:
    """Token ids of greedy completions of two prompts."""
    tokenizer = load_tokenizer(resolve_model(model))
    prompts = ["def add(a, b):\n    return", "The capital of France is the city of"]
    requests = [Request(tokenizer(text)["input_ids"], 1, 0, number) for number, text in enumerate(prompts)]
    engine = EngineOptions(max_model_len=512, gpu_memory_utilization=0.15, **options)
    with open_backend("vllm", model, options=engine) as backend:
        found = {made.key: list(made.token_ids) for made in backend.generate(iter(requests), SHORT)}
    return [found[number] for number in range(len(prompts))]


@pytest.mark.skipif(not N_GPUS, reason="needs a GPU")
def test_a_base_in_four_bits_writes_nearly_the_same():
    whole, quantised = written("default"), written("default", load_in_4bit=True)
    # " a" and " Paris"; with a model this small the texts part soon after.
    assert [ids[0] for ids in quantised] == [ids[0] for ids in whole]
    assert quantised != whole


@pytest.mark.skipif(N_GPUS < 2, reason="needs two GPUs")
def test_a_model_spread_over_two_gpus_writes_the_same(tmp_path):
    wide = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    random_llama(tmp_path, load_tokenizer(resolve_model("default")), intermediate_size=512, **wide)
    one, spread = written(str(tmp_path)), written(str(tmp_path), tensor_parallel_size=2)
    # Sums in half precision have another order on two GPUs: later tokens may part, the first of 49,152 not.
    assert [ids[0] for ids in spread] == [ids[0] for ids in one]
