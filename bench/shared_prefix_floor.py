"""Operations of a GRPO step that shares prompts, and the seconds below which no implementation can get.

The floor divides the counted operations by the rate of the model's largest matrix product, timed in the same
run; nothing else (norms, activations, adapters, memory traffic) is in it. Used by bench/shared_prefix.py.
"""

import time

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
    """The configuration whose operations the floor counts."""
    from transformers import AutoConfig, LlamaConfig

    from arcnb.models.registry import resolve_model

    if shape == "embedded":
        return AutoConfig.from_pretrained(resolve_model("default").path)
    return LlamaConfig(**{"8b": LLAMA_8B, "tiny": TINY}[shape])


def operations(config, prompt: int, completions: int, tokens: int) -> dict[str, float]:
    """Floating point operations of one forward pass of the shared way, by part.

    linear: all projections. head: the vocabulary, completion tokens alone. attention: scores and sums over
    values, half of a causal square.
    """
    hidden, head_dim = config.hidden_size, getattr(config, "head_dim", None)
    head_dim = head_dim or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    layer = hidden * (2 * queries + 2 * keys) + 3 * hidden * config.intermediate_size
    n = prompt + completions * tokens
    pairs = prompt**2 / 2 + completions * (tokens * prompt + tokens**2 / 2)
    return {
        "linear": 2.0 * config.num_hidden_layers * layer * n,
        "head": 2.0 * hidden * config.vocab_size * completions * tokens,
        "attention": 4.0 * config.num_hidden_layers * queries * pairs,
    }


def floor(counted: dict[str, float], rate: float) -> dict[str, float]:
    """Seconds of each part of a step at `rate` operations a second, adapters being free.

    Backward: layers recomputed, then gradients of inputs alone (frozen weights): as many operations as
    forward in linear layers and 2.5 times as many in attention; the head's logits are computed again. Old
    log-probabilities are free: they are the loss's own forward pass.
    """
    layers = counted["linear"] + counted["attention"]
    once = layers + counted["head"]
    backward = layers + counted["linear"] + 2.5 * counted["attention"] + 2 * counted["head"]
    seconds = {"reference": once, "forward": once, "backward": backward}
    seconds = {part: count / rate for part, count in seconds.items()}
    return {"seconds": sum(seconds.values()), **seconds}


def matmul_rate(config, tokens: int, device: str) -> float:
    """Operations a second of the model's largest product, hidden to intermediate, best of 5."""
    import torch

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x = torch.randn(tokens, config.hidden_size, dtype=dtype, device=device)
    weight = torch.randn(config.intermediate_size, config.hidden_size, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        x @ weight.t()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2.0 * x.numel() * config.intermediate_size / best
