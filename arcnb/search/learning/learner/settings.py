"""What a search's adapter is, and how it is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass

from arcnb.models.lora.options import Lora
from arcnb.plans import option
from arcnb.values import COUNT, POSITIVE

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class LoraSettings(Lora):
    """The adapter, and how it is trained.

    batch_tokens and gradient_checkpointing decide memory and not what is learned; both give way by themselves
    where it does not suffice (`memory.Room`).
    """

    r: int = option(16, "rank of the LoRA", within=COUNT)
    alpha: float = option(32.0, "its scale: alpha / sqrt(r) with use_rslora, else alpha / r", within=POSITIVE)
    target_modules: list[str] = option(
        lambda: ["q_proj", "k_proj", "v_proj", "o_proj"], "modules that the LoRA changes"
    )
    learning_rate: float = option(2e-4, "of the training", within=POSITIVE)
    lr_scheduler_type: str = option(
        "constant", "of the learning rate: constant, linear or cosine", within=SCHEDULES
    )
    warmup_steps: float = option(0.1, "steps in which the rate rises; below 1 a share of a training's steps")
    per_device_train_batch_size: int = option(4, "rows an optimizer step", within=COUNT)
    batch_tokens: int = option(
        4096, "padded tokens in one forward pass; bounds memory", "tokens", within=COUNT
    )
    weight_decay: float = option(0.0, "of the optimizer")
    max_grad_norm: float = option(1.0, "gradients are clipped to this norm", within=POSITIVE)
    gradient_checkpointing: bool = option(False, "less memory for a fifth more time")

    def decisive(self) -> dict:
        """What decides the adapter, as JSON holds it; not how memory is saved."""
        spared = ("batch_tokens", "gradient_checkpointing")
        return {name: value for name, value in vars(self).items() if name not in spared}


def learning_rate_share(settings: LoraSettings, step: int, n_steps: int) -> float:
    """The share of the learning rate that step 0..n_steps-1 takes; never zero: no row is shown in vain."""
    n_warmup = 0
    if n_steps > 1:
        n_warmup = math.ceil(settings.warmup_steps * (n_steps if settings.warmup_steps < 1 else 1))
    if step < n_warmup:
        return (step + 1) / (n_warmup + 1)
    left = (n_steps - step) / (n_steps - n_warmup)
    return {"constant": 1.0, "linear": left, "cosine": math.sin(math.pi / 2 * left) ** 2}[
        settings.lr_scheduler_type
    ]
