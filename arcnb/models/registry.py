"""Model and adapter names, as notebooks write them, turned into checked folders.

A model is `default` (the embedded SmolLM2-135M-Instruct), a folder, or a hub id `org/name`, which is
found in the hub's own cache or downloaded into it. An adapter is nothing (`None`, `""`), `default` (the
one shipped for the embedded model), `auto` (that one for the embedded model, none for another), or a folder.

    model = resolve_model("default")
    adapter = resolve_adapter("default", model)
    tokenizer = load_tokenizer(model)

All checks come before any weight is loaded, and every failure is one sentence.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.imports import nothing_collected
from arcnb.machine.reading import read_object
from arcnb.models.embedded import embedded_folder, embedded_model
from arcnb.models.lora.compatibility import adapter_settings, check_adapter, check_weight_files
from arcnb.plans import refusals

SHIPPED_ADAPTERS = Path(__file__).parent / "adapters"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
# Pad tokens of the model families, best first; never the end-of-turn token (see load_tokenizer).
_PAD_TOKENS = (
    "<|finetune_right_pad_id|>",
    "<|endoftext|>",
    "<pad>",
    "<|pad|>",
    "[PAD]",
    "<|PAD_TOKEN|>",
    "<unk>",
)


@dataclass(frozen=True)
class ModelPath:
    """A model that exists on this machine: the name it was asked for by, and its folder."""

    name: str
    folder: Path

    @property
    def path(self) -> str:
        """The folder as the string that transformers and vLLM take."""
        return str(self.folder)

    @property
    def context(self) -> int | None:
        """Longest sequence, in tokens, that the model was built for; None if its config does not say."""
        return self._said("max_position_embeddings")

    @property
    def vocabulary(self) -> int | None:
        """Tokens that the model knows, from 0 on; None if its config does not say."""
        return self._said("vocab_size")

    @property
    def end_ids(self) -> list[int]:
        """Tokens that end a completion, whatever the tokenizer says; none if its settings name none."""
        settings = self.folder / "generation_config.json"
        named = (
            read_object(settings).get("eos_token_id") if settings.is_file() else self._said("eos_token_id")
        )
        return named if isinstance(named, list) else [] if named is None else [named]

    def _said(self, name: str) -> int | None:
        config = read_object(self.folder / "config.json")
        return config.get(name) or (config.get("text_config") or {}).get(name)


def resolve_model(name: str | Path | ModelPath, need_weights: bool = True) -> ModelPath:
    """The checked folder of a model.

    `need_weights=False` accepts a folder with config and tokenizer only (random weights, benchmarks).
    Raises ArcnbError: not found, no tokenizer, no weights, an adapter of another model.
    """
    if isinstance(name, ModelPath):
        return name
    if (found := model_here(name, need_weights)) is not None:
        return found
    if str(name) == "default":
        return ModelPath("default", embedded_model())
    folder = _from_hub(str(name))
    _check_model_folder(folder, need_weights)
    return ModelPath(str(name), folder)


def model_here(name: str | Path, need_weights: bool = True) -> ModelPath | None:
    """As `resolve_model`, but None where the model has yet to be built, or asked of the hub."""
    text = str(name)
    if not text:  # which Path takes for the current folder
        raise ArcnbError('model "" names no model; give default, a folder or a hub id')
    if text == "default":
        folder = embedded_folder()
        return ModelPath(text, folder) if folder else None
    folder = Path(text).expanduser()
    if folder.is_file():
        raise ArcnbError(f"model {folder} is a file; name the folder that it is in")
    if not folder.is_dir():
        if not _HUB_ID.fullmatch(text) or folder.parent.is_dir():
            raise ArcnbError(
                f"model folder {folder} does not exist (and {text!r} is no hub id of the form org/name)"
            )
        return None
    _check_model_folder(folder, need_weights)
    return ModelPath(text, folder)


def name_problems(model: str, adapters: Iterable[str] = (), need_weights: bool = True) -> list[str]:
    """What is wrong with the names of a model and of adapters for it, a sentence each. Nothing is built or
    fetched: whether adapters fit a model that is not here yet, is not asked."""
    found = refusals(model_here, model, need_weights)
    here = None if found else model_here(model, need_weights)
    for adapter in adapters:
        fitting = partial(resolve_adapter, adapter, here) if here else partial(find_adapter, adapter, model)
        found += refusals(fitting)
    return found


def resolve_adapter(name: str | Path | None, model: ModelPath) -> Path | None:
    """Folder of a LoRA adapter that fits `model`; None for `None` or an empty name. Raises ArcnbError."""
    folder = find_adapter(name, model.name)
    if folder is not None:
        check_adapter(folder, model.folder, model.name)
    return folder


def find_adapter(name: str | Path | None, model: str) -> Path | None:
    """As `resolve_adapter` for the model of that name, but whether the adapter fits it is not asked."""
    name = adapter_name(name, model)
    if name is None or str(name) == "":
        return None
    if str(name) == "default":
        folder = SHIPPED_ADAPTERS / "default"
        if not folder.is_dir():
            raise ArcnbError(
                "no default adapter is shipped with this version; name an adapter folder or leave it empty"
            )
    else:
        folder = Path(name).expanduser()
    adapter_settings(folder)
    return folder


def adapter_name(name: str | Path | None, model: str) -> str | Path | None:
    """The name of an adapter for the model of that name, with what "auto" stands for in its place."""
    if str(name) != "auto":
        return name
    return "default" if model == "default" else ""


def load_tokenizer(model: ModelPath):
    """The model's tokenizer, padding on the left, with a pad token that differs from the end-of-turn token.

    Some published models pad with their end token; training then masks the end of every answer and the
    model never learns to stop. The end token is that by which the chat template ends a turn, where the
    model's settings name it: the model is then taught to end answers as it does. ArcnbError also where the
    tokenizer has more tokens than the model knows; those that were added to it may be beyond, as long as no
    prompt has them.
    """
    try:
        with nothing_collected():  # transformers loads most of itself when it is asked for something
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(model.path)
    except Exception as error:  # a damaged file surfaces as whatever its first misread field causes
        raise ArcnbError(f"the tokenizer in {model.path} cannot be loaded: {_first_line(error)}") from error
    known = model.vocabulary
    if known and tokenizer.vocab_size > known:
        raise ArcnbError(
            f"the tokenizer in {model.path} has {tokenizer.vocab_size} tokens, and the model knows {known} "
            "(vocab_size in its config.json); it is another model's"
        )
    tokenizer.padding_side = "left"
    if (end := _turn_end(tokenizer)) in model.end_ids:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    pad = tokenizer.pad_token_id
    if pad is None or pad == tokenizer.eos_token_id or (known and pad >= known):
        vocabulary = tokenizer.get_vocab()
        for token in _PAD_TOKENS:
            number = vocabulary.get(token)
            if number not in (None, tokenizer.eos_token_id) and (not known or number < known):
                tokenizer.pad_token = token
                break
        else:
            raise ArcnbError(
                f"the tokenizer in {model.path} has no pad token that differs from its end token "
                f"{tokenizer.eos_token!r}; set one in its tokenizer_config.json"
            )
    return tokenizer


def _turn_end(tokenizer) -> int | None:
    """The token by which the chat template ends an answer; None where it does not begin what follows one."""
    import jinja2

    answer = "⟦answer⟧"  # which no template holds
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except (ValueError, jinja2.TemplateError):  # there is none, or it refuses: whoever makes prompts says so
        return None
    ids = tokenizer(text.partition(answer)[2], add_special_tokens=False)["input_ids"]
    return ids[0] if ids and ids[0] in tokenizer.added_tokens_decoder else None


def load_network(model: ModelPath, **settings):
    """The model by transformers, `settings` as from_pretrained takes them. ArcnbError where its files are
    damaged, of an unknown kind, or not those of its config: what they lack would else be random."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        net, found = AutoModelForCausalLM.from_pretrained(model.path, output_loading_info=True, **settings)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # a damaged file surfaces as whatever its first misread field causes
        differ = "ignore_mismatched_sizes" in str(error)
        why = "its weights have other sizes than its config.json says" if differ else _first_line(error)
        raise ArcnbError(f"model {model.name!r} in {model.path} cannot be loaded: {why}") from error
    if missing := sorted(found["missing_keys"]):
        raise ArcnbError(
            f"model {model.name!r} in {model.path} cannot be loaded: its weight files lack {len(missing)} "
            f"weights that its config.json asks for, {missing[0]} first"
        )
    return net


