"""One way to sample from a model, whatever runs it: vLLM in process, vLLM servers, or plain transformers.

    with open_backend("auto", model="default") as backend:
        requests = [Request(prompt_ids, n=8, seed=derive_seed(0, task_id), key=task_id)]
        for completion in backend.generate(requests, Sampling(temperature=1.0, max_tokens=1024)):
            ...

Prompts go in as token ids, never as text (a template's begin-of-text token would be doubled). Completions
come out as soon as each is finished, in any order, while the rest is still being generated; requests are
taken from an iterator only as the engine has room, so a run of any length holds a bounded number of them.

Completion i of a request is sampled with the seed `derive_seed(request.seed, i)`. The same requests give the
same completions; in other company a completion may differ, since sums then round differently.

A request that does not fit the context is answered by completions with `finish_reason` "skipped": it is
never cut. Engines that cannot start, or die, raise ArcnbError with the cause.
"""

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcnb.arc.seeds import derive_seed
from arcnb.errors import ArcnbError
from arcnb.models.registry import ModelPath, resolve_adapter, resolve_model
from arcnb.values import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, SOME_SHARE, range_problem

# Of Sampling's numbers.
RANGES = {
    "temperature": NOT_NEGATIVE,
    "top_p": SOME_SHARE,
    "top_k": NOT_NEGATIVE,
    "min_p": SHARE,
    "repetition_penalty": POSITIVE,
    "max_tokens": COUNT,
}


@dataclass(frozen=True)
class Request:
    """`n` completions wanted for one prompt. `key` comes back with each of them.

    adapter: LoRA folder of this request alone, for engines that mix them (`adapters_at_once` above 1); None
    takes the one that the backend was told to use.
    """

    prompt_ids: Sequence[int]
    n: int = 1
    seed: int = 0
    key: Hashable = None
    adapter: Path | None = None

    def __post_init__(self):
        if self.n < 1:
            raise ArcnbError(f"request {self.key!r}: n is {self.n}, it must be positive")
        if not len(self.prompt_ids):
            raise ArcnbError(f"request {self.key!r}: the prompt is empty")


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. The defaults are the plain policy.

    temperature: 0 takes the likeliest token. top_k: 0 is off. max_tokens: longest completion.
    logprob: report the sum of the completion's log-probabilities under the plain policy (temperature 1, no
    top_p and so on). ignore_eos: go on to max_tokens past end tokens (benchmarks). seeded: every completion
    has its own seed; without, vLLM samples somewhat faster and a rerun gives the same prompts but other
    completions.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 1024
    logprob: bool = False
    ignore_eos: bool = False
    seeded: bool = True

    def __post_init__(self):
        for name, within in RANGES.items():
            if wanted := range_problem(getattr(self, name), within):
                raise ArcnbError(f"{name} is {getattr(self, name)}, it must be {wanted}")


@dataclass(frozen=True)
class Completion:
    """One sampled continuation of a prompt.

    finish_reason: "stop" (an end token), "length" (max_tokens reached) or "skipped" (prompt and
    max_tokens do not fit the context; nothing was generated). token_ids include the end token, text does not.
    logprob: sum over token_ids in nats, None unless asked for; token_logprobs: its parts, where the backend
    has them.
    """

    key: Hashable
    index: int
    text: str
    token_ids: Sequence[int]
    finish_reason: str
    logprob: float | None
    n_prompt_tokens: int
    seed: int
    token_logprobs: Sequence[float] | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """What a prediction's record says of it; half a character (a lone surrogate, say of a server), which
        no file takes, becomes U+FFFD."""
        return {
            "index": self.index,
            "completion": self.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
            "n_prompt_tokens": self.n_prompt_tokens,
            "n_tokens": len(self.token_ids),
            "finish_reason": self.finish_reason,
            "logprob": self.logprob,
        }


@dataclass
class Draw:
    """A completion that is to be made; backends add what they know of it."""

    request: Request
    index: int
    seed: int

    def completion(
        self, text: str, ids: Sequence[int], finish: str, logprob: float | None, of_tokens=None
    ) -> Completion:
        """What came of it."""
        key, n_prompt = self.request.key, len(self.request.prompt_ids)
        return Completion(key, self.index, text, ids, finish, logprob, n_prompt, self.seed, of_tokens)


def draws(request: Request, kind=Draw, **more) -> list:
    """The request's completions to be, as a subclass of Draw with `more` fields."""
    return [kind(request, index, derive_seed(request.seed, index), **more) for index in range(request.n)]


# What every engine says then: an interrupted cell has left the `with` that it was used in.
CLOSED = (
    "the engine was closed, as after an interrupt: open it again (in a notebook run the cell that opens it), "
    "and the work goes on"
)
CPU_CACHE_GB = 2.0


