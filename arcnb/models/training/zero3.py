"""What TRL's trainers do for older versions of DeepSpeed, taken back for those that need it no more."""

from __future__ import annotations

from importlib.metadata import version

# The first that was seen to recompute frozen layers well. 0.19.2 raises CheckpointError (DeepSpeed #8130).
_RECOMPUTES_FROZEN_LAYERS = "0.19.8"


def release_recomputed_layers(trainer) -> None:
    """Have a TRL trainer under ZeRO-3 hold one recomputed layer at a time, not the whole model.

    With a LoRA and gradient checkpointing, TRL (1.15, 1.16) asks for torch's reentrant checkpoints, since
    the others failed under ZeRO-3. DeepSpeed now keeps what it gathers in a recomputation until the backward
    pass of the layer ends, which in a reentrant one is the end of all: 60 GiB of each GPU for a model of 32B
    (docs/results/log/2026-11-28_four_gpus.md). The gradients are the same.
    """
    asked = trainer.args.gradient_checkpointing_kwargs
    if not (trainer.is_deepspeed_enabled and trainer.args.gradient_checkpointing and asked):
        return
    from packaging.version import Version

    if Version(version("deepspeed")) >= Version(_RECOMPUTES_FROZEN_LAYERS):
        trainer.args.gradient_checkpointing_kwargs = asked | {"use_reentrant": False}
