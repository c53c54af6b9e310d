"""A vLLM engine in processes of its own (vllm 0.23 on a GPU node, 0.31 on a CPU): start, feed, restart, end.

The engine goes on generating while the caller works on what it already got, and closing it returns all
memory. It starts by `spawn` (safe in a notebook kernel, whose threads a fork would break), so a script that
opens it needs the `if __name__ == "__main__":` guard. What the engine prints goes to a log file; its last
error is quoted when it cannot start or dies.
"""

import contextlib
import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.gpus import GpuChoice, release_memory
from arcnb.machine.imports import nothing_collected
from arcnb.machine.processes import shared_context
from arcnb.machine.starts import tried_again
from arcnb.models.lora.precision import four_bits_problem
from arcnb.models.memory.fitting import memory_advice, memory_problem, share_of_memory, weight_bytes
from arcnb.models.registry import ModelPath
from arcnb.models.sampling.backends import CPU_CACHE_GB, EngineOptions
from arcnb.models.sampling.engine_guard import MARK_VARIABLE, folder_of, kill_marked, start_guard
from arcnb.models.sampling.engine_log import EngineLog
from arcnb.models.sampling.engine_spawn import spawning

_SMALL = 1 << 30  # bytes of weights; measured was the embedded model, which has 0.3 GB
# Tokens of the batches that have a CUDA graph. vLLM's own sizes end at 512, beyond which it launches kernel
# by kernel: nearly always on an H200, where it takes 1,024 sequences at a time and prompts beside them.
_LARGE_BATCHES = (*range(512, 1025, 64), 1536, 2048, 3072, 4096)
_GRAPH_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 512, 16), *_LARGE_BATCHES)
_CPU_EXECUTOR = (
    "arcnb.models.sampling.cpu_executor.CpuExecutor"  # a module that imports vLLM, which takes seconds
)
# Of an engine that compiles nothing: vLLM 0.31 still has a C++ compiler build two small functions of its
# sampler, for seconds, when log-probabilities are asked for; where there is no compiler the engine dies.
_NO_COMPILER = {"TORCH_COMPILE_DISABLE": "1"}
_LEVEL, _QUIET = "VLLM_LOGGING_LEVEL", "ERROR"  # where the user has set none
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the values that vLLM knows for max_lora_rank


