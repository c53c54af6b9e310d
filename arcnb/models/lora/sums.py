"""Two LoRAs as one: what a model with the first folded in learns in the second, for the model itself."""

from __future__ import annotations

import json
import math
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.files import write_whole
from arcnb.models.lora.compatibility import (
    WEIGHTS,
    adapted_modules,
    adapter_settings,
    beyond_matrices,
    tensor_shapes,
)


def add_adapters(first: Path, second: Path, output: Path) -> Path:
    """Write the LoRA that adds to every weight what the two add together; returns its folder.

    Its rank is the sum of theirs and its scale is 1; it belongs to the model of the first. Matrices are
    float32. Raises ArcnbError as check_addable.
    """
    import torch
    from safetensors.torch import load_file, save

    folders = (first, second)
    configs = [check_addable(folder) for folder in folders]
    ranks, scales = [config["r"] for config in configs], [_scale(config) for config in configs]
    weights = [load_file(folder / WEIGHTS) for folder in folders]
    whole = {}
    for name in sorted({*weights[0], *weights[1]}):
        rows = ".lora_A." in name  # (rank, in); B is (out, rank)
        parts = [tensors.get(name) for tensors in weights]
        shape = next(part.shape for part in parts if part is not None)
        parts = [
            torch.zeros((rank, shape[1]) if rows else (shape[0], rank)) if part is None else part
            for part, rank in zip(parts, ranks, strict=True)
        ]
        parts = [
            part.float() if rows else scale * part.float() for scale, part in zip(scales, parts, strict=True)
        ]
        whole[name] = torch.cat(parts, dim=0 if rows else 1)
    config = configs[0] | {"r": sum(ranks), "lora_alpha": sum(ranks), "use_rslora": False}
    # By the matrices: what one says by a pattern, or for some layers alone, says nothing of the other's.
    # Layers of these names without matrices are made as layers that change nothing.
    config["target_modules"] = sorted({module for folder in folders for module in adapted_modules(folder)})
    config |= dict.fromkeys(("layers_to_transform", "layers_pattern", "exclude_modules"))
    config["init_lora_weights"] = True
    output.mkdir(parents=True, exist_ok=True)
    write_whole(output / "adapter_config.json", json.dumps(config, indent=2) + "\n")
    write_whole(output / WEIGHTS, save(whole, metadata={"format": "pt"}))
    return output


def check_addable(adapter: Path) -> dict:
    """The adapter's settings; ArcnbError where it is more than two matrices a layer, all of one rank."""
    config = adapter_settings(adapter)
    more = beyond_matrices(config)
    names = tensor_shapes(adapter / WEIGHTS)
    more += [name for name in names if ".lora_A." not in name and ".lora_B." not in name][:1]
    if more:
        raise ArcnbError(f"adapter {adapter} cannot be added to a second adapter: it has {', '.join(more)}")
    return config


def _scale(config: dict) -> float:
    return config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
