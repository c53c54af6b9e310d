"""What the tests of the models room share: the embedded model, and a tiny stand-in that loads in no time."""

from pathlib import Path

import pytest

from arcnb.models.registry import ModelPath, load_tokenizer, resolve_model


@pytest.fixture(scope="session")
def embedded() -> ModelPath:
    """The embedded model in the user's cache (built on first use, about 20 s)."""
    return resolve_model("default")


@pytest.fixture(scope="session")
def embedded_tokenizer(embedded):
    return load_tokenizer(embedded)


def _save_random_llama(folder: Path, hidden: int = 64, layers: int = 2, vocabulary: int = 49152) -> Path:
    """Saves a random Llama of the given shape into `folder` (float32); no tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def save_random_llama():
    """The function save_random_llama(folder, hidden=64, layers=2, vocabulary=49152)."""
    return _save_random_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, embedded_tokenizer) -> ModelPath:
    """A random two-layer Llama with the embedded model's tokenizer and a context of 256 tokens."""
    folder = _save_random_llama(tmp_path_factory.mktemp("models") / "tiny")
    embedded_tokenizer.save_pretrained(folder)
    return resolve_model(folder)
