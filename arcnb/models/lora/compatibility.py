"""Does this LoRA adapter belong to this model? Answered from names and shapes, before anything is loaded.

An adapter says which model it was trained on (`base_model_name_or_path`), but folders move and the
embedded model lives in a different cache on every machine. So a name decides only if it leads somewhere:
to a folder with other weights, or to another hub id. The shapes of the LoRA matrices decide always;
they also catch another size, another number of layers and another vocabulary.
"""

import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.reading import read_object
from arcnb.models.embedded import FOLDER_NAME, HUB_ID, cache_folder

WEIGHTS = "adapter_model.safetensors"
MERGED = "merged"  # folder, in the cache, of models with an adapter folded in
_PIECE, _PIECES = 1 << 14, 256  # bytes of a piece, and pieces, that are read of a large weight file
_QUANTIZED_NAMES = ("-unsloth-bnb-4bit", "-bnb-4bit")
ENDS = ("embed_tokens", "lm_head")  # where tokens come in and go out; with tied embeddings one matrix
# What settings of peft's (0.21) make of a LoRA beyond two matrices a layer, all of one rank and scale.
_BEYOND = (
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "use_qalora",
    "use_bdlora",
    "kasa_config",
    "monteclora_config",
)
# Ways to begin a LoRA (`init_lora_weights`) that take a part out of the model's own weights, at each load.
_TAKING = ("pissa", "olora", "corda", "loftq", "lora_ga")


def check_adapter(adapter: Path, model: Path, model_name: str) -> None:
    """Raises ArcnbError unless the folder `adapter` is a LoRA adapter for the model in folder `model`.

    `model_name` is the name under which the user asked for the model (for hub ids and messages).
    Models without safetensors, and quantized ones, whose weights are packed, are judged by name only.
    """
    settings = adapter_settings(adapter)
    trained_on = str(settings.get("base_model_name_or_path") or "")
    shapes = tensor_shapes(adapter / WEIGHTS)
    if trained_on and _is_other_model(trained_on, model, model_name):
        raise ArcnbError(f"adapter {adapter} was trained on {trained_on}, not on model {model_name!r}")
    if (problem := _misfit(shapes, _model_shapes(model))) is not None:
        origin = f" (it was trained on {trained_on})" if trained_on else ""
        raise ArcnbError(f"adapter {adapter} does not fit model {model_name!r}: {problem}{origin}")


def check_targets(names: Iterable[str], model: Path, model_name: str) -> None:
    """ArcnbError for names of a fresh LoRA's target_modules that no layer of the model in this folder has,
    and for ENDS: TRL (1.16) trains no LoRA of a head, and vLLM applies none of either as it was trained.

    peft passes over names that do not fit as long as another one does. Of a model whose shapes cannot be read
    only ENDS are known.
    """
    names = list(names)
    if ends := [name for name in names if name.rpartition(".")[2] in ENDS]:
        raise ArcnbError(
            f"lora.target_modules: a LoRA of {' and '.join(ends)} cannot be used later; name inner "
            "layers alone"
        )
    # Quantized layers keep their weights under names such as `qweight`.
    layers = {name.rpartition(".")[0] for name, shape in _stored_shapes(model).items() if len(shape) == 2}
    missing = [name for name in names if not any(f".{layer}".endswith(f".{name}") for layer in layers)]
    if layers and missing:
        wanted = ", ".join(map(repr, missing))
        there = ", ".join(sorted({layer.rpartition(".")[2] for layer in layers} - {*ENDS}))
        raise ArcnbError(f"lora.target_modules: {model_name} has no layer {wanted}; there are {there}")


def is_quantized(model: Path) -> bool:
    """Whether the weights in a model's folder are stored in fewer bits, by GPTQ, AWQ, bitsandbytes and so on:
    an adapter is then applied beside them, and cannot be merged into them."""
    config = model / "config.json"
    return config.is_file() and bool(read_object(config).get("quantization_config"))


def adapter_rank(adapter: Path) -> int:
    """Largest LoRA rank in the adapter's settings (engines reserve memory by it)."""
    settings = adapter_settings(adapter)
    return max([int(settings.get("r", 8)), *map(int, (settings.get("rank_pattern") or {}).values())])


