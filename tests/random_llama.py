"""Random Llamas for tests: no weights to fetch, and small enough for any machine."""

from pathlib import Path

from arcnb.models.registry import ModelPath, resolve_model


def random_llama(folder: Path, tokenizer, **shape) -> ModelPath:
    """A two-layer Llama for that tokenizer, always the same of a shape, saved in folder.

    shape: what differs from 32 features, two heads and a context of 2,048 tokens, as LlamaConfig names it.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    usual = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 2048,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    LlamaForCausalLM(LlamaConfig(**usual | shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return resolve_model(folder)
