"""Which layers a model has, by the names in its weight files."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from arcnb.errors import ArcnbError
from arcnb.models.lora.compatibility import check_targets, weights_digest


@pytest.fixture
def model(tmp_path):
    layer = "model.layers.0.self_attn"
    shapes = {
        "model.embed_tokens.weight": (7, 4),
        "model.norm.weight": (4,),
        f"{layer}.q_proj.weight": (4, 4),
        f"{layer}.k_proj.qweight": (1, 4),  # as GPTQ keeps a layer
        f"{layer}.k_proj.scales": (1, 4),
    }
    save_file(
        {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, tmp_path / "m.safetensors"
    )
    return tmp_path


def test_layers_are_found_however_their_weights_are_kept(model):
    check_targets(["q_proj", "k_proj", "self_attn.q_proj", "lm_head"], model, "toy")  # the head is tied


@pytest.mark.parametrize("name", ["v_proj", "norm", "proj"])
def test_a_name_of_no_layer_is_refused_with_those_that_there_are(model, name):
    there = "embed_tokens, k_proj, lm_head, q_proj"
    with pytest.raises(ArcnbError, match=f"target_modules: toy has no layer '{name}'; there are {there}"):
        check_targets(["q_proj", name], model, "toy")


def test_of_a_model_in_another_format_nothing_is_said(tmp_path):
    check_targets(["nowhere"], tmp_path, "toy")


@pytest.mark.parametrize("place", [0.0, 0.37, 0.99])
def test_a_model_with_one_changed_layer_has_another_digest(tmp_path, place):
    """As after a LoRA was merged, which leaves what stands first and last in the file."""
    path, size = tmp_path / "model.safetensors", 12 << 20
    path.write_bytes(bytes(size))
    before = weights_digest(tmp_path)
    assert weights_digest(tmp_path) == before
    with open(path, "r+b") as file:
        file.seek(int(place * size))
        file.write(b"1" * (size // 100))
    assert weights_digest(tmp_path) != before
