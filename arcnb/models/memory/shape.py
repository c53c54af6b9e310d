"""A decoder's sizes, as its config.json and the heads of its weight files say them, and what follows from
them for memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.reading import read_object
from arcnb.models.lora.compatibility import is_quantized, tensor_shapes

GIB = 1 << 30
# Of the models of notebook 09's profiles, so that a dry run needs none of their files.
_QWEN = {
    "Qwen2.5-1.5B": (28, 1536, 8960, 12, 2, 128, 151936, True),
    "Qwen2.5-3B": (36, 2048, 11008, 16, 2, 128, 151936, True),
    "Qwen2.5-7B": (28, 3584, 18944, 28, 4, 128, 152064, False),
    "Qwen2.5-14B": (48, 5120, 13824, 40, 8, 128, 152064, False),
    "Qwen2.5-32B": (64, 5120, 27648, 40, 8, 128, 152064, False),
}


# Of decoders whose config says nothing of it when embeddings and head are one matrix: how their types begin.
_TIED = ("cohere", "ernie4_5", "gemma", "lfm2", "smollm3", "starcoder2")
# Of configs of models some of whose layers keep no keys and values, where nothing else says which.
_HYBRID = (
    "attn_layer_period",
    "attn_layer_indices",
    "attn_type_list",
    "block_types",
    "full_attn_idxs",
    "hybrid_layer_ids",
    "hybrid_override_pattern",
    "layers_block_type",
    "linear_attn_config",
    "ssm_cfg",
)


@dataclass(frozen=True)
class Shape:
    """A decoder with the layers of Llama: two norms, attention, gated MLP. head: width of a head.

    inner: width of the MLP that a token passes, of all its experts together; all_experts: of all that there
    are, 0 where there are no others. counted: parameters in the weight files, 0 where nobody counted. full:
    layers that keep keys and values of all tokens, None: all layers; windowed: layers that keep those of the
    last `window` tokens; others keep none. latent: numbers that a layer keeps of a token in their place
    (multi-head latent attention), 0: keys and values.
    """

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    tied: bool
    all_experts: int = 0
    counted: int = 0
    full: int | None = None
    windowed: int = 0
    window: int = 0
    latent: int = 0

    @classmethod
    def of(cls, config: Mapping) -> Shape:
        """By the entries of a config.json; sizes that it does not say, or not as one number, are 0."""
        config = dict(config) | dict(config.get("text_config") or {})
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        inner, all_experts = _mlp(config)
        return cls(
            _size(config, "num_hidden_layers"),
            hidden,
            inner,
            heads,
            heads if config.get("num_key_value_heads") is None else _size(config, "num_key_value_heads"),
            _size(config, "head_dim") or hidden // max(heads, 1),
            _size(config, "vocab_size"),
            _is_tied(config),
            all_experts,
            0,
            *_attention(config),
        )

    @property
    def _matrices(self) -> dict[str, tuple[int, int]]:
        """(in, out) of the seven matrices of a layer, those that LoRA adapts."""
        queries, keys = self.head * self.heads, self.head * self.kv_heads
        into, out = (self.hidden, self.inner), (self.inner, self.hidden)
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": into,
            "up_proj": into,
            "down_proj": out,
        }

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        others = 3 * self.hidden * (self.all_experts - self.inner) if self.all_experts else 0
        return sum(a * b for a, b in self._matrices.values()) + others + 2 * self.hidden

    @property
    def parameters(self) -> int:
        if self.counted:
            return self.counted
        return self.layers * self.layer + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def lora(self, rank: int) -> int:
        """Parameters of a LoRA of this rank on the seven matrices of every layer."""
        return self.layers * sum(rank * (a + b) for a, b in self._matrices.values())

    def cache(self, tokens: int) -> int:
        """Bytes of keys and values of a sequence, 16 bit; layers with a window keep what is in it."""
        per_layer = 2 * (self.latent or 2 * self.kv_heads * self.head)
        full = self.layers if self.full is None else self.full
        return per_layer * (full * tokens + self.windowed * min(tokens, self.window))

    def kept_per_token(
        self, trained: Sequence[str] | None = None, checkpointing: bool = False, float32: bool = False
    ) -> int:
        """Estimated bytes that one padded token keeps between forward and backward pass, in bfloat16.

        trained: names of the matrices that learn, by a LoRA or whole (None: all). Each keeps its input, and
        those with the same input keep one (on a GPU; copies of their own are spared by
        `arcnb.models.lora.precision`). float32: all weights are, and learn, under autocast. The weights, the
        logits and the CUDA context (about 1 GB together for 135M parameters) come on top.
        """
        queries, keys = self.head * self.heads, self.head * self.kv_heads
        # norms 8 (float32), queries and attention's output, keys and values, gate, its activation, and up
        layer = 8 * self.hidden + 4 * queries + 4 * keys + 6 * self.inner
        # Attention keeps the input of o_proj anyway.
        same_input = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
        names = {path.rpartition(".")[2] for path in trained or self._matrices}
        names = {same_input.get(name, name) for name in names}
        layer += sum(2 * {"o_proj": 0, "down_proj": self.inner}.get(name, self.hidden) for name in names)
        # Between the matrices all is float32 then, and the weights of the norms keep their inputs, too.
        layer += 14 * self.hidden if float32 else 0
        # Recomputing keeps the layers' inputs and the one layer that is at work.
        inputs = (4 if float32 else 2) * self.hidden * self.layers
        return inputs + layer if checkpointing else layer * (self.layers + 1)

    def kept_by_packing(self, length: int, checkpointing: bool = False) -> int:
        """Bytes that a packed row of so many tokens keeps besides, since its rows are blind to each other: in
        each layer a mask, and keys and values once for every head."""
        layer = 2 * length**2 + 4 * self.head * (self.heads - self.kv_heads) * length
        # Layers are computed again from one mask of a byte each, which waits.
        return length**2 + layer if checkpointing else layer * self.layers


def shape_of(model: str, folder: Path | None = None) -> Shape:
    """The shape of a model by its config.json, or of a known one by name. ArcnbError otherwise."""
    if folder is not None and (path := folder / "config.json").is_file():
        shape = Shape.of(read_object(path))
        if not (shape.layers and shape.hidden and shape.inner and shape.vocabulary):
            raise ArcnbError(f"{path} does not say the sizes of a plain decoder")
        return replace(shape, counted=_counted(folder))
    for name, sizes in _QWEN.items():
        if name.lower() in model.lower():
            return Shape(*sizes)
    raise ArcnbError(
        f"the size of model {model!r} is not known here; give its folder, or one of {', '.join(_QWEN)}"
    )


def weight_files(model: Path) -> list[Path]:
    """The files in a model's folder that its weights are loaded from."""
    index = model / "model.safetensors.index.json"
    if index.is_file():  # beside them there may be the same weights in one file, for other programs
        files = [model / name for name in {*read_object(index).get("weight_map", {}).values()}]
    else:
        files = list(model.glob("*.safetensors")) or list(model.glob("pytorch_model*.bin"))
    return [path for path in files if path.is_file()]