def adapted_modules(adapter: Path) -> list[str]:
    """Sorted names of the kinds of layers that the adapter has matrices for (q_proj, ...). Its settings may
    say them by a pattern, or for some layers alone."""
    layers = {name.partition(".lora_")[0] for name in tensor_shapes(adapter / WEIGHTS) if ".lora_" in name}
    return sorted({layer.rpartition(".")[2] for layer in layers})


def beyond_matrices(settings: Mapping) -> list[str]:
    """The settings of an adapter (of its adapter_config.json) that make it more than two matrices a layer,
    all of one rank and scale."""
    return [name for name in _BEYOND if settings.get(name)] + changes_of_model(settings)


def changes_of_model(settings: Mapping) -> list[str]:
    """Those of them by which peft changes the model's own weights when it loads the adapter, to stay."""
    biased = settings.get("bias", "none") != "none"
    taking = str(settings.get("init_lora_weights")).lower().startswith(_TAKING)
    return ["bias"] * biased + ["init_lora_weights"] * taking


def check_apart(adapter: Path) -> None:
    """ArcnbError for a LoRA that vLLM (0.23 to 0.31) cannot apply beside a model, or applies wrongly: it
    takes one rank and scale for all layers, and of a tied head it leaves a LoRA out."""
    if more := beyond_matrices(adapter_settings(adapter)) + changed_ends(adapter):
        raise ArcnbError(
            f"vllm cannot apply adapter {adapter} beside the model, since it has {', '.join(more)}; use "
            "backend=transformers, or open an engine for it alone, without max_lora_rank, which merges it"
        )


def check_starting(adapter: Path, model: Path, vllm: bool = False) -> None:
    """ArcnbError for an adapter that a training by TRL cannot go on with: a LoRA of ENDS, or, where vLLM is
    handed the weights of a model whose ENDS are one matrix, a whole one of them in its place."""
    shapes = tensor_shapes(adapter / WEIGHTS)
    ends = [end for end in ENDS if any(f".{end}.lora_" in name for name in shapes)]
    if not ends and vllm and "lm_head.weight" not in _stored_shapes(model):
        ends = changed_ends(adapter)
    if ends:
        raise ArcnbError(
            f"adapter {adapter} changes {' and '.join(ends)}, which training cannot go on with; start from "
            "one of inner layers alone"
        )


def changed_ends(adapter: Path) -> list[str]:
    """Those of ENDS that the adapter changes, by a LoRA or as a whole."""
    layers = {part for name in tensor_shapes(adapter / WEIGHTS) for part in name.split(".")}
    return [name for name in ENDS if name in layers]


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a safetensors file; reads the header only."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ArcnbError(f"{path} is not a readable safetensors file: {error}") from error


def check_weight_files(model: Path) -> None:
    """ArcnbError where a file that the model's index names is missing, or one is cut short; heads alone are
    read."""
    index = model / "model.safetensors.index.json"
    named = read_object(index).get("weight_map") if index.is_file() else {}
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise ArcnbError(f"{index}: weight_map does not say which file holds which weight")
    if missing := sorted(name for name in {*named.values()} if not (model / name).is_file()):
        raise ArcnbError(f"model folder {model} lacks {missing[0]}, which {index.name} names; copy it again")
    for path in sorted(model.glob("*.safetensors")):
        tensor_shapes(path)


def adapter_settings(adapter: Path) -> dict:
    """What stands in a LoRA folder's adapter_config.json; ArcnbError where it is none, or one that does
    not act on every token, or not alike at every load."""
    if not adapter.is_dir():
        raise ArcnbError(f"adapter folder {adapter} does not exist")
    path = adapter / "adapter_config.json"
    if not path.is_file() or not (adapter / WEIGHTS).is_file():
        missing = path.name if not path.is_file() else WEIGHTS
        raise ArcnbError(f"{adapter} is not an adapter folder: {missing} is missing")
    settings = read_object(path)
    if settings.get("peft_type", "LORA") != "LORA":
        raise ArcnbError(f"adapter {adapter} is of type {settings['peft_type']}; only LORA is supported")
    if settings.get("alora_invocation_tokens"):
        raise ArcnbError(
            f"adapter {adapter} acts behind certain tokens alone (alora_invocation_tokens); only LoRAs that "
            "always act are supported"
        )
    if (begun := str(settings.get("init_lora_weights"))).startswith("pissa_niter"):
        raise ArcnbError(
            f"adapter {adapter} has init_lora_weights={begun!r}, by which it is another one at every load; "
            "save it by peft with path_initial_model_for_weight_conversion"
        )
    return settings


