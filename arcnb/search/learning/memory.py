"""What a training does when a GPU's memory runs out; what it needs: `arcnb.models.memory.shape`.

An optimizer step is taken in parts, one forward and backward pass each, and its gradient is their sum:
smaller parts, and recomputing activations, need less memory and change no weight (beyond rounding).
"""

from __future__ import annotations

from collections.abc import Sequence


class PartSize:
    """Padded tokens of a part and whether activations are recomputed; both give way when memory runs out."""

    def __init__(self, tokens: int):
        self.asked, self.tokens, self.checkpointing = tokens, tokens, False

    def parts(self, rows: Sequence[dict]) -> list[list[dict]]:
        """The rows cut into parts of at most so many padded tokens, or of a single longer row."""
        by_length = sorted(rows, key=row_tokens)
        parts: list[list[dict]] = [[]]
        for row in by_length:
            if parts[-1] and (len(parts[-1]) + 1) * row_tokens(row) > self.tokens:
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
    return len(part) * max(map(row_tokens, part))


def row_tokens(row: dict) -> int:
    """Tokens of a row, without padding."""
    return len(row["input_ids"])


def out_of_memory(error: BaseException) -> bool:
    """Whether the GPU's memory ran out, as torch or as cuBLAS says it."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "CUBLAS_STATUS_ALLOC_FAILED" in str(error)