def only_tokenise() -> None:
    """To be called in a process that uses no model: tokenizers then load without torch, which takes seconds
    and 300 MB."""
    if not sys.modules.keys().isdisjoint(("torch", "transformers")):  # a forked process has them for nothing
        return
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # which would say that there are no models
    sys.modules["torch"] = None  # type: ignore[assignment]  # how Python spells "not installed"
    try:
        with nothing_collected():
            from transformers import AutoTokenizer  # noqa: F401
    finally:
        del sys.modules["torch"]


def _check_model_folder(folder: Path, need_weights: bool) -> None:
    if not (folder / "config.json").is_file():
        hint = "; it is an adapter folder" if (folder / "adapter_config.json").is_file() else ""
        raise ArcnbError(f"{folder} is not a model folder: config.json is missing{hint}")
    read_object(folder / "config.json")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ArcnbError(f"model folder {folder} has no tokenizer (none of {', '.join(_TOKENIZER_FILES)})")
    if need_weights and not any(next(folder.glob(pattern), None) for pattern in _WEIGHT_PATTERNS):
        raise ArcnbError(f"model folder {folder} has no weights (*.safetensors)")
    if need_weights:
        check_weight_files(folder)


def _from_hub(hub_id: str) -> Path:
    """Folder of a hub model in the hub's own cache, downloaded if need be."""
    from huggingface_hub import snapshot_download

    unused = ["original/*", "consolidated*", "*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack"]
    try:
        return Path(snapshot_download(hub_id, ignore_patterns=unused))
    except Exception as error:  # the hub client has dozens of error classes, all of which mean: not here
        raise ArcnbError(
            f"model {hub_id!r} is neither a folder nor available from the hub: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line}"


def adapter_digest(folder: Path) -> str:
    """A digest of an adapter's shape and weights, 16 hexadecimal digits: by its path alone it looks like an
    adapter that was trained there later. "" where the folder has no adapter."""
    files = sorted(folder.glob("adapter_*"))
    return _digest_of(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=64)  # a search asks before each sampling
def _digest_of(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, *_ in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16] if files else ""
