"""Generation by plain transformers: no engine to install or start, every step visible, CPU or GPU.

Requests go in batches of `max_num_seqs` completions, padded on the left; a prompt's completions share one
reading of the prompt. Rows that have ended leave the batch. The same call gives the same completions; with
other neighbours in the batch the sums round differently, which can tip a close choice.
"""

import gc
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from arcnb.errors import ArcnbError
from arcnb.machine.gpus import GpuChoice
from arcnb.machine.imports import nothing_collected
from arcnb.machine.processes import usable_cores
from arcnb.models.lora.compatibility import adapter_settings, changes_of_model
from arcnb.models.lora.precision import four_bit_config, four_bits_problem
from arcnb.models.prompts.chat import padded_left
from arcnb.models.registry import ModelPath, adapter_digest, load_network, load_tokenizer, resolve_adapter
from arcnb.models.sampling.backends import (
    CLOSED,
    Backend,
    Completion,
    Draw,
    EngineOptions,
    Request,
    Sampling,
    check_tokens,
    context_length,
    draws,
    fits,
    skipped,
)

_ADAPTERS_KEPT = 4  # in memory, the latest


@dataclass
class _Row(Draw):
    """A completion in the making."""

    ids: list[int] = field(default_factory=list)
    logprob: float = 0.0
    finish: str | None = None


class TransformersBackend(Backend):
    """See the module; opened by `arcnb.models.sampling.backends.open_backend`."""

    name = "transformers"

    @nothing_collected()
    def __init__(self, model: ModelPath, adapter: Path | None, options: EngineOptions):
        import torch

        if options.load_format != "auto" or options.tensor_parallel_size != 1:
            raise ArcnbError("load_format and tensor_parallel_size are for the backend vllm only")
        self.model, self.options = model, options
        self.context = context_length(model, options)
        self.tokenizer, self._vocabulary = load_tokenizer(model), model.vocabulary
        self._gpus = GpuChoice()
        if not torch.cuda.is_initialized():  # else it is too late to choose
            self._gpus.take()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._threads_before = torch.get_num_threads()
        # One core stays free for the programs that run while it samples: threads that wait for one another at
        # every operation are ten times slower as soon as one of them has to wait for a busy core. Runs that
        # share the machine were told to take fewer.
        torch.set_num_threads(max(1, min(self._threads_before, usable_cores() - 1)))
        self._rows_at_once = options.max_num_seqs or (64 if self.device == "cuda" else 16)
        self._net = _load(model, options, self.device)
        self._adapter_names: dict[str, str] = {}
        self._n_adapters = 0
        self._lasting = ""  # digest of an adapter that has changed the model's own weights
        self._cancelled: set[Hashable] = set()
        self._end_ids = _end_ids(self._net, self.tokenizer)
        self.use_adapter(adapter)

    def use_adapter(self, adapter: str | Path | None) -> None:
        """Generates with another LoRA adapter of the same model, or with none, from the next call on.

        ArcnbError behind an adapter that has changed the model's own weights, as by biases.
        """
        folder = resolve_adapter(adapter, self.model)
        key = adapter_digest(folder) if folder else ""
        if self._lasting not in ("", key):
            how = " and ".join(changes_of_model(adapter_settings(self.adapter)))
            raise ArcnbError(
                f"adapter {self.adapter} has changed the model's own weights (its {how}); open another "
                "engine to change adapters"
            )
        self.adapter = folder
        if folder is None:
            if self._adapter_names:
                self._net.base_model.disable_adapter_layers()
            return
        if key not in self._adapter_names:  # a folder written again counts as another adapter
            from peft import PeftModel

            self._lasting = key if changes_of_model(adapter_settings(folder)) else ""
            self._n_adapters += 1
            name = f"adapter{self._n_adapters}"
            if self._adapter_names:
                self._net.load_adapter(str(folder), name)
            else:
                self._net = PeftModel.from_pretrained(self._net, str(folder), adapter_name=name)
            self._adapter_names[key] = name
            if len(self._adapter_names) > _ADAPTERS_KEPT:  # a search brings a new one every round
                self._net.delete_adapter(self._adapter_names.pop(next(iter(self._adapter_names))))
        self._net.base_model.enable_adapter_layers()
        self._net.set_adapter(self._adapter_names[key])
        self._net.eval()

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Completion]:
        if self._net is None:
            raise ArcnbError(CLOSED)
        self._cancelled = set()
        rows: list[_Row] = []
        for request in requests:
            if request.key in self._cancelled:
                continue
            check_tokens(request, self._vocabulary)
            if not fits(request, sampling, self.context):
                yield from skipped(request)
                continue
            for row in draws(request, _Row):
                rows.append(row)
                if len(rows) == self._rows_at_once:
                    yield from self._generate_batch(rows, sampling)
                    rows = []
        yield from self._generate_batch(rows, sampling)

    def cancel(self, key: Hashable) -> None:
        self._cancelled.add(key)

    def close(self) -> None:
        """Frees the model's memory."""
        import torch

        if self._net is None:
            return
        self._net = None
        self._gpus.release()
        torch.set_num_threads(self._threads_before)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _generate_batch(self, rows: list[_Row], sampling: Sampling) -> Iterator[Completion]:
        import torch

        rows = [row for row in rows if row.request.key not in self._cancelled]
        if not rows:
            return
        try:
            batch = _Batch(self._net, self.tokenizer, self._end_ids, rows, sampling, self.device)
            while batch.rows:
                if batch.logits.isnan().any():
                    adapted = f" with adapter {self.adapter}" if self.adapter else ""
                    raise ArcnbError(
                        f"model {self.model.name!r}{adapted} computes what is no number (nan); its weights "
                        "are damaged"
                    )
                for row in batch.step(self._cancelled):
                    if row.request.key not in self._cancelled:
                        yield self._completion(row, sampling)
        except torch.cuda.OutOfMemoryError as error:
            raise ArcnbError(
                f"the GPU ran out of memory with {len(rows)} completions at a time; "
                f"lower max_num_seqs to {max(1, len(rows) // 2)}"
            ) from error

    def _completion(self, row: _Row, sampling: Sampling) -> Completion:
        text = self.tokenizer.decode(row.ids, skip_special_tokens=True)
        logprob = row.logprob if sampling.logprob else None
        return row.completion(text, row.ids, row.finish, logprob)