def _counted(model: Path) -> int:
    """Parameters in a folder's safetensors; 0 without, and of weights that are packed."""
    files = weight_files(model)
    if is_quantized(model) or any(path.suffix != ".safetensors" for path in files):
        return 0
    return sum(prod(shape) for path in files for shape in tensor_shapes(path).values())


def _size(config: Mapping, name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) else 0


def _mlp(config: Mapping) -> tuple[int, int]:
    """(inner, all_experts) of a layer, by the names of the model families; layers without experts, of which
    some models have a few, are taken for layers with."""
    inner = _size(config, "intermediate_size")
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((n for name in names if (n := _size(config, name))), 0)
    if experts <= 1:
        return inner, 0
    width = _size(config, "moe_intermediate_size") or inner
    shared = _size(config, "shared_expert_intermediate_size") or width * _size(config, "n_shared_experts")
    return shared + width * max(1, _size(config, "num_experts_per_tok")), shared + width * experts


def _is_tied(config: Mapping) -> bool:
    tied = config.get("tie_word_embeddings")
    return str(config.get("model_type", "")).startswith(_TIED) if tied is None else bool(tied)


def _attention(config: Mapping) -> tuple[int, int, int, int]:
    """(full, windowed, window, latent) of a Shape; never more than the model keeps, so 0 where it is not
    known."""
    layers, window = _size(config, "num_hidden_layers"), _size(config, "sliding_window")
    latent = _size(config, "kv_lora_rank")
    latent = latent and latent + _size(config, "qk_rope_head_dim")
    if kinds := config.get("layer_types"):
        # Some models' last layers read the keys and values of earlier ones.
        kinds = [str(kind) for kind in kinds][: layers - _size(config, "num_kv_shared_layers")]
        window = window or _size(config, "attention_chunk_size")
        full = sum(kind in ("full_attention", "attention") for kind in kinds)
        return full, sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds), window, latent
    if interval := _size(config, "full_attention_interval"):
        return layers // interval, 0, 0, latent
    if any(config.get(name) for name in _HYBRID):
        return 0, 0, 0, latent
    if window and config.get("use_sliding_window", True):
        return 0, layers, window, latent
    return layers, 0, 0, latent
