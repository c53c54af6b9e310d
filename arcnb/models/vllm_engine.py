"""vLLM started by this process (vllm 0.23 on a GPU node, 0.31 on a CPU).

The engine runs in processes of its own: it goes on generating while the caller works on what it already
got, and closing it returns all memory. It starts by `spawn` (safe in a notebook kernel, whose threads a
fork would break), so a script that opens it needs the `if __name__ == "__main__":` guard. What the engine
prints goes to a log file; its last error is quoted when it cannot start or dies.

Every completion is an engine request of its own with its own seed; prefix caching makes the prompt that
they share cost one computation.
"""

import contextlib
import itertools
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from arcnb.arc.seeds import derive_seed
from arcnb.models.compatibility import adapter_rank
from arcnb.models.engine_guard import MARK_VARIABLE, kill_marked, start_guard
from arcnb.models.engine_log import EngineLog
from arcnb.models.generation import (
    Completion,
    EngineOptions,
    GenerationError,
    Request,
    Sampling,
    context_length,
    fits,
    skipped,
)
from arcnb.models.gpu_memory import memory_problem
from arcnb.models.registry import ModelPath, load_tokenizer, resolve_adapter

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the values that vLLM knows for max_lora_rank


@dataclass(frozen=True)
class _Flight:
    """A completion that the engine is working on."""

    request: Request
    index: int
    seed: int


class VllmBackend:
    """See the module; opened by `arcnb.models.generation.open_backend`."""

    name = "vllm"

    def __init__(self, model: ModelPath, adapter: Path | None, options: EngineOptions):
        self.model, self.options = model, options
        self.context = context_length(model, options)
        self.tokenizer = load_tokenizer(model)
        self._flights: dict[str, _Flight] = {}
        self._unsent: deque[str] = deque()  # names of flights that the engine has not been told of
        self._cancelled: set[Hashable] = set()
        self._ids = itertools.count()
        self._lora_ids: dict[Path, int] = {}
        self._generating = False
        self._llm = None
        self._max_rank = options.max_lora_rank or (adapter_rank(adapter) if adapter else 0)
        self.use_adapter(adapter)
        self._start()

    @property
    def description(self) -> str:
        import vllm

        device = "CPU" if _on_cpu() else f"{self.options.tensor_parallel_size} GPU"
        adapter = f" + adapter {self.adapter}" if self.adapter else ""
        return (
            f"vllm {vllm.__version__} ({device}): {self.model.name}{adapter}, context {self.context} tokens"
        )

    def use_adapter(self, adapter: str | Path | None) -> None:
        """Generates with another LoRA adapter of the same model, or with none, from the next call on.

        The engine reserves room for adapters only if it was opened with one, or with `max_lora_rank`.
        """
        folder = resolve_adapter(adapter, self.model)
        if folder and adapter_rank(folder) > self._max_rank:
            raise GenerationError(
                f"adapter {folder} has rank {adapter_rank(folder)}, but the engine was opened for rank "
                f"{self._max_rank}; open it with max_lora_rank={adapter_rank(folder)}"
            )
        self.adapter = folder
        if folder:
            # An adapter is known to vLLM by number; a folder written again counts as another adapter.
            key = folder.resolve() / str((folder / "adapter_model.safetensors").stat().st_mtime_ns)
            self._lora_id = self._lora_ids.setdefault(key, len(self._lora_ids) + 1)

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Completion]:
        """See `arcnb.models.generation`. One call at a time; leaving the iterator early drops the rest."""
        if self._generating:
            raise GenerationError("the backend is already generating; exhaust or close the first iterator")
        if self._llm is None:
            raise GenerationError("the backend is closed")
        self._generating, self._cancelled = True, set()
        try:
            yield from self._generate(iter(requests), sampling)
        finally:
            self._generating = False
            self._abort(list(self._flights))

    def cancel(self, key: Hashable) -> None:
        """Drops what is still to come, in the running call, for requests with this key."""
        self._cancelled.add(key)
        self._abort([name for name, flight in self._flights.items() if flight.request.key == key])

    def close(self) -> None:
        """Ends the engine's processes and frees their memory."""
        if self._llm is None:
            return
        llm, self._llm = self._llm, None
        self._flights.clear()
        self._unsent.clear()
        self._closed.set()
        with contextlib.suppress(Exception):  # a dead engine cannot shut down in good order
            llm.llm_engine.engine_core.shutdown(timeout=1)
        del llm
        kill_marked(self._mark)
        multiprocessing.active_children()  # collects the ended engine process
        self._guard.terminate()
        self._guard.wait()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()

    def _generate(self, source: Iterator[Request], sampling: Sampling) -> Iterator[Completion]:
        window = 2 * self._llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
        restarts, more = 0, True
        while True:
            while more and len(self._flights) < window:
                if (request := next(source, None)) is None:
                    more = False
                elif request.key in self._cancelled:
                    continue
                elif not fits(request, sampling, self.context):
                    yield from skipped(request)
                else:
                    for i in range(request.n):
                        name = str(next(self._ids))
                        self._flights[name] = _Flight(request, i, derive_seed(request.seed, i))
                        self._unsent.append(name)
            if not self._flights:
                if not more:
                    return
                continue
            try:
                self._submit(sampling)
                outputs = self._step()
            except self._dead_engine as error:
                if restarts:
                    raise GenerationError(f"the vllm engine died twice: {self._log.last_error()}") from error
                restarts += 1
                self._restart()
                continue
            for output in outputs:
                flight = self._flights.pop(output.request_id, None)
                if flight is not None:  # else it was cancelled just now
                    yield self._completion(flight, output.outputs[0])

    def _submit(self, sampling: Sampling) -> None:
        """Hands to the engine what it does not have yet."""
        while self._unsent:
            flight = self._flights[self._unsent[0]]
            self._llm.llm_engine.add_request(
                self._unsent[0],
                {"type": "token", "prompt_token_ids": list(flight.request.prompt_ids)},
                self._sampling_params(sampling, flight.seed),
                lora_request=self._lora_request(),
            )
            self._unsent.popleft()

    def _step(self) -> list:
        engine = self._llm.llm_engine
        if not engine.has_unfinished_requests():
            raise GenerationError(
                f"the vllm engine lost {len(self._flights)} requests: {self._log.last_error()}"
            )
        return [output for output in engine.step() if output.finished]

    def _completion(self, flight: _Flight, output) -> Completion:
        ids = list(output.token_ids)
        text = output.text or self.tokenizer.decode(ids, skip_special_tokens=True)
        return Completion(
            flight.request.key,
            flight.index,
            text,
            ids,
            output.finish_reason,
            output.cumulative_logprob,
            len(flight.request.prompt_ids),
            flight.seed,
        )

    def _sampling_params(self, sampling: Sampling, seed: int):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_tokens,
            stop=list(sampling.stop) or None,
            seed=seed,
            logprobs=0 if sampling.logprob else None,
            # Only stop texts need text while generating; decoding once at the end is cheaper.
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _lora_request(self):
        if self.adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(f"adapter-{self._lora_id}", self._lora_id, str(self.adapter))

    def _abort(self, names: list[str]) -> None:
        sent = sorted(set(names).difference(self._unsent))
        for name in names:
            del self._flights[name]
        self._unsent = deque(name for name in self._unsent if name in self._flights)
        if sent and self._llm is not None:
            with contextlib.suppress(self._dead_engine):
                self._llm.llm_engine.abort_request(sent)

    def _restart(self) -> None:
        """A new engine that is to do all that the dead one left undone."""
        flights = dict(self._flights)
        self.close()
        self._start()
        self._flights, self._unsent = flights, deque(flights)

    def _start(self) -> None:
        _set_environment(self.options)
        self._log = EngineLog()
        with self._log.capture():
            from vllm import LLM
            from vllm.v1.engine.exceptions import EngineDeadError
        self._dead_engine = EngineDeadError
        options = self.options
        if not _on_cpu() and (problem := memory_problem(self.model.folder, self.context, options)):
            raise GenerationError(problem)
        if _on_cpu() and options.load_in_4bit:
            raise GenerationError("load_in_4bit needs a GPU (bitsandbytes has no vllm kernels for a CPU)")
        settings = {
            "model": self.model.path,
            "max_model_len": self.context,
            "dtype": options.dtype,
            "load_format": options.load_format,
            "tensor_parallel_size": options.tensor_parallel_size,
            "enforce_eager": _on_cpu() if options.enforce_eager is None else options.enforce_eager,
            "enable_prefix_caching": options.enable_prefix_caching,
            "gpu_memory_utilization": options.gpu_memory_utilization,
            "max_num_seqs": options.max_num_seqs,
        }
        if _on_cpu():
            # A seeded request whose prompt is read in parts kills the worker there: vllm turns the random
            # generator back then, and torch's generator for CPUs cannot do that ("does not use offset").
            settings |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(self.context, 4096)}
        if options.load_in_4bit:
            settings["quantization"] = "bitsandbytes"
        if self._max_rank:
            rank = next((r for r in _RANKS if r >= self._max_rank), self._max_rank)
            settings |= {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1}
        self._mark, self._guard = start_guard()
        marks = {MARK_VARIABLE: self._mark, "VLLM_PROCESS_NAME_PREFIX": f"VLLM-{self._mark}"}
        try:
            with _environment(marks), self._log.capture():
                self._llm = LLM(**settings)
            self._closed = threading.Event()
            _wake_when_dead(self._llm, self._closed)
        except BaseException as error:
            kill_marked(self._mark)
            self._guard.terminate()
            if not isinstance(error, Exception):
                raise
            cause = self._log.last_error() or f"{type(error).__name__}: {error}"
            raise GenerationError(
                f"vllm cannot start with {self.model.name!r}: {cause} ({_advice(cause, options)})"
            ) from error


