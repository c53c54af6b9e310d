"""Branches that the plans of this room share: how completions are drawn, the engine, the programs.

Their options have the names that notebooks know; here, and nowhere else, they become the engines' options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arcnb.models.sampling.backends import EngineOptions, Sampling
from arcnb.plans import option
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Limits
from arcnb.values import COUNT, POSITIVE, SHARE, SOME_SHARE

_ENGINES_NAMES = {
    "max_completion_length": "max_tokens",
    "max_length": "max_model_len",
    "vllm_gpu_memory_utilization": "gpu_memory_utilization",
    "tensor_parallel": "tensor_parallel_size",
    "prefix_caching": "enable_prefix_caching",
    "adapters_at_once": "max_loras",
}


def _for_engines(branch: Any) -> dict[str, Any]:
    return {_ENGINES_NAMES.get(name, name): value for name, value in vars(branch).items()}


@dataclass(frozen=True)
class Drawing:
    """How completions are drawn."""

    max_completion_length: int = option(384, "longest completion", "tokens", within=COUNT)
    temperature: float = option(1.0, "of sampling; 0 takes the likeliest token")
    top_p: float = option(1.0, "nucleus of sampling; 1 is plain", within=SOME_SHARE)
    top_k: int = option(0, "sample from so many likeliest tokens; 0 is off")
    min_p: float = option(0.0, "cut tokens below this share of the likeliest; 0 is off", within=SHARE)
    repetition_penalty: float = option(
        1.0, "above 1 tokens that were there before become rarer; 1 is off", within=POSITIVE
    )
    seeded: bool = option(
        True, "completions have seeds of their own; False samples faster, prompts repeat all the same"
    )

    def sampling(self) -> Sampling:
        return Sampling(**_for_engines(self))


@dataclass(frozen=True)
class Engine:
    """What every engine is started with."""

    max_length: int = option(
        4096, "longest sequence, prompt plus completion; a prompt that does not fit is skipped", "tokens"
    )
    max_num_seqs: int = option(
        0, "completions generated at the same time; 0 takes the engine's default", free=True
    )
    vllm_gpu_memory_utilization: float = option(
        0.85, "share of GPU memory that vLLM takes", within=SOME_SHARE, free=True
    )
    kv_cache_gb: float = option(
        0.0,
        "vLLM's cache; 0: 2 GiB on a CPU, on a GPU what its share leaves. With a number several engines can "
        "open on a GPU at once, and the share must only be free at the start",
        "GiB",
        within="[0, inf)",
        free=True,
    )

    def options(self, **more: Any) -> EngineOptions:
        """more: fields of EngineOptions that the tasks or the adapters decide."""
        return EngineOptions(**_for_engines(self) | {"max_num_seqs": self.max_num_seqs or None} | more)


@dataclass(frozen=True)
class Programs:
    """How programs are run."""

    workers: int = option(0, "programs run at the same time; 0 means one a core", free=True)
    seconds_per_input: float = option(
        1.0, "time limit of a program for one grid; for all 5 s, or as long", "s", within=POSITIVE, free=True
    )
    program_memory_mb: int = option(512, "memory that a program may take", "MiB", within=COUNT, free=True)

    def executor(self) -> Executor:
        return Executor(self.workers or None, self.limits())

    def limits(self) -> Limits:
        return Limits.by_grid(self.seconds_per_input, memory_mb=self.program_memory_mb)