class EngineDied(Exception):
    """The engine's process is gone; the message says why, as far as its log tells."""


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is started for. max_rank: highest rank of the adapters to come, 0 for none."""

    model: ModelPath
    context: int
    max_rank: int
    options: EngineOptions


class VllmEngine:
    """An engine, which runs after `start`. mark: what its processes carry, None before."""

    def __init__(self, settings: EngineSettings):
        self.settings = settings
        self.mark: str | None = None
        self._llm = None
        self._held = False
        self._gpus = GpuChoice(settings.options.tensor_parallel_size)

    @property
    def device(self) -> str:
        """Where the engine runs, in words."""
        return "CPU" if on_cpu() else self._gpus.description

    @property
    def running(self) -> bool:
        return self._llm is not None

    @property
    def max_num_seqs(self) -> int:
        """Completions that the engine works on at the same time."""
        return self._llm.llm_engine.vllm_config.scheduler_config.max_num_seqs

    @property
    def llm(self):
        """vLLM's own `LLM`, for benchmarks that set its `generate` beside ours."""
        return self._llm

    def add(self, name: str, prompt_ids: list[int], params, lora_request) -> None:
        """Hands over one completion to make. Raises EngineDied."""
        prompt = {"type": "token", "prompt_token_ids": prompt_ids}
        with self._deadly():
            self._llm.llm_engine.add_request(name, prompt, params, lora_request=lora_request)

    def hold(self) -> None:
        """Has what is added from now on begin together, at the next `step`. Raises EngineDied."""
        with self._deadly():
            self._llm.llm_engine.engine_core.call_utility("pause_scheduler", "keep", False)
        self._held = True

    def step(self) -> list:
        """Waits for the next outputs and returns those that are finished. Raises EngineDied."""
        engine = self._llm.llm_engine
        if self._held:
            with self._deadly():
                engine.engine_core.call_utility("resume_scheduler")
            self._held = False
        if not engine.has_unfinished_requests():
            raise ArcnbError(f"the vllm engine lost its requests: {self._cause()}")
        with self._deadly():
            return [output for output in engine.step() if output.finished]

    @property
    def dtype(self):
        """Of the weights, torch's."""
        return self._llm.llm_engine.vllm_config.model_config.dtype

    def load_weights(self, folder: Path) -> None:
        """Takes the weights of another model of the same shape; nothing may be under way. Raises EngineDied.

        What the prefix cache holds is of the old ones, and goes.
        """
        with self._deadly():
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        self._llm.reset_prefix_cache()
        self.settings = replace(self.settings, model=ModelPath(self.settings.model.name, folder))

    def abort(self, names: list[str]) -> None:
        """Drops requests; those that are not there any more do not matter."""
        if names and self._llm is not None:
            with contextlib.suppress(self._dead_engine):
                self._llm.llm_engine.abort_request(names)

    def restart(self) -> None:
        """A new engine in place of a dead one; it does not know the dead engine's requests."""
        self._end()
        self.start()

    def close(self) -> None:
        """Ends the engine's processes, frees their memory and gives the GPUs back."""
        self._end()
        self._gpus.release()

    def _end(self) -> None:
        if self._llm is None:
            return
        llm, self._llm, self._held = self._llm, None, False
        self._closed.set()
        with contextlib.suppress(Exception):  # a dead engine cannot shut down in good order
            llm.llm_engine.engine_core.shutdown(timeout=1)
        del llm
        kill_marked(self.mark)
        multiprocessing.active_children()  # collects the ended engine process
        self._guard.terminate()
        self._guard.wait()
        self._log.close()

    @contextlib.contextmanager
    def _deadly(self) -> Iterator[None]:
        try:
            yield
        except self._dead_engine as error:
            raise EngineDied(self._cause()) from error

    def _cause(self) -> str:
        return self._log.last_error() or "its process was ended from outside, as when memory runs out"

    def start(self) -> None:
        """Returns when the engine is ready. Raises ArcnbError, and then leaves no process behind."""
        try:
            tried_again(self._start)
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        options, model = self.settings.options, self.settings.model
        shared_context()  # without which the engine dies of it, in many words
        _set_environment()
        self._log = EngineLog(options.log)
        with nothing_collected(), self._log.capture():
            from vllm import LLM, envs
            from vllm.v1.engine.exceptions import EngineDeadError
        envs.disable_envs_cache()  # an engine inside this process, such as a trainer's, has them remembered
        self._dead_engine = EngineDeadError
        if on_cpu() and options.load_in_4bit:
            raise ArcnbError("load_in_4bit on a CPU needs backend=transformers: vllm has no kernels there")
        if options.load_in_4bit and (problem := four_bits_problem(in_vllm=True)):
            raise ArcnbError(problem)
        if not on_cpu():
            release_memory()
            self._gpus.take()
            options = replace(options, gpu_memory_utilization=share_of_memory(options))
            if options.gpu_memory_utilization < 0.9 and self.settings.options.gpu_memory_utilization is None:
                print(f"vLLM takes {options.gpu_memory_utilization:.0%} of the GPU's memory: what is free")
            self.settings = replace(self.settings, options=options)
            if problem := memory_problem(model.folder, self.settings.context, options):
                raise ArcnbError(problem)
        self.mark, self._guard = start_guard()
        marks = {MARK_VARIABLE: self.mark, "VLLM_PROCESS_NAME_PREFIX": f"VLLM-{self.mark}"}
        try:
            arguments = llm_arguments(self.settings)
            if arguments["enforce_eager"] and on_cpu():
                marks |= _NO_COMPILER
            if on_cpu():  # on a GPU, what was compiled for it lies there and stays
                marks["TMPDIR"] = str(folder_of(self.mark))
            with (
                spawning(marks, self._log.descriptor),
                _sockets_in(folder_of(self.mark)),
                self._log.capture(),
                _telling(),
            ):
                self._llm = LLM(**arguments)
            self._closed = threading.Event()
            _wake_when_dead(self._llm, self._closed)
        except BaseException as error:
            kill_marked(self.mark)
            self._guard.terminate()
            if not isinstance(error, Exception):
                raise
            cause = self._log.last_error() or f"{type(error).__name__}: {error}"
            advice = _cpu_advice(options) if on_cpu() else memory_advice(cause, options)
            raise ArcnbError(f"vllm cannot start with {model.name!r}: {cause} ({advice})") from error


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Engines that start within the block say what they do, for as long as they live; this process, which
    gives its own level on to them, says errors alone afterwards. A level that the user has set stays."""
    if os.environ[_LEVEL] != _QUIET:
        yield
        return
    os.environ[_LEVEL] = "INFO"
    try:
        yield
    finally:
        os.environ[_LEVEL] = _QUIET
        logging.getLogger("vllm").setLevel(_QUIET)


@contextlib.contextmanager
def _sockets_in(folder: Path) -> Iterator[None]:
    """Within the block, vLLM makes its sockets in this folder, unless their paths were too long."""
    name, before = "VLLM_RPC_BASE_PATH", os.environ.get("VLLM_RPC_BASE_PATH")
    if before is None and len(os.fsencode(folder)) <= 70:  # of 107 bytes
        os.environ[name] = str(folder)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


def on_cpu() -> bool:
    """Whether the installed vLLM is the one for CPUs."""
    with nothing_collected():
        from vllm.platforms import current_platform

    return current_platform.is_cpu()


def is_small(model: Path) -> bool:
    """Whether the processor, which launches the kernels of the model in this folder, keeps a GPU waiting."""
    return 0 < weight_bytes(model) <= _SMALL


def _is_slow_at_bf16() -> bool:
    """Whether this processor lacks what vLLM's bfloat16 is made for (docs/how-to/inference.md)."""
    import torch

    return torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")


