"""The shape of a fresh LoRA, as plans ask for it; a LoRA that a training starts from keeps its shape."""

from __future__ import annotations

from dataclasses import dataclass

from arcnb.plans import option
from arcnb.values import COUNT, POSITIVE


@dataclass(frozen=True)
class Lora:
    r: int = option(32, "rank of a fresh LoRA", within=COUNT)
    alpha: int | float = option(
        64, "its scale: alpha / sqrt(r) with use_rslora, else alpha / r", within=POSITIVE
    )
    use_rslora: bool = option(True, "rank-stabilised scale of a fresh LoRA")
    target_modules: list[str] = option(
        lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "modules that a fresh LoRA changes",
    )

    @property
    def config(self) -> dict:
        """For peft's LoraConfig."""
        # Named one by one: a subclass may have options that peft does not know.
        return {
            "r": self.r,
            "lora_alpha": self.alpha,
            "use_rslora": self.use_rslora,
            "target_modules": list(self.target_modules),
        }
