"""The pass for old log-probabilities, kept to be the policy's pass of the loss.

With vLLM's samples TRL computes old log-probabilities right after sampling, and with one optimizer step a
generation the loss then computes the very same numbers again, with a graph. Here the first pass builds the
graph already (with gradient checkpointing: a hidden state a layer), and the loss takes it: one forward pass
of a step less.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KeptPass:
    """log_probs, entropies: (B, C) with their graph. places: where a row of tokens and mask is in them."""

    log_probs: torch.Tensor
    entropies: torch.Tensor
    places: dict[bytes, list[int]]

    @classmethod
    def of(cls, log_probs, entropies, input_ids, attention_mask) -> KeptPass:
        places = defaultdict(list)
        for place, row in enumerate(_rows(input_ids, attention_mask)):
            places[row].append(place)
        return cls(log_probs, entropies, dict(places))

    def reordered(self, input_ids, attention_mask) -> tuple[torch.Tensor, torch.Tensor] | None:
        """(log_probs, entropies) for the same rows in another order; None if they are not the same rows."""
        import torch

        left = {row: list(places) for row, places in self.places.items()}
        order = []
        for row in _rows(input_ids, attention_mask):
            if not left.get(row):
                return None
            order.append(left[row].pop())
        if len(order) != len(self.log_probs):
            return None
        index = torch.tensor(order, device=self.log_probs.device)
        return self.log_probs[index], self.entropies[index]


def _rows(input_ids, attention_mask) -> list[bytes]:
    ids, mask = input_ids.cpu().numpy(), attention_mask.cpu().numpy()
    return [one.tobytes() + other.tobytes() for one, other in zip(ids, mask, strict=True)]


def adapter_state(model) -> tuple | None:
    """(whether adapters are off, which are active): equal states compute the same. None without adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layer = next((module for module in model.modules() if isinstance(module, BaseTunerLayer)), None)
    return None if layer is None else (layer.disable_adapters, tuple(layer.active_adapters))


@contextmanager
def graph_of_training(model, args):
    """Gradients on, and gradient checkpointing as in the loss, inside code that has both switched off."""
    import torch

    switch = args.gradient_checkpointing and not model.is_gradient_checkpointing
    if switch:
        model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
    try:
        with torch.enable_grad():
            yield
    finally:
        if switch:
            model.gradient_checkpointing_disable()
