"""Names of models and adapters: what resolves, and the sentence for what does not."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from arcnb.errors import ArcnbError
from arcnb.models import registry
from arcnb.models.lora.compatibility import adapter_rank
from arcnb.models.prompts.chat import answer_ids
from arcnb.models.registry import load_network, load_tokenizer, resolve_adapter, resolve_model


def make_adapter(folder, base: str, hidden: int = 64, layer: int = 1, rank: int = 4, **extra):
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "base_model_name_or_path": base, "r": rank}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
    tensors = {
        f"{name}.lora_A.weight": np.zeros((rank, hidden), np.float32),
        f"{name}.lora_B.weight": np.zeros((hidden, rank), np.float32),
        **extra,
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_default_folder_and_itself_resolve(tiny, embedded):
    assert resolve_model("default") == embedded
    assert resolve_model(str(tiny.folder)).folder == tiny.folder
    assert resolve_model(tiny) is tiny
    assert tiny.context == 256


def test_missing_folder(tmp_path):
    with pytest.raises(ArcnbError, match="nowhere does not exist"):
        resolve_model(tmp_path / "nowhere")


def test_an_empty_name_is_no_model():
    with pytest.raises(ArcnbError, match='model "" names no model; give default, a folder or a hub id'):
        resolve_model("")


def test_a_file_is_no_model_folder(tiny):
    with pytest.raises(ArcnbError, match=r"config\.json is a file; name the folder that it is in"):
        resolve_model(tiny.folder / "config.json")


def test_hub_id_that_cannot_be_had(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ArcnbError, match="'nobody/nothing' is neither a folder nor available from the hub"):
        resolve_model("nobody/nothing")


def test_hub_id_resolves_to_the_downloaded_folder(monkeypatch, tiny):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **kw: str(tiny.folder))
    model = resolve_model("someone/tiny")
    assert (model.name, model.folder) == ("someone/tiny", tiny.folder)


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("config.json", "config.json is missing"),
        ("tokenizer.json", "has no tokenizer"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_incomplete_model_folder_is_refused(tmp_path, tiny, missing, sentence):
    folder = shutil.copytree(tiny.folder, tmp_path / "model")
    (folder / missing).unlink()
    with pytest.raises(ArcnbError, match=sentence) as caught:
        resolve_model(folder)
    assert str(folder) in str(caught.value)
    if missing == "model.safetensors":
        assert resolve_model(folder, need_weights=False).folder == folder


def test_adapter_folder_given_as_model_is_named_so(tmp_path):
    with pytest.raises(ArcnbError, match="it is an adapter folder"):
        resolve_model(make_adapter(tmp_path / "adapter", "default"))


def test_damaged_config_is_one_sentence(tmp_path, tiny):
    folder = shutil.copytree(tiny.folder, tmp_path / "model")
    (folder / "config.json").write_text("{")
    with pytest.raises(ArcnbError, match=r"config\.json: not JSON"):
        resolve_model(folder)


@pytest.mark.parametrize(("named", "end"), [([0, 2], "<|im_end|>"), (0, "<|endoftext|>")])
def test_answers_end_as_the_template_ends_a_turn_where_samplers_stop_there(tmp_path, tiny, named, end):
    """As of Gemma and Phi, whose tokenizers' end token is another one."""
    folder = shutil.copytree(tiny.folder, tmp_path / "model")
    changes = {"tokenizer_config.json": {"eos_token": "<|endoftext|>", "pad_token": "<reponame>"}}
    changes["generation_config.json"] = {"eos_token_id": named}
    for name, settings in changes.items():
        whole = json.loads((folder / name).read_text()) | settings
        (folder / name).write_text(json.dumps(whole))
    tokenizer = load_tokenizer(resolve_model(folder))
    assert tokenizer.decode(answer_ids(tokenizer, "x")) == f"x{end}"
    assert tokenizer.pad_token != end


