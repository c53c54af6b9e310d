"""What the backward pass needs, kept in the host's memory until then.

With gradient checkpointing that is a hidden state a layer and a token: 9.6 GB for a group of 32 completions
of 1,024 tokens on a prompt of 3,800 and an 8B shape. It crosses the bus once in either direction, on the
stream that computes, so that order alone makes it safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SMALLEST = 1 << 20  # bytes; what is smaller stays where it is


@contextmanager
def waiting_on_host(model, device_type: str = "cuda") -> Iterator[None]:
    """Tensors that autograd saves in this block, on devices of this type, wait on the host; the model's own
    parameters stay."""
    import torch

    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def leave(tensor: torch.Tensor):
        stays = tensor.device.type != device_type or tensor.nbytes < SMALLEST
        if stays or tensor.untyped_storage().data_ptr() in own:
            return tensor.device, tensor
        waiting = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        waiting.copy_(tensor, non_blocking=True)
        return tensor.device, waiting

    def come_back(left: tuple) -> torch.Tensor:
        device, tensor = left
        return tensor.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(leave, come_back):
        yield
