"""Checkpoints that can be trusted: complete ones.

A process that is killed while it saves leaves a folder that looks like a checkpoint; transformers'
`get_last_checkpoint` takes it. Here a checkpoint counts only when every file that resuming reads is whole.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from pathlib import Path

SENTINEL = "checkpoint-is-incomplete.txt"  # transformers' mark of a checkpoint that a signal asked for
STATE = "trainer_state.json"


class CheckpointError(ValueError):
    """A checkpoint that is damaged or of other settings; the message names it."""


def step_of(checkpoint: Path) -> int:
    """The optimizer step in a folder name `checkpoint-N`, else -1."""
    found = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return int(found[1]) if found else -1


def checkpoint_problem(folder: Path) -> str | None:
    """Why training cannot resume from this folder; None for a complete checkpoint."""
    if (folder / SENTINEL).exists():
        return "its saving was interrupted"
    try:
        state = json.loads((folder / STATE).read_text())
        if state["global_step"] != step_of(folder):
            return f"{STATE} is of step {state['global_step']}"
    except FileNotFoundError:
        return f"{STATE} is missing"
    except (ValueError, KeyError, OSError):
        return f"{STATE} is damaged"
    weights = [*folder.glob("adapter_model.safetensors"), *folder.glob("model*.safetensors")]
    if not weights:
        return "the weights are missing"
    for path in [*weights, *folder.glob("*/adapter_model.safetensors")]:
        if not _is_whole_safetensors(path):
            return f"{path.relative_to(folder)} is cut off"
    if any(folder.glob("global_step*")):  # ZeRO keeps the optimizer in parts of its own
        return None if (folder / "latest").is_file() else "the optimizer's index is missing"
    for name in ("optimizer.pt", "scheduler.pt"):
        if not (folder / name).is_file():
            return f"{name} is missing"
        if not zipfile.is_zipfile(folder / name):
            return f"{name} is cut off"
    random_states = sorted(folder.glob("rng_state*.pth"))  # of several processes one each
    if not random_states:
        return "the random state is missing"
    for path in random_states:
        if not zipfile.is_zipfile(path):
            return f"{path.name} is cut off"
    return None


def _is_whole_safetensors(path: Path) -> bool:
    """Whether the file is as long as its header says."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return path.stat().st_size == 8 + length + max(ends, default=0)
    except (OSError, ValueError, struct.error, KeyError, TypeError):
        return False


def newest_complete(folder: Path, announce=print) -> Path | None:
    """The complete checkpoint of the highest step below folder; incomplete newer ones are announced."""
    found = sorted(
        (p for p in Path(folder).glob("checkpoint-*") if step_of(p) >= 0), key=step_of, reverse=True
    )
    for checkpoint in found:
        problem = checkpoint_problem(checkpoint)
        if problem is None:
            return checkpoint
        announce(f"{checkpoint.name} cannot be resumed from: {problem}")
    return None
