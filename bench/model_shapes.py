"""Shapes of models that the benchmarks on training use."""

LLAMA_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
TINY = {
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def model_config(shape: str):
    """The embedded model's configuration, or one of these shapes."""
    from transformers import AutoConfig, LlamaConfig

    from arcnb.models.registry import resolve_model

    if shape == "embedded":
        return AutoConfig.from_pretrained(resolve_model("default").path)
    return LlamaConfig(**{"8b": LLAMA_8B, "tiny": TINY}[shape])
