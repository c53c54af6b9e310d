"""Does vLLM beside the trainer fit into its share of the GPU? Run: pytest tests/rl/test_rl_gpu_share.py"""

import json

import pytest

from arcnb.rl.options import GrpoOptions
from arcnb.rl.settings import DEFAULTS, SettingsError, check_gpu_share

SETTINGS = DEFAULTS | {"use_vllm": True, "vllm_gpu_memory_utilization": 0.5}


@pytest.fixture
def model(tmp_path):
    """A model folder with 8 GiB of weights (of holes) and 128 KiB of cache a token."""
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.truncate(8 << 30)
    shape = {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return tmp_path


TRL, UNSLOTH = (GrpoOptions(trainer=trainer, load_in_4bit=True) for trainer in ("trl", "unsloth"))


def test_what_does_not_fit_is_said_with_the_parameters_of_the_run(model, gpus):
    gpus("0, GPU-1, 16384, 16384")
    whole = r"^the weights need 8\.0 GiB of GPU 0, and vllm_gpu_memory_utilization 0\.5 gives 8\.0 GiB"
    with pytest.raises(SettingsError, match=whole):
        check_gpu_share(SETTINGS, model, 4096, GrpoOptions())
    long = r"one sequence of max_sequence_length 65536 needs 8\.0 GiB .* lower max_sequence_length to \d+$"
    with pytest.raises(SettingsError, match=long):
        check_gpu_share(SETTINGS, model, 65536, UNSLOTH)


def test_an_engine_has_four_bits_in_unsloth_and_a_whole_base_in_trl(model, gpus):
    gpus("0, GPU-1, 16384, 16384")
    check_gpu_share(SETTINGS, model, 4096, UNSLOTH)
    with pytest.raises(SettingsError, match=r"the weights need 8\.0 GiB"):
        check_gpu_share(SETTINGS, model, 4096, TRL)


def test_four_bits_are_advised_where_an_engine_has_them(model, gpus):
    gpus("0, GPU-1, 8192, 8192")
    with pytest.raises(SettingsError, match=r"everything; use a larger vllm_tensor_parallel_size$"):
        check_gpu_share(SETTINGS, model, 4096, GrpoOptions())
    with pytest.raises(SettingsError, match=r"; use load_in_4bit, or a larger vllm_tensor_parallel_size$"):
        check_gpu_share(SETTINGS, model, 4096, GrpoOptions(trainer="unsloth"))
