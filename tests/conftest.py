"""Fixtures that several rooms use."""

import signal

import pytest

from arcnb.models.registry import ModelPath, load_tokenizer, resolve_model

# A shell starts background jobs with SIGINT ignored, and what they start inherits that; tests of interrupts
# start processes as a terminal would.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory) -> ModelPath:
    """A random two-layer Llama with the embedded model's tokenizer and a context of 2,048 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = load_tokenizer(resolve_model("default"))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("small_model")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return resolve_model(folder)