def test_pad_token_equal_to_end_token_is_replaced(tmp_path, tiny):
    folder = shutil.copytree(tiny.folder, tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["pad_token"] = settings["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(resolve_model(folder))
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.padding_side == "left"


def test_unreadable_tokenizer_is_one_sentence(tmp_path, tiny):
    folder = shutil.copytree(tiny.folder, tmp_path / "model")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ArcnbError, match=r"tokenizer in .* cannot be loaded"):
        load_tokenizer(resolve_model(folder))


@pytest.mark.parametrize("name", [None, ""])
def test_no_adapter(tiny, name):
    assert resolve_adapter(name, tiny) is None


def test_adapter_that_fits_resolves_whatever_its_old_base_was_called(tmp_path, tiny):
    for i, base in enumerate(("/gone/elsewhere", str(tiny.folder), "org/tiny", "")):
        adapter = make_adapter(tmp_path / str(i), base)
        assert resolve_adapter(adapter, tiny) == adapter
    assert adapter_rank(adapter) == 4


def test_default_adapter_not_shipped(monkeypatch, tmp_path, tiny):
    monkeypatch.setattr(registry, "SHIPPED_ADAPTERS", tmp_path)
    with pytest.raises(ArcnbError, match="no default adapter is shipped"):
        resolve_adapter("default", tiny)


def test_shipped_adapter_if_any_fits_the_embedded_model(embedded):
    if not (registry.SHIPPED_ADAPTERS / "default").is_dir():
        pytest.skip("this version ships no adapter")
    assert resolve_adapter("default", embedded) == registry.SHIPPED_ADAPTERS / "default"
    assert resolve_adapter("auto", embedded) == registry.SHIPPED_ADAPTERS / "default"


def test_auto_is_no_adapter_for_another_model(tiny):
    assert resolve_adapter("auto", tiny) is None


def test_adapter_of_another_width_is_refused(tmp_path, tiny):
    with pytest.raises(ArcnbError, match=r"shape \[4, 32\], the model needs \[r, 64\]"):
        resolve_adapter(make_adapter(tmp_path / "a", "/gone", hidden=32), tiny)


def test_adapter_of_a_deeper_model_is_refused(tmp_path, tiny):
    with pytest.raises(ArcnbError, match=r"no layer model\.layers\.9\.self_attn\.q_proj"):
        resolve_adapter(make_adapter(tmp_path / "a", "/gone", layer=9), tiny)


def test_adapter_with_another_vocabulary_is_refused(tmp_path, tiny):
    head = {"base_model.model.lm_head.weight": np.zeros((7, 64), np.float32)}
    with pytest.raises(ArcnbError, match=r"lm_head\.weight has shape \[7, 64\]"):
        resolve_adapter(make_adapter(tmp_path / "a", "/gone", **head), tiny)


def test_adapter_of_another_model_of_the_same_shape_is_refused_by_name(tmp_path, tiny, embedded):
    other = shutil.copytree(tiny.folder, tmp_path / "other")
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    with pytest.raises(ArcnbError, match="was trained on"):
        resolve_adapter(make_adapter(tmp_path / "a", str(other)), tiny)
    with pytest.raises(ArcnbError, match="trained on default, not on"):
        resolve_adapter(make_adapter(tmp_path / "b", "default"), tiny)


def test_adapter_of_a_copied_model_is_accepted(tmp_path, tiny):
    copy = shutil.copytree(tiny.folder, tmp_path / "copy")
    resolve_adapter(make_adapter(tmp_path / "a", str(copy)), tiny)


def test_hub_names_are_compared_without_owner_and_packing(tmp_path, tiny):
    named = registry.ModelPath("meta-llama/Llama-3.1-8B", tiny.folder)
    resolve_adapter(make_adapter(tmp_path / "a", "unsloth/Llama-3.1-8B-bnb-4bit"), named)
    with pytest.raises(ArcnbError, match="was trained on other/Model"):
        resolve_adapter(make_adapter(tmp_path / "b", "other/Model"), named)


def test_the_embedded_model_has_a_hub_name_too(tmp_path, tiny):
    named = registry.ModelPath("default", tiny.folder)
    resolve_adapter(make_adapter(tmp_path / "a", "HuggingFaceTB/SmolLM2-135M-Instruct"), named)
    with pytest.raises(ArcnbError, match="trained on HuggingFaceTB/SmolLM2-135M, not on model 'default'"):
        resolve_adapter(make_adapter(tmp_path / "b", "HuggingFaceTB/SmolLM2-135M"), named)


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_incomplete_adapter_is_refused(tmp_path, tiny, missing):
    adapter = make_adapter(tmp_path / "a", "/gone")
    (adapter / missing).unlink()
    with pytest.raises(ArcnbError, match=f"{missing} is missing"):
        resolve_adapter(adapter, tiny)
    with pytest.raises(ArcnbError, match="does not exist"):
        resolve_adapter(tmp_path / "nowhere", tiny)


def changed_config(folder, **changed):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))


