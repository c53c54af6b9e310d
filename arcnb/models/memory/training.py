"""What a run will need of each GPU, counted before anything starts; what cannot fit is refused.

An estimate from shapes: weights, gradients and Adam's state as ZeRO-3 or DDP keep them, LoRA or full, what a
step keeps for the backward pass, and the server's weights and cache. What is not counted (fragments, NCCL,
kernels' workspace) is the overhead of 10% and 2 GiB. On two H200 this was 2 to 4% above what they held of
shapes of 7B and 14B under ZeRO-3 (docs/results/log/2026-11-28_four_gpus.md). Sending weights is not counted;
with it, it was 9% above (2026-11-28_ten_steps.md). The one fine-tuning whose memory was noted took more than
twice what is counted for it (docs/how-to/sft.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError
from arcnb.machine.gpus import visible_gpus
from arcnb.models.memory.shape import GIB, Shape

if TYPE_CHECKING:
    import pandas as pd

# DeepSpeed's defaults (0.19), numbers of parameters: those that may be whole on a GPU at a time
# (`stage3_max_live_parameters`), and those whose gradients are collected before they are sent.
LIVE, REDUCED = 10**9, 5 * 10**8
# Of TRL's fused head (1.15 and 1.16): tokens and entries of the vocabulary that are at work at a time.
TILE = 4096, 32768
ASSUMED_GIB = 80.0  # an H100 or A100, where nobody says otherwise and no GPU is seen
SHORTER = "use parallel='zero3' with more GPUs, a LoRA (rank above 0), or shorter completions"


@dataclass(frozen=True)
class Layout:
    """How a run is spread out. rank: of the LoRA; 0: full fine-tuning. processes: GPUs of training.

    batch: completions that a GPU trains at once. prompt, completion, context: tokens. server_share: of a
    server GPU's memory that vLLM takes; None: no server. colocated_share: what vLLM takes beside training;
    colocated_cache, in GiB: it takes its weights and this instead.
    checkpointing: activations are computed twice. trained: names of the matrices that learn; None: all.
    fused_head: logits are never whole. packed: a completion is several rows, blind to each other. quantized:
    bytes of the weights that do not learn; None: 16 bits each. fp8_weights, fp8_cache: vLLM's in 8 bits.
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
    trained: tuple[str, ...] | None = None
    fused_head: bool = False
    packed: bool = False
    quantized: int | None = None
    fp8_weights: bool = False
    fp8_cache: bool = False


def memory_of_a_gpu(asked: float) -> float:
    """GiB: as asked, or of the smallest GPU here, or ASSUMED_GIB."""
    return asked or min((gpu.total / GIB for gpu in visible_gpus()), default=ASSUMED_GIB)


def training_bytes(shape: Shape, layout: Layout) -> dict[str, float]:
    """{what: bytes} on each training GPU."""
    parts = layout.processes if layout.zero3 else 1
    trained = shape.lora(layout.rank) if layout.rank else shape.parameters
    float32 = not (layout.rank or layout.zero3)
    tokens = layout.batch * (layout.prompt + layout.completion)
    kept = tokens * shape.kept_per_token(layout.trained, layout.checkpointing, float32)
    if layout.packed:
        kept += layout.batch * shape.kept_by_packing(layout.completion, layout.checkpointing)
    if layout.fused_head:  # and the float32 gradient of what goes into it
        logits = 2 * min(tokens, TILE[0]) * min(shape.vocabulary, TILE[1]) + 4 * tokens * shape.hidden
    else:
        logits = layout.batch * layout.completion * shape.vocabulary * (2 + 4 + 4)  # bf16, float32, gradient
    largest = max(2 * shape.layer, shape.vocabulary * shape.hidden)
    gathered = 2 * (max(largest, min(LIVE, shape.parameters)) + REDUCED) if layout.zero3 else 0
    # Of float32 weights these are the copies that autocast makes.
    weights = 2 * shape.parameters if layout.quantized is None else layout.quantized
    gradients = 4 if layout.rank or float32 else 2
    if layout.processes > 1 and not layout.zero3:
        gradients *= 2  # DDP sends copies
    return {
        "weights": weights / parts,
        "gathered layers and gradients": gathered,
        "adapter" if layout.rank else "float32 weights": 4 * trained / parts,
        "gradients": gradients * trained / parts,
        "optimizer": 8 * trained / parts,
        "activations": kept,
        "logits": logits,
    }


def server_bytes(shape: Shape, layout: Layout) -> dict[str, float]:
    """{what: bytes} on a server GPU: weights, and the cache of one sequence of full length."""
    return {
        "weights": (1 if layout.fp8_weights else 2) * shape.parameters,
        "KV cache of one sequence": shape.cache(layout.context) * (0.5 if layout.fp8_cache else 1),
    }


def estimate(shape: Shape, layout: Layout, gpu_gib: float) -> pd.DataFrame:
    """Columns part, what, GiB; "room" is what a GPU offers. Overhead and sums are rows of their own."""
    import pandas as pd

    rows = []
    for part, sizes, room in _sides(shape, layout, gpu_gib):
        rows += [(part, what, size / GIB) for what, size in sizes.items()]
        rows += [(part, "needed", sum(sizes.values()) / GIB), (part, "room", room)]
    return pd.DataFrame(rows, columns=["GPU of", "what", "GiB"]).round(2)


def check_fit(model: str, shape: Shape, layout: Layout, gpu_gib: float, remedy: str = SHORTER) -> None:
    """ArcnbError for what cannot fit, with the largest item and a remedy. remedy: where it is training."""
    for part, sizes, room in _sides(shape, layout, gpu_gib):
        needed = sum(sizes.values()) / GIB
        if needed <= room:
            continue
        what = max(sizes, key=sizes.get)
        if part == "server":
            remedy = "lower max_sequence_length, take a smaller model or larger GPUs"
        raise ArcnbError(
            f"{model} cannot fit: each {part} GPU needs about {needed:.1f} GiB ({what}: "
            f"{sizes[what] / GIB:.1f}), and of {gpu_gib:g} GiB there are {room:.1f} to be used; {remedy}"
        )


def _sides(shape: Shape, layout: Layout, gpu_gib: float):
    sizes = training_bytes(shape, layout)
    sizes["overhead"] = 0.1 * sum(sizes.values()) + 2 * GIB
    if layout.colocated_cache:
        weights = server_bytes(shape, layout)["weights"]
        sizes["vLLM beside it"] = weights + layout.colocated_cache * GIB
    elif layout.colocated_share:
        sizes["vLLM beside it"] = layout.colocated_share * gpu_gib * GIB
    yield "training", sizes, gpu_gib
    if layout.server_share is not None:
        yield "server", server_bytes(shape, layout), 0.9 * layout.server_share * gpu_gib
