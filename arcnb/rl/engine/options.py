"""Settings of the vLLM engine inside a training process that TRL (1.15, 1.16) has no name for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from math import isnan

import numpy as np

from arcnb.errors import ArcnbError

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


@contextmanager
def engines_opened_by(opened: Callable) -> Iterator[None]:
    """Inside the block TRL's trainers call opened(LLM, **settings) in place of `vllm.LLM(**settings)`."""
    from trl.generation import vllm_generation

    plain = getattr(vllm_generation, "LLM", None)  # absent where vLLM is not installed
    if plain is None:
        yield
        return
    vllm_generation.LLM = partial(opened, plain)
    try:
        yield
    finally:
        vllm_generation.LLM = plain


def engine_options(**options):
    """Context manager: adds these options to every `vllm.LLM` that TRL's trainers open inside the block."""
    return engines_opened_by(lambda engine, **settings: engine(**settings | options))


def seeded_engines(seed: int):
    """Context manager: engines that TRL's trainers open inside draw by this seed and the engine's number.

    TRL gives them the number alone, so that runs of all seeds would begin with the same samples of a prompt.
    """
    return engines_opened_by(
        lambda engine, **settings: engine(**settings | {"seed": engine_seed(seed, settings["seed"])})
    )


def engine_seed(seed: int, number: int) -> int:
    """The seed of a run's n-th engine, below 2**31; processes of a tensor-parallel one share its number."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0]) >> 1


def take_first_runner(option: str) -> None:
    """From now on engines of this process have vLLM's first model runner, which `option` needs.

    The second one (0.23's for Llama) samples on the CUDA stream of its first call for ever, also in threads
    that have their own; and group attention was never tried with it.
    """
    from vllm import envs

    if os.environ.get(RUNNER, "0") != "0":
        raise ArcnbError(f"{option}=True needs {RUNNER}=0, not {os.environ[RUNNER]}")
    os.environ[RUNNER] = "0"  # for good: the engine looks it up as long as it lives
    envs.disable_envs_cache()  # an engine that this process opened before has them as they were


@contextmanager
def group_attention() -> Iterator[None]:
    """Engines that TRL's trainers open inside the block read a prompt once a step for all its sequences.

    See `arcnb.rl.engine.group_attention`; for vLLM 0.23 on CUDA. An engine with another attention is
    found by `check_group_attention`.
    """
    from vllm.v1.attention import selector
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    take_first_runner("vllm_group_attention")
    backend = AttentionBackendEnum.FLASH_ATTN
    register_backend(backend, "arcnb.rl.engine.group_attention.GroupAttentionBackend")
    selector._cached_get_attn_backend.cache_clear()
    try:
        with engine_options(attention_backend=backend.name):
            yield
    finally:
        backend.clear_override()
        selector._cached_get_attn_backend.cache_clear()


def check_group_attention(trainer) -> None:
    """ArcnbError where the engine in this process was opened with another attention after all."""
    from arcnb.rl.engine.group_attention import GroupAttentionBuilder

    executor = trainer.vllm_generation.llm.llm_engine.model_executor
    runner = executor.driver_worker.worker.model_runner
    builders = [group.get_metadata_builder() for kind in runner.attn_groups for group in kind]
    if not all(isinstance(builder, GroupAttentionBuilder) for builder in builders):
        names = ", ".join(sorted({type(builder).__name__ for builder in builders}))
        raise ArcnbError(
            f"vllm_group_attention=True: vLLM attends by {names} for this model; take it off (it needs flash "
            "attention, one GPU an engine and vLLM 0.23)"
        )


def sample_numbers_alone(trainer) -> None:
    """Has an engine in this process leave out what TRL does not take: the text of samples, unless text ends
    them (`stop`), and an object for each token's log-probability.

    Such objects are 131,072 for 128 completions of 1,024 tokens; to make, collect and read them cost 0.8 s
    (docs/results/log/2026-11-29_flat_log_probs.md). Does nothing for a trainer that samples in any other way.
    """
    generation = getattr(trainer, "vllm_generation", None)
    if getattr(generation, "mode", None) != "colocate":
        return
    asked = generation.generation_kwargs
    numbers = {"flat_logprobs": True} if asked.get("stop") else {"flat_logprobs": True, "detokenize": False}
    generation.generation_kwargs = numbers | asked
    from trl.generation import vllm_generation

    if not isinstance(vllm_generation.extract_logprobs, partial):
        vllm_generation.extract_logprobs = partial(_log_probs, vllm_generation.extract_logprobs)


def _log_probs(plain: Callable, outputs: Sequence) -> tuple[list, list]:
    """(log-probabilities, token ids) of vLLM's outputs as TRL's `extract_logprobs` gives them, here `plain`:
    for each sample a sequence with the numbers of each of its tokens, None for NaN.
    """
    from vllm.logprobs import FlatLogprobs

    made = [sample.logprobs for output in outputs for sample in output.outputs]
    if not all(isinstance(of, FlatLogprobs) and len(of.logprobs) == len(of) for of in made):
        return plain(outputs)  # none, those of other tokens, too, or not flat
    values = [[None if isnan(value) else value for value in of.logprobs] for of in made]
    return [list(zip(of)) for of in values], [list(zip(of.token_ids)) for of in made]


def vllm_environment() -> dict[str, str]:
    """What is missing in the environment and has to be there before vLLM 0.23 or unsloth is imported.

    Without flashinfer vLLM's sampler must be told to do without it; unsloth's first step did not come out of
    compilation within minutes.
    """
    values = {"UNSLOTH_COMPILE_DISABLE": "1"}
    if find_spec("flashinfer") is None:
        values["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    return {name: value for name, value in values.items() if name not in os.environ}
