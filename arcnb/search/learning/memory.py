"""What a training needs of a GPU's memory, and what to do when it does not get it.

An optimizer step is taken in parts, one forward and backward pass each, and its gradient is their sum:
smaller parts, and recomputing activations, need less memory and change no weight (beyond rounding).
"""

from __future__ import annotations

from collections.abc import Sequence

# Attention keeps the input of o_proj anyway.
_SAME_INPUT = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}


class PartSize:
    """Padded tokens of a part and whether activations are recomputed; both give way when memory runs out."""

    def __init__(self, tokens: int, checkpointing: bool):
        self.asked, self.tokens, self.checkpointing = tokens, tokens, checkpointing

    def parts(self, rows: Sequence[dict]) -> list[list[dict]]:
        """The rows cut into parts of at most so many padded tokens, or of a single longer row."""
        by_length = sorted(rows, key=lambda row: len(row["input_ids"]))
        parts: list[list[dict]] = [[]]
        for row in by_length:
            if parts[-1] and (len(parts[-1]) + 1) * len(row["input_ids"]) > self.tokens:
                parts.append([])
            parts[-1].append(row)
        return parts

    def lower(self, rows: Sequence[dict]) -> bool:
        """After these rows, one optimizer step, ran out of memory: half the tokens of its largest part; of
        single rows, recomputed activations; False when nothing is left to lower."""
        parts = self.parts(rows)
        if max(map(len, parts)) > 1:
            self.tokens = max(1, min(self.tokens, max(map(padded_tokens, parts))) // 2)
            return True
        spared, self.checkpointing = not self.checkpointing, True
        return spared

    def __str__(self) -> str:
        recomputed = " and gradient checkpointing" if self.checkpointing else ""
        return f"{self.tokens:,} tokens in a forward pass{recomputed}"


def padded_tokens(part: Sequence[dict]) -> int:
    """Tokens of a part with the padding that makes its rows equally long."""
    return len(part) * max(len(row["input_ids"]) for row in part)


def out_of_memory(error: BaseException) -> bool:
    """Whether the GPU's memory ran out, as torch or as cuBLAS says it."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "CUBLAS_STATUS_ALLOC_FAILED" in str(error)


def bytes_per_token(config, modules: Sequence[str], checkpointing: bool = False) -> int:
    """Estimated bytes that one padded token keeps between forward and backward pass, in bfloat16.

    config: of a decoder with the layers of Llama (two norms, attention, gated MLP). modules: names of the
    layers with a LoRA; each keeps its input, and layers with the same input keep one (on a GPU; copies of
    their own are spared by `arcnb.models.lora.precision`). The weights, the head's chunk of logits
    (`learner_loss.LOGITS`) and the CUDA context (about 1 GB together for 135M parameters) come on top.
    """
    config = config.get_text_config()
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    head = getattr(config, "head_dim", None) or width // config.num_attention_heads
    queries, keys = head * config.num_attention_heads, head * config.num_key_value_heads
    # norms 8 w (float32), queries and attention's output, keys and values, gate, its activation, and up
    layer = 8 * width + 4 * queries + 4 * keys + 6 * inner
    kept = {_SAME_INPUT.get(name, name) for name in (module.rpartition(".")[2] for module in modules)}
    layer += sum(2 * {"o_proj": 0, "down_proj": inner}.get(name, width) for name in kept)
    # Recomputing keeps the layers' inputs and the one layer that is at work.
    return 2 * width * layers + layer if checkpointing else layer * (layers + 1)