def _wake_when_dead(llm, closed: threading.Event) -> None:
    """Starts a thread that ends the wait for outputs when the engine's process is gone.

    vllm (0.23 to 0.31) notices the death, but its synchronous client goes on waiting for the dead process.
    """
    from vllm.v1.engine.exceptions import EngineDeadError

    client = llm.llm_engine.engine_core
    resources, outputs = client.resources, client.outputs_queue

    def watch():
        while not closed.wait(0.5):
            if resources.engine_dead:
                outputs.put_nowait(EngineDeadError())
                return

    threading.Thread(target=watch, daemon=True, name="engine-watch").start()


def _set_environment(options: EngineOptions) -> None:
    """Settings that vLLM takes from the environment; what the user has set stays, but for the first two."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(options.cpu_kv_cache_gb))
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # 0.23 would ask for flashinfer's compiler
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return current_platform.is_cpu()


def _advice(cause: str, options: EngineOptions) -> str:
    """Which parameter to change, in words, after a start that failed for want of memory."""
    if _on_cpu():
        return f"cpu_kv_cache_gb is {options.cpu_kv_cache_gb}, max_model_len {options.max_model_len}"
    if "out of memory" in cause.lower():
        lower = max(0.1, round(options.gpu_memory_utilization - 0.1, 2))
        return f"lower gpu_memory_utilization from {options.gpu_memory_utilization} to {lower}"
    return (
        f"gpu_memory_utilization is {options.gpu_memory_utilization}, max_model_len {options.max_model_len}"
    )
