"""Refuses sampling that the learner cannot match.

TRL corrects the difference between sampler and learner by importance ratios where vLLM samples, and nowhere
else: transformers' generate hands it no log-probabilities. With top_p, top_k, min_p or a repetition penalty
the sampler draws from another distribution than the one whose probabilities are trained; at the level of
whole sequences the ratio of a 200-token completion was measured at about 1e-3 with top_p 0.95 and about
1e-12 with repetition penalty 1.05. A run then looks healthy and learns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping


class SamplingError(ValueError):
    """Sampling parameters that make the importance-sampling correction meaningless."""


PLAIN = {"top_p": 1.0, "top_k": (0, -1, None), "min_p": (0, 0.0, None), "repetition_penalty": 1.0}


def altered_sampling(settings: Mapping) -> dict:
    """The entries of settings that make sampling differ from the plain policy."""
    altered = {}
    for name, plain in PLAIN.items():
        allowed = plain if isinstance(plain, tuple) else (plain, None)
        if settings.get(name, allowed[0]) not in allowed:
            altered[name] = settings[name]
    return altered


def check_sampling(settings: Mapping, insist: bool = False) -> None:
    """SamplingError for altered sampling under a sequence-level correction, unless insist.

    Without vLLM nothing is corrected, whatever the settings of the correction say. TRL's default mode is
    `sequence_mask`; `token_mask` and `token_truncate` work token by token.
    """
    altered = altered_sampling(settings)
    corrected = settings.get("use_vllm", False) and settings.get("vllm_importance_sampling_correction", True)
    mode = settings.get("vllm_importance_sampling_mode", "sequence_mask")
    if altered and corrected and mode.startswith("sequence") and not insist:
        named = ", ".join(f"{name}={value}" for name, value in altered.items())
        raise SamplingError(
            f"{named} with vllm_importance_sampling_mode={mode!r} leaves next to no gradient; "
            "sample plainly, choose a token-level mode, or set insist_on_sampling=True"
        )
