"""Which layers a model has, by the names in its weight files."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from arcnb.errors import ArcnbError
from arcnb.models.lora.compatibility import WEIGHTS, check_adapter, check_targets, weights_digest
from arcnb.models.merging import merged_model
from arcnb.models.registry import ModelPath
from arcnb.models.sampling.backends import EngineOptions
from arcnb.models.sampling.by_vllm import merged_is_faster
from tests.random_llama import random_llama


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
    check_targets(["q_proj", "k_proj", "self_attn.q_proj"], model, "toy")


@pytest.mark.parametrize("name", ["lm_head", "model.embed_tokens"])
def test_a_lora_of_embeddings_or_head_is_refused(model, name):
    with pytest.raises(ArcnbError, match=f"a LoRA of {name} cannot be used later; name inner layers alone"):
        check_targets(["q_proj", name], model, "toy")


@pytest.mark.parametrize("end", ["embed_tokens", "lm_head"])
@pytest.mark.parametrize("whole", [False, True])
def test_adapters_of_embeddings_and_head_fit_as_peft_writes_them(
    tiny, embedded_tokenizer, tmp_path, end, whole
):
    """whole: with the matrix that the LoRA changes beside it, as peft writes them unless told otherwise."""
    import peft
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(tiny.path)
    net = peft.get_peft_model(net, peft.LoraConfig(target_modules=[end]))
    net.save_pretrained(tmp_path / "adapter", save_embedding_layers=whole)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    del settings["base_model_name_or_path"]  # by which alone the others would be refused
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    check_adapter(tmp_path / "adapter", tiny.folder, tiny.name)
    for name, size in (("hidden_size", 32), ("vocab_size", 500)):
        other = random_llama(tmp_path / name, embedded_tokenizer, **{"hidden_size": 64, name: size})
        with pytest.raises(ArcnbError, match="does not fit model 'other'"):
            check_adapter(tmp_path / "adapter", other.folder, "other")


@pytest.mark.parametrize(
    ("lora", "sentence"),
    [
        ({"alora_invocation_tokens": [5, 6]}, "acts behind certain tokens alone"),
        ({"init_lora_weights": "pissa_niter_4"}, "is another one at every load; save it by peft with path_"),
    ],
    ids=str,
)
def test_adapters_that_do_not_always_act_alike_are_refused(tiny, tmp_path, lora, sentence):
    import peft
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(tiny.path)
    peft.get_peft_model(net, peft.LoraConfig(target_modules=["q_proj"], **lora)).save_pretrained(tmp_path)
    with pytest.raises(ArcnbError, match=sentence):
        check_adapter(tmp_path, tiny.folder, tiny.name)


@pytest.mark.parametrize(
    ("method", "packed"),
    [
        ("gptq", {"qweight": (8, 64), "qzeros": (1, 8), "scales": (1, 64), "g_idx": (64,)}),
        ("awq", {"qweight": (64, 8), "qzeros": (1, 8), "scales": (1, 64)}),
        ("compressed-tensors", {"weight_packed": (64, 8), "weight_scale": (64, 1), "weight_shape": (2,)}),
        ("bitsandbytes", {"weight": (2048, 1), "weight.absmax": (64,), "weight.quant_map": (16,)}),
    ],
)
def test_adapters_of_quantized_models_are_judged_by_name_and_stay_apart(
    tmp_path, monkeypatch, method, packed
):
    layer, model, adapter = "model.layers.0.self_attn.q_proj", tmp_path / "model", tmp_path / "adapter"
    lora = {"lora_A.weight": (4, 64), "lora_B.weight": (64, 4)}
    prefixes = {model: f"{layer}.", adapter: f"base_model.model.{layer}."}
    for folder, shapes in ((model, packed), (adapter, lora)):
        folder.mkdir()
        tensors = {prefixes[folder] + name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        save_file(tensors, folder / ("model.safetensors" if folder == model else WEIGHTS))
    (model / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": method}}))
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 4}')
    check_adapter(adapter, model, "toy")
    check_targets(["q_proj"], model, "toy")
    monkeypatch.setattr("arcnb.models.sampling.by_vllm.on_cpu", lambda: True)
    assert not merged_is_faster(ModelPath("toy", model), EngineOptions())
    with pytest.raises(ArcnbError, match="cannot be merged into model 'toy', whose weights are quantized"):
        merged_model(ModelPath("toy", model), adapter)
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "one/other"}')
    with pytest.raises(ArcnbError, match="was trained on one/other, not on model 'some/toy'"):
        check_adapter(adapter, model, "some/toy")


@pytest.mark.parametrize("name", ["v_proj", "norm", "proj"])
def test_a_name_of_no_layer_is_refused_with_those_that_there_are(model, name):
    there = "k_proj, q_proj"
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