def _is_other_model(trained_on: str, model: Path, model_name: str) -> bool:
    """Whether the name in the adapter leads to a model that certainly differs from the model in `model`."""
    if trained_on == "default" or Path(trained_on).name == FOLDER_NAME:
        base = cache_folder() / "models" / FOLDER_NAME
    else:
        base = Path(trained_on).expanduser()
    if base.is_dir():
        return base.resolve() != model.resolve() and not weights_digest(base) == weights_digest(model) != ""
    if base.parent.name == MERGED:  # on another machine; it is named after its content
        return base.name != model.name
    asked = HUB_ID if model_name == "default" else model_name
    both_are_hub_ids = _looks_like_hub_id(trained_on) and _looks_like_hub_id(asked)
    return both_are_hub_ids and _bare_name(trained_on) != _bare_name(asked)


def _looks_like_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not os.path.exists(name)


def _bare_name(hub_id: str) -> str:
    """The model's name without organisation and 4-bit suffix: copies of one model differ in those."""
    name = hub_id.split("/")[-1].lower()
    for suffix in _QUANTIZED_NAMES:
        name = name.removesuffix(suffix)
    return name


def weights_digest(model: Path) -> str:
    """What tells models apart that are saved under one path, 16 hexadecimal digits; "" without weight files.

    Names and sizes of the files, and pieces of them from one end to the other: reading all of a large model
    takes minutes. A training changes whole layers, its ends perhaps not: a merged LoRA leaves embeddings.
    """
    files = sorted([*model.glob("*.safetensors"), *model.glob("*.bin")])
    digest = sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with open(path, "rb") as file:
            if size <= _PIECE * _PIECES:
                digest.update(file.read())
                continue
            for i in range(_PIECES):
                file.seek(i * (size - _PIECE) // (_PIECES - 1))
                digest.update(file.read(_PIECE))
    return digest.hexdigest()[:16] if files else ""


def _stored_shapes(model: Path) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(model.glob("*.safetensors")):
        shapes.update(tensor_shapes(path))
    return shapes


def _model_shapes(model: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the model's tensors by name; empty if not readable (other formats, quantized)."""
    shapes = _stored_shapes(model)
    if is_quantized(model) or any(name.endswith((".absmax", ".quant_map")) for name in shapes):
        return {}
    if shapes and "lm_head.weight" not in shapes and "model.embed_tokens.weight" in shapes:  # tied
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    return shapes


def _misfit(adapter: dict[str, tuple[int, ...]], model: dict[str, tuple[int, ...]]) -> str | None:
    """The first adapter tensor that has no place in the model, in words; None if all fit.

    For a layer with weight [out, in], lora_A is [r, in] and lora_B [out, r]; for embeddings [tokens, width],
    lora_embedding_A is [r, tokens] and lora_embedding_B [width, r]. Any other tensor is one of the model's,
    in its place (modules_to_save) or beside its LoRA (base_layer), and has its shape.
    """
    if not model:
        return None
    for name, shape in adapter.items():
        inner = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        layer = inner.split(".lora_")[0]
        target = model.get(f"{layer}.weight" if layer != inner else inner)
        if target is None:
            return f"the model has no layer {layer}"
        if ".lora_A." in inner:
            fits, wanted = shape[-1] == target[-1], f"[r, {target[-1]}]"
        elif ".lora_B." in inner:
            fits, wanted = shape[0] == target[0], f"[{target[0]}, r]"
        elif inner.endswith(".lora_embedding_A"):
            fits, wanted = shape[-1] == target[0], f"[r, {target[0]}]"
        elif inner.endswith(".lora_embedding_B"):
            fits, wanted = shape[0] == target[-1], f"[{target[-1]}, r]"
        elif ".lora_" in inner:
            continue  # lora_magnitude_vector: covered by the others of its layer
        else:
            fits, wanted = shape == target, str(list(target))
        if not fits:
            return f"{inner} has shape {list(shape)}, the model needs {wanted}"
    return None