def cut(folder):
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])


def without_a_shard(folder):
    (folder / "model.safetensors").rename(folder / "model-1-of-2.safetensors")
    shards = {"model.norm.weight": "model-2-of-2.safetensors", "lm_head.weight": "model-1-of-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


DAMAGED = {
    "half of the weights": (cut, r"model\.safetensors is not a readable safetensors file"),
    "an empty file": (
        lambda folder: (folder / "model.safetensors").write_bytes(b""),
        r"model\.safetensors is not a readable safetensors file",
    ),
    "a missing shard": (
        without_a_shard,
        "lacks model-2-of-2.safetensors, which model.safetensors.index.json names",
    ),
    "an index that says nothing": (
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": []}'),
        r"index\.json: weight_map does not say which file holds which weight",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_weight_files_are_named_before_anything_is_loaded(tmp_path, tiny, damage):
    folder = shutil.copytree(tiny.folder, tmp_path / "model", copy_function=shutil.copyfile)
    do, sentence = DAMAGED[damage]
    do(folder)
    with pytest.raises(ArcnbError, match=sentence):
        resolve_model(folder)
    assert resolve_model(folder, need_weights=False).folder == folder


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"model_type": "nonesuch"}, "cannot be loaded: ValueError: .*`nonesuch`"),
        ({"intermediate_size": 99}, "its weights have other sizes than its config.json says"),
        (
            {"num_hidden_layers": 3},
            r"its weight files lack 9 weights that its config.json asks for, model.layers.2",
        ),
    ],
)
def test_weights_that_are_not_those_of_the_config_are_refused(tmp_path, tiny, changed, sentence):
    folder = shutil.copytree(tiny.folder, tmp_path / "model", copy_function=shutil.copyfile)
    changed_config(folder, **changed)
    with pytest.raises(ArcnbError, match=f"model .*model' in .*{sentence}"):
        load_network(resolve_model(folder))


def test_a_config_whose_text_part_is_empty_says_no_context(tmp_path, tiny):
    folder = shutil.copytree(tiny.folder, tmp_path / "model", copy_function=shutil.copyfile)
    changed_config(folder, text_config=None, max_position_embeddings=None)
    assert resolve_model(folder).context is None


def test_a_tokenizer_of_more_tokens_than_the_model_knows_is_refused(tmp_path, tiny):
    """Tokens that were added may be beyond, as Gemma's for images are in its models without."""
    folder = shutil.copytree(tiny.folder, tmp_path / "model", copy_function=shutil.copyfile)
    tokenizer = load_tokenizer(tiny)
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(folder)
    assert len(load_tokenizer(resolve_model(folder))) == tiny.vocabulary + 1
    changed_config(folder, vocab_size=500)
    with pytest.raises(ArcnbError, match=r"tokens, and the model knows 500 .* it is another model's"):
        load_tokenizer(resolve_model(folder))


def test_truncated_adapter_is_refused(tmp_path, tiny):
    adapter = make_adapter(tmp_path / "a", "/gone")
    weights = (adapter / "adapter_model.safetensors").read_bytes()
    (adapter / "adapter_model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ArcnbError, match="not a readable safetensors file"):
        resolve_adapter(adapter, tiny)
