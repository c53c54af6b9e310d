"""Does vLLM beside the trainer fit into its share of the GPU?"""

import json
import re

import pytest

from arcnb.models.registry import ModelPath
from arcnb.rl.checks.machine import gpu_share_problem
from arcnb.rl.plan.grpo import GrpoPlan


@pytest.fixture
def model(tmp_path):
    """A model folder with 8 GiB of weights (of holes) and 128 KiB of cache a token."""
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.truncate(8 << 30)
    shape = {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"dtype": "bfloat16"}))
    return ModelPath("eight", tmp_path)


def said(model, **options) -> str | None:
    plan = {"use_vllm": True, "vllm_gpu_memory_utilization": 0.5, "max_length": 4096}
    return gpu_share_problem(GrpoPlan.of(plan | options), model)


def test_what_does_not_fit_is_said_with_the_parameters_of_the_run(model, gpus):
    gpus("0, GPU-1, 16384, 16384")
    whole = r"the weights need 8\.0 GiB of GPU 0, and vllm_gpu_memory_utilization 0\.5 gives 8\.0 GiB"
    assert re.match(whole, said(model))
    long = r"one sequence of max_length 65536 needs 8\.0 GiB .* lower max_length to \d+$"
    assert re.match(long, said(model, trainer="unsloth", load_in_4bit=True, max_length=65536))


def test_an_engine_has_four_bits_in_unsloth_and_a_whole_base_in_trl(model, gpus):
    gpus("0, GPU-1, 16384, 16384")
    assert said(model, trainer="unsloth", load_in_4bit=True) is None
    assert said(model, trainer="trl", load_in_4bit=True).startswith("the weights need 8.0 GiB")


def test_four_bits_are_advised_where_an_engine_has_them(model, gpus):
    gpus("0, GPU-1, 8192, 8192")
    assert said(model).endswith(" everything; use a larger vllm_tensor_parallel_size")
    advised = "; use load_in_4bit, or a larger vllm_tensor_parallel_size"
    assert said(model, trainer="unsloth").endswith(advised)


def test_an_engine_elsewhere_takes_no_share(model, gpus):
    gpus("0, GPU-1, 8192, 8192")
    assert said(model, vllm_mode="server") is None
    assert said(model, use_vllm=False) is None