@dataclass(frozen=True)
class EngineOptions:
    """What the engine is started with; each backend uses what concerns it.

    max_model_len: longest prompt plus completion, in tokens (None: what the model was built for).
    gpu_memory_utilization: share of the GPU's memory that vLLM takes; None: 0.9, or what is free if that is
    less, as after a training in the same process.
    max_num_seqs: completions generated at the same time (None: the engine's default).
    tensor_parallel_size: GPUs that share one model. load_in_4bit: quantize the base (vLLM: on GPUs).
    enforce_eager: no compilation and CUDA graphs: starts sooner, runs slower (None: only on a CPU).
    enable_prefix_caching: compute a shared prompt once. dtype: of weights ("auto": the model's own,
    or float32 on a CPU that is slow at it).
    block_size: tokens of a block of vLLM's cache (None: its own choice); large ones are fewer to hash.
    load_format: "dummy" takes random weights (benchmarks). max_lora_rank: None takes the adapter's rank.
    max_loras: adapters that vLLM applies in one batch, see `Request.adapter`.
    kv_cache_gb: GiB for vLLM's cache; 0: CPU_CACHE_GB on a CPU, on a GPU what its share of memory leaves.
    With a number vLLM measures no free memory, so that several engines can open on a GPU at once; the share
    is then only what must be free at the start.
    server_urls: addresses of running vLLM servers; server_model: the name they serve the model under (None:
    the first they list); server_concurrency: completions in flight per server; server_timeout: seconds that
    one completion may take.
    log: file to which the engine's processes add what they say, for vLLM (None: a temporary one).
    """

    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    tensor_parallel_size: int = 1
    load_in_4bit: bool = False
    enforce_eager: bool | None = None
    enable_prefix_caching: bool = True
    block_size: int | None = None
    dtype: str = "auto"
    load_format: str = "auto"
    max_lora_rank: int | None = None
    max_loras: int = 1
    kv_cache_gb: float = 0.0
    server_urls: tuple[str, ...] = field(default=("http://localhost:8000",))
    server_model: str | None = None
    server_concurrency: int = 64
    server_timeout: float = 3600.0
    log: Path | None = None


class Backend(ABC):
    """Base of what `open_backend` returns; also a context manager that closes it.

    cancel(key) drops what is still to come, in the running call, for requests with this key (early stop of a
    solved task). use_adapter(adapter) changes the LoRA adapter (or takes it off, None) for the next calls.
    """

    name: str  # a key of BACKENDS
    model: ModelPath
    adapter: Path | None  # this and `device`: not of servers, which have their own
    device: str  # in words
    context: int
    tokenizer: Any

    @property
    def description(self) -> str:
        """Which backend runs on what, a line."""
        version = importlib.import_module(self.name).__version__
        what = f"{self.model.name} + adapter {self.adapter}" if self.adapter else self.model.name
        return f"{self.name} {version} ({self.device}): {what}, context {self.context} tokens"

    @abstractmethod
    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Completion]: ...

    @abstractmethod
    def cancel(self, key: Hashable) -> None: ...

    @abstractmethod
    def use_adapter(self, adapter: str | Path | None) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


# name -> "module:class"; a class is called with (model, adapter, options). A new backend is one more line.
BACKENDS = {
    "vllm": "arcnb.models.sampling.by_vllm:VllmBackend",
    "server": "arcnb.models.sampling.by_server:ServerBackend",
    "transformers": "arcnb.models.sampling.by_transformers:TransformersBackend",
}
# What names one that takes an adapter from this machine's disk: a server serves its own.
LOCAL_BACKENDS = ("auto", *(name for name in BACKENDS if name != "server"))


def backend_name(name: str) -> str:
    """The key of BACKENDS that a name means on this machine, "auto" included. ArcnbError for no name."""
    if name == "auto":
        return "vllm" if importlib.util.find_spec("vllm") else "transformers"
    if name not in BACKENDS:
        raise ArcnbError(f"unknown backend {name!r}; known are auto, {', '.join(BACKENDS)}")
    return name


def open_backend(
    name: str = "auto",
    model: str | Path | ModelPath = "default",
    adapter: str | Path | None = None,
    options: EngineOptions | None = None,
    announce=print,
) -> Backend:
    """Loads the model and returns the backend, ready to generate.

    name: a key of BACKENDS, or "auto": vllm if it is installed, else transformers. adapter: see
    `registry.resolve_adapter`; for servers, the name that they serve it under. `announce` is called with a
    line that says which backend runs on what. Raises ArcnbError.
    """
    name = backend_name(name)
    options = options or EngineOptions()
    resolved = resolve_model(model, need_weights=options.load_format != "dummy" and name != "server")
    module, kind = BACKENDS[name].split(":")
    checked = adapter or None if name == "server" else resolve_adapter(adapter, resolved)
    backend = getattr(importlib.import_module(module), kind)(resolved, checked, options)
    announce(backend.description)
    return backend


def fits(request: Request, sampling: Sampling, context: int) -> bool:
    """Whether the prompt and the longest completion fit into `context` tokens."""
    return len(request.prompt_ids) + sampling.max_tokens <= context


def check_tokens(request: Request, vocabulary: int | None) -> None:
    """ArcnbError for a prompt with a token that a model of so many does not know (None: nobody knows how
    many), which would end the engine."""
    if vocabulary and not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < vocabulary:
        raise ArcnbError(
            f"request {request.key!r}: the prompt has token {max(request.prompt_ids)}, and the model knows "
            f"{vocabulary} (vocab_size in its config.json); take the model's own tokenizer and template"
        )


def skipped(request: Request) -> Iterator[Completion]:
    """The answers to a request that does not fit."""
    return (draw.completion("", (), "skipped", None) for draw in draws(request))


def context_length(model: ModelPath, options: EngineOptions) -> int:
    """The context to run with: as asked, at most what the model was built for."""
    built_for = model.context
    wanted = options.max_model_len or built_for
    if not wanted:
        raise ArcnbError(f"model {model.name!r} does not state its context; set max_length")
    if built_for and wanted > built_for:
        raise ArcnbError(f"max_length is {wanted}, but model {model.name!r} was built for {built_for} tokens")
    return wanted
