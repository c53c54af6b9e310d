"""Old log-probabilities without a pass for them, and the correction of the sampler that goes with them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def share_of_sampler(way: str, stale: int) -> float:
    """How much of the old log-probabilities is the sampler's, the rest being the policy's of the loss.

    way: "sampler": all of it. "interpolated": 1 / stale, where `stale` is the number of optimizer steps since
    the samples were drawn, and nothing where that is 0: the old policy is taken to be one step behind, on the
    line between both (AReaL's prox_approx "loglinear"). "pass": nothing, for samples of the policy itself.
    """
    if way == "sampler":
        return 1.0
    return 1.0 / stale if way == "interpolated" and stale else 0.0


def old_log_probs(sampler: torch.Tensor, policy: torch.Tensor, share: float) -> torch.Tensor:
    """(B, T), nats; the policy's where the sampler gave none (NaN)."""
    import torch

    return torch.where(torch.isnan(sampler), policy, share * sampler + (1 - share) * policy)


def correction(difference: torch.Tensor, mask: torch.Tensor, args) -> torch.Tensor:
    """TRL's `importance_sampling_ratio` for old minus sampler's log-probabilities (B, T): (B, T), or (B, 1)
    in a sequence mode. args: a GRPOConfig, for mode and bounds. Where the sampler gave none (NaN): 1."""
    import torch

    logs = torch.nan_to_num(difference * mask, nan=0.0)
    level, _, kind = args.vllm_importance_sampling_mode.partition("_")
    ratio = torch.exp(logs.sum(dim=-1, keepdim=True) if level == "sequence" else logs)
    low, high = args.vllm_importance_sampling_clip_min, args.vllm_importance_sampling_clip_max
    if kind == "truncate":
        return ratio.clamp(min=low, max=high)
    outside = (ratio < (-math.inf if low is None else low)) | (ratio > (math.inf if high is None else high))
    return ratio.masked_fill(outside, 0.0)
