"""What a training does when a GPU's memory runs out; what it needs: `arcnb.models.memory.shape`.

An optimizer step is taken in parts, one forward and backward pass each, and its gradient is their sum:
smaller parts, and recomputing activations, need less memory and change no weight (beyond rounding).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.models.memory.shape import GIB, Shape
from arcnb.search.learning.learner.settings import LoraSettings


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


class Room:
    """What the passes of one model may take of a GPU, and what gives way when memory runs out.

    net: the model with its LoRA. size: how much goes through it at once; it stays lowered.
    """

    def __init__(self, net, settings: LoraSettings):
        self.net, self.modules, self.size = net, settings.target_modules, PartSize(settings.batch_tokens)
        if settings.gradient_checkpointing:
            self._recompute()

    def within(self, rows: list[dict], attempt: Callable[[list[dict]], Any]) -> Any:
        """What `attempt` makes of the rows, which it cuts by `size.parts`: again in smaller parts as long as
        memory runs out. ArcnbError when a single row does not fit."""
        while True:
            try:
                return attempt(rows)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                why = str(error).splitlines()[0]
            # Out here the error is gone, and with it what its traceback kept of the pass.
            self._make(rows, why)

    def _make(self, rows: list[dict], why: str) -> None:
        """Forgets a step's gradients and sees to it that it takes less memory."""
        import torch

        self.net.zero_grad(set_to_none=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        recomputed = self.size.checkpointing
        if not self.size.lower(rows):
            part = max(self.size.parts(rows), key=padded_tokens)
            shape = Shape.of(self.net.config.to_dict())
            size = padded_tokens(part) * shape.kept_per_token(self.modules, checkpointing=True) / GIB
            raise ArcnbError(
                f"the GPU ran out of memory with one row of {padded_tokens(part):,} tokens and gradient "
                f"checkpointing, which need about {size:.1f} GB beside the weights: {why}"
            )
        if self.size.checkpointing and not recomputed:
            self._recompute()

    def _recompute(self) -> None:
        self.size.checkpointing = True
        self.net.gradient_checkpointing_enable({"use_reentrant": False})
        self.net.enable_input_require_grads()
