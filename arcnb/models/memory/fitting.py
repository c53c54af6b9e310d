"""Will a model fit the GPU? Answered before vLLM starts, with the parameter to lower and by how much.

The estimate counts weights, and the keys and values of one sequence of full length; activations and CUDA
graphs come on top (a tenth of the share is kept for them). It says no only to what cannot work.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from arcnb.machine.gpus import Gpu, visible_gpus
from arcnb.machine.reading import read_object
from arcnb.models.lora.compatibility import is_quantized
from arcnb.models.memory.shape import GIB, Shape, weight_files

_BYTES_IN_4BIT = 0.28  # of the bf16 weight bytes: 4 bit plus scales; embeddings stay as they are
_HEADROOM = 0.9


def share_of_memory(options) -> float:
    """The share of a GPU's memory that EngineOptions ask for; if they leave it open, 0.9 or what is free."""
    if options.gpu_memory_utilization is not None:
        return options.gpu_memory_utilization
    gpus = visible_gpus()[: options.tensor_parallel_size]
    return min([0.9, *(_rounded_down(gpu.free / gpu.total) for gpu in gpus)])


def memory_problem(
    model: Path,
    context: int,
    options,
    gpus: Sequence[Gpu] | None = None,
    fp8_weights: bool = False,
    fp8_cache: bool = False,
) -> str | None:
    """Why the model in folder `model` cannot run as the EngineOptions ask; None if it can or nobody knows.

    gpus: the GPUs it will run on; None for all of this machine. fp8_weights, fp8_cache: in 8 bits.
    """
    n_gpus, share = options.tensor_parallel_size, share_of_memory(options)
    gpus = (visible_gpus() if gpus is None else gpus)[:n_gpus]
    if not gpus:
        return None
    gpu = min(gpus, key=lambda gpu: gpu.free)
    if problem := free_problem(gpu, share):
        return problem
    bits = _BYTES_IN_4BIT if options.load_in_4bit else 0.5 if fp8_weights else 1
    weights = _loaded_bytes(model, options.dtype) * bits / n_gpus

    def cache(tokens: int) -> float:
        return cache_bytes(model, tokens) * (0.5 if fp8_cache else 1) / n_gpus

    if options.kv_cache_gb:
        return _cache_problem(options.kv_cache_gb, weights, cache(context), context, gpu)
    part = share * gpu.total
    room = _HEADROOM * part - weights
    if room <= 0:
        needed = weights / _HEADROOM / gpu.total
        remedy = (
            f"raise it to {needed:.2f}"
            if needed <= 0.95
            else "use load_in_4bit, or a larger tensor_parallel_size"
        )
        return (
            f"the weights need {weights / GIB:.1f} GiB of GPU {gpu.index}, and vllm_gpu_memory_utilization "
            f"{share} gives {part / GIB:.1f} GiB for everything; {remedy}"
        )
    if cache(context) > room:
        longest = next(n for n in range(context // 256 * 256, -1, -256) if cache(n) <= room)
        return (
            f"one sequence of max_length {context} needs {cache(context) / GIB:.1f} GiB of cache, and "
            f"beside the weights {room / GIB:.1f} GiB are left on GPU {gpu.index}; "
            f"lower max_length to {longest}"
        )
    return None


def _cache_problem(given: float, weights: float, needed: float, context: int, gpu: Gpu) -> str | None:
    """Why a cache of `given` GiB does not do beside the weights, or for one sequence; both in bytes."""
    if weights + given * GIB > gpu.free:
        return (
            f"the weights and kv_cache_gb={given:g} need {weights / GIB + given:.1f} GiB, but only "
            f"{gpu.free / GIB:.1f} GiB of GPU {gpu.index} are free; lower it"
        )
    if needed > given * GIB:
        return (
            f"one sequence of max_length {context} needs {needed / GIB:.1f} GiB of cache, and kv_cache_gb is "
            f"{given:g}; raise it"
        )
    return None


def free_problem(gpu: Gpu, share: float) -> str | None:
    """Why an engine cannot have this share of a GPU's memory, whatever it holds there."""
    if share * gpu.total <= gpu.free:
        return None
    return (
        f"vllm_gpu_memory_utilization {share} asks for {share * gpu.total / GIB:.1f} of "
        f"{gpu.total / GIB:.1f} GiB on GPU {gpu.index}, but only {gpu.free / GIB:.1f} GiB are free; "
        f"lower it to {_rounded_down(gpu.free / gpu.total)}"
    )


def _rounded_down(share: float) -> float:
    return int(100 * share) / 100


def memory_advice(cause: str, options) -> str:
    """What to change, and by how much, after a start that vLLM gave up with the error `cause`.

    The estimate above lets through what only the engine can know: activations, CUDA graphs, other processes.
    """
    share, context = share_of_memory(options), options.max_model_len
    if found := re.search(r"Free memory on device \S*\s*\(([\d.]+)/([\d.]+) GiB\)", cause):
        free, total = map(float, found.groups())
        return f"lower vllm_gpu_memory_utilization from {share} to {_rounded_down(free / total)}"
    if found := re.search(r"estimated maximum model length is (\d+)", cause):
        return f"lower max_length from {context} to {found[1]}"
    if "No available memory for the cache" in cause:
        if share < 0.95:
            return f"raise vllm_gpu_memory_utilization from {share} to 0.95, or use load_in_4bit"
        return "use load_in_4bit, or a larger tensor_parallel_size"
    if "out of memory" in cause.lower():
        lower = max(0.1, round(share - 0.1, 2))
        sequences = f", or max_num_seqs to {options.max_num_seqs // 2}" if options.max_num_seqs else ""
        return f"lower vllm_gpu_memory_utilization from {share} to {lower}{sequences}"
    return f"vllm_gpu_memory_utilization is {share}, max_length {context}"


def weight_bytes(model: Path) -> int:
    """Bytes of the weight files in a model folder."""
    return sum(path.stat().st_size for path in weight_files(model))


def _loaded_bytes(model: Path, dtype: str) -> float:
    """Bytes of the weights in memory: vLLM takes float32 files as 16 bit unless `dtype` asks for 32. Files
    whose config does not say their type may be such."""
    config = read_object(model / "config.json")
    stored = config.get("dtype") or config.get("torch_dtype") or "float32"
    halved = stored == "float32" != dtype and not is_quantized(model)
    return weight_bytes(model) * (0.5 if halved else 1)


def cache_bytes(model: Path, tokens: int) -> int:
    """Bytes of keys and values that a sequence of so many tokens takes at 16 bit, at least; 0 if the config
    does not say."""
    return Shape.of(read_object(model / "config.json")).cache(tokens)
