"""Random Llamas for tests: no weights to fetch, and small enough for any machine."""

import json
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


def first_tokens(tokenizer, size: int):
    """The byte-pair tokenizer with its first `size` tokens only, which are the most frequent ones."""
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    known = {token: number for token, number in state["model"]["vocab"].items() if number < size}
    merges = [tuple(pair) for pair in state["model"]["merges"] if "".join(pair) in known]
    state["model"] |= {"vocab": known, "merges": merges}
    smaller = type(tokenizer)(tokenizer_object=Tokenizer.from_str(json.dumps(state)), **tokenizer.init_kwargs)
    smaller.chat_template = tokenizer.chat_template
    return smaller