class _Batch:
    """Rows that are generated together, one token a step; `rows` shrinks as they end."""

    def __init__(self, net, tokenizer, end_ids: set[int], rows: list[_Row], sampling: Sampling, device: str):
        import torch

        self.net, self.tokenizer, self.end_ids, self.sampling = net, tokenizer, end_ids, sampling
        self.rows, self.device = rows, device
        uniforms = np.stack([uniform_numbers(row.seed, sampling.max_tokens) for row in rows])
        self.uniforms = torch.from_numpy(uniforms).to(device)
        prompts = list({id(row.request): row.request for row in rows}.values())
        which = {id(prompt): i for i, prompt in enumerate(prompts)}
        self._read(prompts, torch.tensor([which[id(row.request)] for row in rows], device=device))

    def _read(self, prompts: list[Request], of_row) -> None:
        """Runs the model over each prompt once and spreads the result over the rows."""
        import torch

        padded = padded_left([prompt.prompt_ids for prompt in prompts], self.tokenizer.pad_token_id)
        ids, mask = (one.to(self.device) for one in padded)
        with torch.inference_mode():
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            out = self.net(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1
            )
            self.cache = out.get("past_key_values")
            if self.cache is None:
                raise ArcnbError(
                    f"backend=transformers samples from no {type(self.net).__name__}, whose state has a form "
                    "of its own; take vllm"
                )
            self.cache.reorder_cache(of_row)
            self.logits, self.mask = out.logits[of_row, -1], mask[of_row]
            self.seen = None
            if self.sampling.repetition_penalty != 1:
                seen = torch.zeros(
                    (len(prompts), out.logits.shape[-1]), dtype=torch.int64, device=self.device
                )
                self.seen = seen.scatter_add_(1, ids, mask)[of_row].bool()

    def step(self, cancelled: set[Hashable]) -> list[_Row]:
        """Draws one token for each row and advances the rows that go on. Returns the rows that have ended."""
        import torch

        with torch.inference_mode():
            position = len(self.rows[0].ids)  # the same for all: they started together
            tokens = choose_tokens(self.logits, self.sampling, self.uniforms[:, position], self.seen)
            if self.sampling.logprob:
                logprobs = self.logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0].tolist()
                for row, logprob in zip(self.rows, logprobs, strict=True):
                    row.logprob += logprob
            for row, token in zip(self.rows, tokens.tolist(), strict=True):
                row.ids.append(token)
                row.finish = self._finish(row)
            if self.seen is not None:
                self.seen.scatter_(1, tokens[:, None], True)
            self._advance(tokens, cancelled)
        return self.ended

    def _advance(self, tokens, cancelled: set[Hashable]) -> None:
        """Drops the rows that have ended or are cancelled and feeds the others' tokens to the model."""
        import torch

        dropped = [row.finish is not None or row.request.key in cancelled for row in self.rows]
        self.ended = [row for row in self.rows if row.finish]
        if any(dropped):
            keep = torch.tensor(
                [i for i, gone in enumerate(dropped) if not gone], device=self.device, dtype=torch.long
            )
            self.rows = [row for row, gone in zip(self.rows, dropped, strict=True) if not gone]
            if not self.rows:
                return
            self.cache.reorder_cache(keep)
            tokens, self.mask, self.uniforms = tokens[keep], self.mask[keep], self.uniforms[keep]
            self.seen = None if self.seen is None else self.seen[keep]
        self.mask = torch.cat([self.mask, self.mask.new_ones((len(self.rows), 1))], dim=-1)
        out = self.net(
            input_ids=tokens[:, None],
            attention_mask=self.mask,
            position_ids=self.mask.sum(-1, keepdim=True) - 1,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.logits = out.logits[:, -1]

    def _finish(self, row: _Row) -> str | None:
        if row.ids[-1] in self.end_ids and not self.sampling.ignore_eos:
            return "stop"
        return "length" if len(row.ids) == self.sampling.max_tokens else None


def uniform_numbers(seed: int, n: int) -> np.ndarray:
    """The numbers in [0, 1) that decide the tokens of the completion with this seed."""
    return np.random.default_rng(seed).random(n)


def choose_tokens(logits, sampling: Sampling, uniforms, seen=None):
    """The next token of each row: where the row's uniform number falls in the cumulated probabilities.

    So neither the other rows nor their number decide it. The filters act in the order of vLLM.

    logits: float tensor (rows, vocabulary). uniforms: float64 tensor (rows,). seen: bool tensor like logits,
    the tokens in prompt and completion so far; needed for a repetition penalty only. Returns int64 (rows,).
    """
    import torch
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = logits.float()
    if sampling.repetition_penalty != 1:
        penalty = sampling.repetition_penalty
        logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    if sampling.temperature == 0:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    if sampling.min_p > 0:
        logits = MinPLogitsWarper(sampling.min_p)(None, logits)
    if sampling.top_k > 0:
        logits = TopKLogitsWarper(sampling.top_k)(None, logits)
    if sampling.top_p < 1:
        logits = TopPLogitsWarper(sampling.top_p)(None, logits)
    cumulated = logits.double().softmax(-1).cumsum(-1)
    # right=True: the first token whose cumulated probability exceeds the number; it cannot have probability 0
    return torch.searchsorted(cumulated, uniforms[:, None] * cumulated[:, -1:], right=True)[:, 0]


def _load(model: ModelPath, options: EngineOptions, device: str):
    """The network, ready for inference; on a CPU in float32, since most CPUs are slow at bf16."""
    import torch

    settings = {"dtype": torch.float32 if (device, options.dtype) == ("cpu", "auto") else options.dtype}
    if options.load_in_4bit:
        if problem := four_bits_problem():
            raise ArcnbError(problem)
        compute_dtype = torch.float32 if device == "cpu" else torch.bfloat16
        settings["quantization_config"] = four_bit_config(compute_dtype)
        settings["device_map"] = {"": 0 if device == "cuda" else device}
    try:
        net = load_network(model, **settings)
        return (net if options.load_in_4bit else net.to(device)).eval()
    except torch.cuda.OutOfMemoryError as error:
        raise ArcnbError(
            f"model {model.name!r} does not fit the GPU's free memory; use load_in_4bit, or a smaller model"
        ) from error


def _end_ids(net, tokenizer) -> set[int]:
    """The tokens that end a completion: the tokenizer's, and those that the model's settings name."""
    named = net.generation_config.eos_token_id
    named = named if isinstance(named, list) else [named]
    return {i for i in (tokenizer.eos_token_id, *named) if i is not None}
