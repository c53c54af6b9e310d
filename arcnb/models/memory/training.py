"""What a run will need of each GPU, counted before anything starts; what cannot fit is refused.

An estimate from shapes: weights, gradients and Adam's state as ZeRO-3 or DDP keep them, LoRA or full, what a
step keeps for the backward pass, and the server's weights and cache. It was not measured on the sizes of the
presets; what is not counted (fragments, NCCL, kernels' workspace) is the overhead of 10% and 2 GiB.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError
from arcnb.models.memory.fitting import GIB

if TYPE_CHECKING:
    import pandas as pd

# layers, hidden, intermediate, heads, key-value heads, vocabulary, tied: from the models' config.json.
KNOWN = {
    "Qwen2.5-1.5B": (28, 1536, 8960, 12, 2, 151936, True),
    "Qwen2.5-3B": (36, 2048, 11008, 16, 2, 151936, True),
    "Qwen2.5-7B": (28, 3584, 18944, 28, 4, 152064, False),
    "Qwen2.5-14B": (48, 5120, 13824, 40, 8, 152064, False),
    "Qwen2.5-32B": (64, 5120, 27648, 40, 8, 152064, False),
}


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool

    @property
    def _matrices(self) -> list[tuple[int, int]]:
        """(in, out) of the seven matrices of a layer, those that LoRA adapts."""
        kv = self.hidden // self.heads * self.kv_heads
        return [
            *((self.hidden, self.hidden), (self.hidden, kv), (self.hidden, kv), (self.hidden, self.hidden)),
            *((self.hidden, self.intermediate),) * 2,
            (self.intermediate, self.hidden),
        ]

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        return sum(a * b for a, b in self._matrices) + 2 * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def lora(self, rank: int) -> int:
        """Parameters of a LoRA of this rank on the seven matrices of every layer."""
        return self.layers * sum(rank * (a + b) for a, b in self._matrices)

    @property
    def cache_per_token(self) -> int:
        """Bytes of keys and values a token, 16 bit."""
        return 2 * 2 * self.layers * self.kv_heads * (self.hidden // self.heads)


def shape_of(model: str, folder: Path | None = None) -> Shape:
    """The shape of a model by its config.json, or of a known one by name. ArcnbError otherwise."""
    if folder is not None and (folder / "config.json").is_file():
        config = json.loads((folder / "config.json").read_text())
        config = config.get("text_config", config)
        if not {"num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"} <= set(config):
            raise ArcnbError(f"{folder / 'config.json'} does not say the sizes of a plain decoder")
        heads = config["num_attention_heads"]
        return Shape(
            config["num_hidden_layers"],
            config["hidden_size"],
            config["intermediate_size"],
            heads,
            config.get("num_key_value_heads") or heads,
            config["vocab_size"],
            bool(config.get("tie_word_embeddings")),
        )
    for name, sizes in KNOWN.items():
        if name.lower() in model.lower():
            return Shape(*sizes)
    raise ArcnbError(
        f"the size of model {model!r} is not known here; give its folder, or one of {', '.join(KNOWN)}"
    )


@dataclass(frozen=True)
class Layout:
    """How a run is spread out. rank: of the LoRA; 0: full fine-tuning. processes: GPUs of training.

    batch: completions that a GPU trains at once. prompt, completion, context: tokens. server_share: of a
    server GPU's memory that vLLM takes; None: no server. colocated_share: what vLLM takes beside training.
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


def training_bytes(shape: Shape, layout: Layout) -> dict[str, float]:
    """{what: bytes} on each training GPU."""
    parts = layout.processes if layout.zero3 else 1
    trained = shape.lora(layout.rank) if layout.rank else shape.parameters
    tokens = layout.batch * (layout.prompt + layout.completion)
    kept = shape.layers * tokens * shape.hidden * 2  # the input of each layer
    inside = (
        tokens * (10 * shape.hidden + 4 * shape.intermediate) * 2
    )  # what one layer keeps, flash attention
    logits = layout.batch * layout.completion * shape.vocabulary * (2 + 4 + 4)  # bf16, float32, gradient
    gathered = 2 * max(2 * shape.layer, shape.vocabulary * shape.hidden) if layout.zero3 else 0
    weights = 2 * shape.parameters
    return {
        "weights": weights / parts,
        "gathered layers": gathered,
        "adapter" if layout.rank else "float32 weights": 4 * trained / parts,
        "gradients": (4 if layout.rank else 2) * trained / parts,
        "optimizer": 8 * trained / parts,
        "activations": kept + inside if layout.checkpointing else shape.layers * inside + kept,
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
    if layout.colocated_share:
        sizes["vLLM beside it"] = layout.colocated_share * gpu_gib * GIB
    yield "training", sizes, gpu_gib
    if layout.server_share is not None:
        yield "server", server_bytes(shape, layout), 0.9 * layout.server_share * gpu_gib
