"""How far the sampler is from the learner: gap, importance ratios, effective sample size, clipped share.

TRL hands sampler and learner log-probabilities to `compute_loss`; a subclass that overrides that public
method and `log` reads them there. Without vLLM the sampler's log-probabilities are not known to TRL and
nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

# Column of a batch: log-probabilities that its last loss had, without gradient.
POLICY = "policy_per_token_logps"


@dataclass
class SamplerGap:
    """Sums over the micro-batches of one optimizer step. `metrics()` gives the numbers and starts anew."""

    n_tokens: float = 0.0
    gap: float = 0.0
    kl: float = 0.0
    ratio: float = 0.0
    clipped: float = 0.0
    log_weights: list[float] = field(default_factory=list)

    def add(self, sampler, learner, mask, weights=None, clip_max: float | None = None) -> None:
        """sampler, learner: log-probabilities (B, T), nats; mask: (B, T), 1 where a token counts. weights:
        the importance ratios that the loss uses, (B, T) or (B, 1), after clipping or masking."""
        import torch

        mask = mask.bool() & ~torch.isnan(sampler)
        difference = torch.where(mask, learner - sampler, 0.0).float()
        self.n_tokens += float(mask.sum())
        self.gap += float(difference.abs().sum())
        self.kl -= float(difference.sum())
        self.ratio += float(torch.exp(difference)[mask].sum())
        rows = mask.any(dim=1)
        self.log_weights += difference.sum(dim=1)[rows].tolist()
        if weights is not None:
            weights = weights.expand_as(mask)
            top = math.inf if clip_max is None else clip_max
            self.clipped += float((((weights == 0) | (weights >= top)) & mask).sum())

    def metrics(self, gather: Callable[[list[SamplerGap]], list[SamplerGap]] = list) -> dict[str, float]:
        """{"sampling/...": value}; empty where nothing was added.

        gather: the sums of all processes from this process's; each then gives the numbers of all.

        logp_gap: mean |difference| a token, nats. kl: mean log p(sampler) - log p(learner), an estimate of
        their KL. importance_ratio: mean learner/sampler a token. ess: effective sample size over sequences,
        share of their number. clipped_share: tokens whose weight in the loss was clipped or masked.
        """
        everyone = gather([replace(self)])
        self.__init__()
        n = sum(one.n_tokens for one in everyone)
        if not n:
            return {}
        return {
            "sampling/logp_gap": sum(one.gap for one in everyone) / n,
            "sampling/kl": sum(one.kl for one in everyone) / n,
            "sampling/importance_ratio": sum(one.ratio for one in everyone) / n,
            "sampling/ess": effective_sample_size([w for one in everyone for w in one.log_weights]),
            "sampling/clipped_share": sum(one.clipped for one in everyone) / n,
        }


def effective_sample_size(log_weights: list[float]) -> float:
    """(sum w)^2 / (n sum w^2) for w = exp(log_weights): 1 for equal weights, 1/n when one has all."""
    top = max(log_weights)
    weights = [math.exp(value - top) for value in log_weights]
    return sum(weights) ** 2 / (len(weights) * sum(weight**2 for weight in weights))


def measuring(trainer_class: type) -> type:
    """A subclass of a GRPO trainer that logs the gap with its metrics, and the eval tasks' metrics apart."""
    from accelerate.utils import gather_object
    from transformers import Trainer

    class MeasuringTrainer(trainer_class):
        sampler_gap = None

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            # The policy's own of the loss where it made no pass of old ones (arcnb.rl.trainer.lean).
            sampler, old = inputs.get("sampling_per_token_logps"), inputs.get("old_per_token_logps")
            learner = inputs.get(POLICY, old)
            if self.model.training and sampler is not None and learner is not None:
                self.sampler_gap = self.sampler_gap or SamplerGap()
                self.sampler_gap.add(
                    sampler,
                    learner,
                    inputs["completion_mask"],
                    inputs.get("importance_sampling_ratio"),
                    self.args.vllm_importance_sampling_clip_max,
                )
            return loss

        def log(self, logs, start_time=None):
            if any(name.startswith("held_out/") for name in logs):
                # TRL's own method would add, and clear, the training metrics of the step under way.
                Trainer.log(self, logs, start_time)
                return
            if self.sampler_gap is not None and "loss" in logs:
                # Logging is what all processes do together, and the first one's line is what is kept.
                logs |= self.sampler_gap.metrics(gather_object)
            super().log(logs, start_time)

    MeasuringTrainer.__name__ = trainer_class.__name__
    return MeasuringTrainer
