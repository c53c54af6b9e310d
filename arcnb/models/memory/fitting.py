"""Will a model fit the GPU? Answered before vLLM starts, with the parameter to lower and by how much.

The estimate counts weights, and the keys and values of one sequence of full length; activations and CUDA
graphs come on top (a tenth of the share is kept for them). It says no only to what cannot work.
"""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
_BYTES_IN_4BIT = 0.28  # of the bf16 weight bytes: 4 bit plus scales; embeddings stay as they are
_HEADROOM = 0.9


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in bytes."""

    index: int
    uuid: str
    total: int
    free: int


def visible_gpus(visible: str | None = None) -> list[Gpu]:
    """The NVIDIA GPUs of this machine; `visible` (as CUDA_VISIBLE_DEVICES) selects and orders them.

    Asks nvidia-smi, so that no CUDA context is opened; empty where there is none.
    """
    query = "--query-gpu=index,uuid,memory.total,memory.free"
    try:
        answer = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        rows = [line.split(", ") for line in answer.stdout.strip().splitlines()]
        gpus = [Gpu(int(i), uuid, int(total) << 20, int(free) << 20) for i, uuid, total, free in rows]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    if visible is None:
        return gpus
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [gpu for name in names for gpu in gpus if name == str(gpu.index) or gpu.uuid.startswith(name)]


def memory_problem(model: Path, context: int, options, running: int = 0) -> str | None:
    """Why the model in folder `model` cannot run as the EngineOptions ask; None if it can or nobody knows.

    running: those of `options.engines` that have their part of the memory already.
    """
    gpus = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))[: options.tensor_parallel_size]
    if not gpus:
        return None
    tightest = min(gpus, key=lambda gpu: gpu.free)
    weights = (
        weight_bytes(model) * (_BYTES_IN_4BIT if options.load_in_4bit else 1) / options.tensor_parallel_size
    )
    cache = cache_bytes_per_token(model) / options.tensor_parallel_size
    share, engines = options.gpu_memory_utilization, options.engines
    return _problem(tightest, weights, cache, context, share, engines, running)


def _problem(
    gpu: Gpu, weights: float, cache: float, context: int, share: float, engines: int, running: int
) -> str | None:
    """weights: bytes on this GPU. cache: bytes per token on this GPU. share: gpu_memory_utilization.

    `engines` have equal parts of it, each with weights and a cache of its own; `running` of them have theirs.
    """
    if problem := free_problem(gpu, share, engines, running):
        return problem
    part = share * gpu.total / engines
    room = _HEADROOM * part - weights
    if room <= 0:
        needed = engines * (weights / _HEADROOM) / gpu.total
        fewer = "fewer engines, " if engines > 1 else ""
        remedy = (
            f"raise it to {needed:.2f}"
            if needed <= 0.95
            else f"use {fewer}load_in_4bit, or a larger tensor_parallel_size"
        )
        whose = f" to each of {engines} engines" if engines > 1 else ""
        return (
            f"the weights need {weights / GIB:.1f} GiB of GPU {gpu.index}, and vllm_gpu_memory_utilization "
            f"{share} gives {part / GIB:.1f} GiB{whose} for everything; {remedy}"
        )
    if cache * context > room:
        longest = int(room / cache) // 256 * 256
        return (
            f"one sequence of max_length {context} needs {cache * context / GIB:.1f} GiB of cache, and "
            f"beside the weights {room / GIB:.1f} GiB are left on GPU {gpu.index}; "
            f"lower max_length to {longest}"
        )
    return None


def free_problem(gpu: Gpu, share: float, engines: int = 1, running: int = 0) -> str | None:
    """Why engines cannot have this share of a GPU's memory, whatever they hold there; see `_problem`."""
    wanted = share * gpu.total * (engines - running) / engines
    if wanted <= gpu.free:
        return None
    possible = int(100 * _possible_share(gpu.free / gpu.total, share, engines, running)) / 100
    whose = f" for {engines - running} of {engines} engines" if running else ""
    return (
        f"vllm_gpu_memory_utilization {share} asks for {wanted / GIB:.1f} of {gpu.total / GIB:.1f} GiB on "
        f"GPU {gpu.index}{whose}, but only {gpu.free / GIB:.1f} GiB are free; lower it to {possible}"
    )


def _possible_share(free: float, share: float, engines: int, running: int) -> float:
    """The gpu_memory_utilization with which all engines would have found room.

    free: share of the memory that is free now, where `running` engines have their parts of `share` already.
    """
    return free + running * share / engines


def memory_advice(cause: str, options, running: int = 0) -> str:
    """What to change, and by how much, after a start that vLLM gave up with the error `cause`.

    The estimate above lets through what only the engine can know: activations, CUDA graphs, other processes.
    running: those of `options.engines` that had their part of the memory already.
    """
    share, context = options.gpu_memory_utilization, options.max_model_len
    if found := re.search(r"Free memory on device \S*\s*\(([\d.]+)/([\d.]+) GiB\)", cause):
        free, total = map(float, found.groups())
        possible = _possible_share(free / total, share, options.engines, running)
        return f"lower vllm_gpu_memory_utilization from {share} to {int(100 * possible) / 100}"
    if found := re.search(r"estimated maximum model length is (\d+)", cause):
        return f"lower max_length from {context} to {found[1]}"
    if "No available memory for the cache" in cause:
        fewer = "fewer engines, " if options.engines > 1 else ""
        if share < 0.95:
            return f"raise vllm_gpu_memory_utilization from {share} to 0.95, or use {fewer}load_in_4bit"
        return f"use {fewer}load_in_4bit, or a larger tensor_parallel_size"
    if "out of memory" in cause.lower():
        lower = max(0.1, round(share - 0.1, 2))
        sequences = f", or max_num_seqs to {options.max_num_seqs // 2}" if options.max_num_seqs else ""
        return f"lower vllm_gpu_memory_utilization from {share} to {lower}{sequences}"
    return f"vllm_gpu_memory_utilization is {share}, max_length {context}"


def weight_bytes(model: Path) -> int:
    """Bytes of the weight files in a model folder."""
    files = list(model.glob("*.safetensors")) or list(model.glob("pytorch_model*.bin"))
    return sum(path.stat().st_size for path in files)


def cache_bytes_per_token(model: Path) -> int:
    """Bytes of keys and values that one token takes at 16 bit; 0 if the config does not say."""
    config = json.loads((model / "config.json").read_text())
    config = config.get("text_config", config)
    heads = config.get("num_attention_heads", 0)
    width = config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else 0)
    key_heads = config.get("num_key_value_heads") or heads
    return 2 * 2 * config.get("num_hidden_layers", 0) * key_heads * width
