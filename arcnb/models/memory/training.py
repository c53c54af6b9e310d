"""What a run will need of each GPU, counted before anything starts; what cannot fit is refused.

An estimate from shapes: weights, gradients and Adam's state as ZeRO-3 or DDP keep them, LoRA or full, what a
step keeps for the backward pass, and the server's weights and cache. What is not counted (fragments, NCCL,
kernels' workspace) is the overhead of 10% and 2 GiB. On two H200 this was 2 to 4% above what they held of
shapes of 7B and 14B under ZeRO-3 (docs/results/log/2026-11-28_four_gpus.md). Sending weights is not counted;
with it, it was 9% above (2026-11-28_ten_steps.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError
from arcnb.models.memory.shape import GIB, Shape

if TYPE_CHECKING:
    import pandas as pd

# DeepSpeed's defaults (0.19), numbers of parameters: those that may be whole on a GPU at a time
# (`stage3_max_live_parameters`), and those whose gradients are collected before they are sent.
LIVE, REDUCED = 10**9, 5 * 10**8


@dataclass(frozen=True)
class Layout:
    """How a run is spread out. rank: of the LoRA; 0: full fine-tuning. processes: GPUs of training.

    batch: completions that a GPU trains at once. prompt, completion, context: tokens. server_share: of a
    server GPU's memory that vLLM takes; None: no server. colocated_share: what vLLM takes beside training;
    colocated_cache, in GiB: it takes its weights and this instead.
    checkpointing: activations are computed twice.
    """

    processes: int
    zero3: bool
    rank: int
    batch: int
    prompt: int
    completion: int
    context: int
    server_share: float | None = None
    checkpointing: bool = True
    colocated_share: float = 0.0
    colocated_cache: float = 0.0


def training_bytes(shape: Shape, layout: Layout) -> dict[str, float]:
    """{what: bytes} on each training GPU."""
    parts = layout.processes if layout.zero3 else 1
    trained = shape.lora(layout.rank) if layout.rank else shape.parameters
    tokens = layout.batch * (layout.prompt + layout.completion)
    logits = layout.batch * layout.completion * shape.vocabulary * (2 + 4 + 4)  # bf16, float32, gradient
    largest = max(2 * shape.layer, shape.vocabulary * shape.hidden)
    gathered = 2 * (max(largest, min(LIVE, shape.parameters)) + REDUCED) if layout.zero3 else 0
    weights = 2 * shape.parameters
    return {
        "weights": weights / parts,
        "gathered layers and gradients": gathered,
        "adapter" if layout.rank else "float32 weights": 4 * trained / parts,
        "gradients": (4 if layout.rank else 2) * trained / parts,
        "optimizer": 8 * trained / parts,
        "activations": tokens * shape.kept_per_token(checkpointing=layout.checkpointing),
        "logits": logits,
    }


def server_bytes(shape: Shape, layout: Layout) -> dict[str, float]:
    """{what: bytes} on a server GPU: weights, and the cache of one sequence of full length."""
    return {
        "weights": 2 * shape.parameters,
        "KV cache of one sequence": shape.cache_per_token * layout.context,
    }


def estimate(shape: Shape, layout: Layout, gpu_gib: float) -> pd.DataFrame:
    """Columns part, what, GiB; "room" is what a GPU offers. Overhead and sums are rows of their own."""
    import pandas as pd

    rows = []
    for part, sizes, room in _sides(shape, layout, gpu_gib):
        rows += [(part, what, size / GIB) for what, size in sizes.items()]
        rows += [(part, "needed", sum(sizes.values()) / GIB), (part, "room", room)]
    return pd.DataFrame(rows, columns=["GPU of", "what", "GiB"]).round(2)


def check_fit(model: str, shape: Shape, layout: Layout, gpu_gib: float) -> None:
    """ArcnbError for what cannot fit, with the largest item and a remedy."""
    for part, sizes, room in _sides(shape, layout, gpu_gib):
        needed = sum(sizes.values()) / GIB
        if needed <= room:
            continue
        what = max(sizes, key=sizes.get)
        remedy = {
            "server": "lower max_sequence_length, take a smaller model or larger GPUs",
            "training": "use parallel='zero3' with more GPUs, a LoRA (rank above 0), or shorter completions",
        }[part]
        raise ArcnbError(
            f"{model} cannot fit: each {part} GPU needs about {needed:.1f} GiB ({what}: "
            f"{sizes[what] / GIB:.1f}), and of {gpu_gib:g} GiB there are {room:.1f} to be used; {remedy}"
        )


def _sides(shape: Shape, layout: Layout, gpu_gib: float):
    sizes = training_bytes(shape, layout)
    sizes["overhead"] = 0.1 * sum(sizes.values()) + 2 * GIB
    if layout.colocated_cache:
        sizes["vLLM beside it"] = 2 * shape.parameters + layout.colocated_cache * GIB
    elif layout.colocated_share:
        sizes["vLLM beside it"] = layout.colocated_share * gpu_gib * GIB
    yield "training", sizes, gpu_gib
    if layout.server_share is not None:
        yield "server", server_bytes(shape, layout), 0.9 * layout.server_share * gpu_gib
