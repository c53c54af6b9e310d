"""A LoRA folded into its model."""

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from arcnb.errors import ArcnbError
from arcnb.models import merging
from arcnb.models.merging import KEPT, merged_model
from arcnb.models.registry import SHIPPED_ADAPTERS, ModelPath, resolve_model


@pytest.fixture
def adapter(small_model, tmp_path):
    """A LoRA that changes something: its B matrices are not zero."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(small_model.path, dtype=torch.float32)
    model = get_peft_model(
        model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    )
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_the_merged_model_computes_what_model_and_adapter_do(small_model, adapter, tmp_path, monkeypatch):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path / "cache"))
    merged = merged_model(small_model, adapter)
    ids = torch.arange(5, 50)[None]
    base = AutoModelForCausalLM.from_pretrained(small_model.path, dtype=torch.float32)
    plain = base(ids).logits
    with_adapter = PeftModel.from_pretrained(base, adapter)(ids).logits
    logits = AutoModelForCausalLM.from_pretrained(merged.path, dtype=torch.float32)(ids).logits
    assert not torch.allclose(plain, with_adapter, atol=1e-2)
    assert torch.allclose(logits, with_adapter, atol=2e-2 * float(with_adapter.abs().max()))
    assert resolve_model(merged.folder).folder == merged.folder
    made = (merged.folder / "config.json").stat().st_mtime_ns
    assert merged_model(small_model, adapter).folder == merged.folder
    assert (merged.folder / "config.json").stat().st_mtime_ns == made


@pytest.mark.parametrize("end", ["embed_tokens", "lm_head"])
@pytest.mark.parametrize("kind", ["target_modules", "modules_to_save"])
def test_of_embeddings_and_head_that_are_one_matrix_the_adapted_one_changes(
    tiny, tmp_path, monkeypatch, end, kind
):
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    def loaded(folder):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    asked = {"target_modules": ["q_proj"], "init_lora_weights": False}
    asked[kind] = [*asked.get(kind, ()), end]
    net = get_peft_model(loaded(tiny.path), LoraConfig(r=4, **asked))
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "modules_to_save" in name:
                weight += torch.randn_like(weight)
    net.save_pretrained(tmp_path / "adapter")
    ids = torch.arange(5, 50)[None]
    adapted = PeftModel.from_pretrained(loaded(tiny.path), tmp_path / "adapter")(ids).logits
    merged = loaded(merged_model(tiny, tmp_path / "adapter").path)(ids).logits
    assert torch.allclose(merged, adapted, atol=1e-4 * float(adapted.abs().max()))


def test_a_copy_that_several_want_at_once_is_made_once(small_model, adapter, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path / "cache"))
    made = []

    def merge(model, adapter, folder):
        made.append(folder)
        time.sleep(0.2)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(merging, "_merge", merge)
    with ThreadPoolExecutor(4) as pool:
        copies = list(pool.map(lambda _: merged_model(small_model, adapter).folder, range(4)))
    assert len(made) == 1
    assert len(set(copies)) == 1


def test_a_copy_in_another_users_cache_is_used(small_model, adapter, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(merging, "_merge", lambda *args: (args[2] / "config.json").write_text("{}"))
    copy = merged_model(small_model, adapter)

    def refuse(*args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(merging.os, "utime", refuse)
    assert merged_model(small_model, adapter) == copy


def test_a_model_saved_anew_under_its_path_is_merged_anew(small_model, adapter, tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path / "cache"))
    model = ModelPath("model", Path(shutil.copytree(small_model.folder, tmp_path / "model")))
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": str(model.folder)})
    )
    first = merged_model(model, adapter)
    changed = AutoModelForCausalLM.from_pretrained(model.path)
    with torch.no_grad():
        changed.model.norm.weight.fill_(3)
    changed.save_pretrained(model.path)
    second = merged_model(model, adapter)
    assert first.folder != second.folder
    norm = AutoModelForCausalLM.from_pretrained(second.path).model.norm.weight
    assert float(norm.detach().mean()) == 3
    assert merged_model(model, adapter).folder == second.folder


@pytest.mark.parametrize(
    "name", ["generation_config.json", "vocab.txt", "spiece.model", "tekken.json", "added_tokens.json"]
)
def test_what_decides_how_a_model_samples_decides_its_copy(small_model, adapter, tmp_path, monkeypatch, name):
    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(merging, "_merge", lambda *args: (args[2] / "config.json").write_text("{}"))
    shutil.copytree(small_model.folder, tmp_path / "model", copy_function=shutil.copyfile)
    model, copies = ModelPath("model", tmp_path / "model"), set()
    config = json.loads((adapter / "adapter_config.json").read_text()) | {"base_model_name_or_path": ""}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    for content in ("{}", '{"eos_token_id": [2, 0]}'):
        (tmp_path / "model" / name).write_text(content)
        copies.add(merged_model(model, adapter).folder)
    assert len(copies) == 2


def test_a_copy_is_named_after_its_content(small_model, adapter, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(merging, "_merge", lambda *args: (args[2] / "config.json").write_text("{}"))

    def name_of(place: str) -> str:
        return merged_model(ModelPath("model", tmp_path / place / "model"), adapter).folder.name

    for place in ("here", "there"):
        shutil.copytree(small_model.folder, tmp_path / place / "model", copy_function=shutil.copyfile)
    assert name_of("here") == name_of("there")
    (tmp_path / "there" / "model" / "chat_template.jinja").write_text("another")
    assert name_of("here") != name_of("there")


def test_old_copies_go_and_the_last_and_the_young_stay(small_model, adapter, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path))
    days = {"young": 0.5, ".half made": 0.5, ".left over": 2} | {f"copy{i}": 2 + i for i in range(KEPT)}
    for name, age in days.items():
        (tmp_path / "merged" / name).mkdir(parents=True)
        os.utime(tmp_path / "merged" / name, (then := time.time() - age * 86400, then))
    old_lock = tmp_path / "merged" / ".copy0.lock"
    old_lock.touch()
    os.utime(old_lock, (0, 0))
    new = merged_model(small_model, adapter).folder
    left = {path.name for path in new.parent.iterdir()}
    assert left == {
        new.name,
        f".{new.name}.lock",
        "young",
        ".half made",
        *(f"copy{i}" for i in range(KEPT - 2)),
    }
    os.utime(new, (0, 0))
    merged_model(small_model, adapter)
    assert time.time() - new.stat().st_mtime < 3600, "a copy that is used again counts as old"


def test_an_adapter_of_another_model_is_refused(small_model):
    with pytest.raises(ArcnbError, match="was trained on default, not on model"):
        merged_model(small_model, SHIPPED_ADAPTERS / "default")


def test_an_adapter_with_biases_that_the_model_has_no_place_for_is_refused(
    small_model, tmp_path, monkeypatch
):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path / "cache"))
    net = AutoModelForCausalLM.from_pretrained(small_model.path)
    get_peft_model(net, LoraConfig(target_modules=["q_proj"], lora_bias=True)).save_pretrained(tmp_path / "a")
    with pytest.raises(ArcnbError, match=r"cannot be merged .*use backend=transformers.*has no bias"):
        merged_model(small_model, tmp_path / "a")
