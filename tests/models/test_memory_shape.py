"""The sizes of models, as far as their folders say them."""

import json

import pytest

from arcnb.models.memory.shape import Shape, shape_of

PLAIN = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
MIXTRAL = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}
QWEN = {
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
}
GEMMA = {
    "model_type": "gemma2",
    "num_hidden_layers": 26,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256000,
}


@pytest.mark.parametrize(
    ("config", "billions"), [(MIXTRAL, 46.7), (QWEN, 30.5), (GEMMA, 2.61), ({"text_config": GEMMA}, 2.61)]
)
def test_all_experts_are_counted_and_shared_embeddings_once(config, billions):
    assert Shape.of(config).parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_activations_are_those_of_the_experts_that_a_token_passes():
    assert (Shape.of(QWEN).inner, Shape.of(MIXTRAL).inner) == (8 * 768, 2 * 14336)


def test_weight_files_say_how_many_parameters_there_are(tiny, tmp_path):
    from transformers import AutoModelForCausalLM

    weights = AutoModelForCausalLM.from_pretrained(tiny.path).num_parameters()
    assert shape_of(tiny.path, tiny.folder).parameters == weights
    config = json.loads((tiny.folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_experts": 8}))
    assert shape_of("other", tmp_path).parameters > weights
    (tmp_path / "model.safetensors").hardlink_to(tiny.folder / "model.safetensors")
    assert shape_of("other", tmp_path).parameters == weights
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"bits": 4}}))
    assert shape_of("other", tmp_path).counted == 0, "packed numbers are no parameters"


def test_a_width_that_differs_from_layer_to_layer_is_not_known():
    assert Shape.of(PLAIN | {"intermediate_size": [128, 256], "num_key_value_heads": [1, 2]}).inner == 0


LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_key_value_heads": 4}
KINDS = ["linear_attention", "sliding_attention", "linear_attention", "full_attention"]


@pytest.mark.parametrize(
    ("config", "layers_kept"),
    [
        ({}, 4 * 1000),
        ({"layer_types": KINDS, "sliding_window": 100}, 1000 + 100),
        ({"text_config": PLAIN | {"layer_types": KINDS, "sliding_window": 100}}, 1000 + 100),
        ({"layer_types": KINDS[1:2] * 4, "sliding_window": 4096}, 4 * 1000),
        ({"layer_types": KINDS[1:] * 2, "sliding_window": 100, "num_kv_shared_layers": 1}, 1000 + 100),
        ({"full_attention_interval": 4}, 1000),
        ({"sliding_window": 100}, 4 * 100),
        ({"sliding_window": 100, "use_sliding_window": False}, 4 * 1000),
        ({"hybrid_override_pattern": "M-*-"}, 0),  # as Nemotron's, which is not read
    ],
)
def test_a_cache_holds_what_layers_keep_of_a_sequence(config, layers_kept):
    shape = Shape.of(PLAIN | config)
    assert shape.cache(1000) == 2 * 2 * 64 * layers_kept
    assert shape.cache(0) == 0


def test_latent_attention_keeps_one_vector_a_layer():
    shape = Shape.of(PLAIN | LATENT)
    assert shape.cache(1000) == 2 * (512 + 64) * 4 * 1000
