"""Settings of the vLLM engine inside a training process that TRL (1.15, 1.16) has no name for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

KV_CACHE_DTYPES = ("auto", "fp8")  # auto: the model's own type


@contextmanager
def engine_options(**options) -> Iterator[None]:
    """Engines that TRL's trainers open meanwhile are opened with these options of `vllm.LLM` as well."""
    from trl.generation import vllm_generation

    plain = getattr(vllm_generation, "LLM", None)  # absent where vLLM is not installed
    if plain is None or not options:
        yield
        return
    vllm_generation.LLM = partial(plain, **options)
    try:
        yield
    finally:
        vllm_generation.LLM = plain