def llm_arguments(settings: EngineSettings) -> dict:
    """What `LLM` is called with."""
    options = settings.options
    arguments = {
        "model": settings.model.path,
        "max_model_len": settings.context,
        "dtype": options.dtype,
        "load_format": options.load_format,
        "tensor_parallel_size": options.tensor_parallel_size,
        "enforce_eager": on_cpu() if options.enforce_eager is None else options.enforce_eager,
        "enable_prefix_caching": options.enable_prefix_caching,
        "gpu_memory_utilization": options.gpu_memory_utilization or 0.9,
        "max_num_seqs": options.max_num_seqs,
    }
    if options.block_size:
        arguments["block_size"] = options.block_size
    if on_cpu():
        if options.dtype == "auto" and _is_slow_at_bf16():
            arguments["dtype"] = "float32"
        # A seeded request whose prompt is read in parts kills the worker there: vllm turns the random
        # generator back then, and torch's generator for CPUs cannot do that ("does not use offset").
        arguments |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(settings.context, 2048)}
        if options.tensor_parallel_size == 1:
            arguments["distributed_executor_backend"] = _CPU_EXECUTOR
    elif not arguments["enforce_eager"] and is_small(settings.model.folder):
        # Batches are padded up to the next size, which costs a small model nothing to speak of.
        arguments["compilation_config"] = {"cudagraph_capture_sizes": list(_GRAPH_SIZES)}
    if cache := options.kv_cache_gb or (CPU_CACHE_GB if on_cpu() else 0.0):
        arguments["kv_cache_memory_bytes"] = int(cache * 2**30)
    if options.load_in_4bit:
        arguments["quantization"] = "bitsandbytes"
    if settings.max_rank:
        arguments |= room_for_adapters(settings.max_rank) | {"max_loras": options.max_loras}
    return arguments


def room_for_adapters(rank: int) -> dict:
    """What `LLM` is called with so that it applies an adapter of this rank at a time."""
    known = next((r for r in _RANKS if r >= rank), rank)
    return {"enable_lora": True, "max_lora_rank": known, "max_loras": 1}


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


def _set_environment() -> None:
    """Settings that vLLM takes from the environment; what the user has set stays, but for the first two."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # 0.23 would ask for flashinfer's compiler
    os.environ.setdefault(_LEVEL, _QUIET)
    # To descriptor 1, which the log takes, and in plain letters: a notebook's own stream is its page, and a
    # kernel asks for colors, also of its children.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.__stdout__")
    os.environ.setdefault("VLLM_LOGGING_COLOR", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def _cpu_advice(options: EngineOptions) -> str:
    return f"kv_cache_gb is {options.kv_cache_gb or CPU_CACHE_GB:g}, max_length {options.max_model_len}"
