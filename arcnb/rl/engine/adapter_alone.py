"""The adapter alone goes to vLLM, which applies it beside the base that it loaded, instead of merged weights.

A synchronisation of an 8B policy then hands over some megabytes instead of 16 GB, and nothing is merged or
rounded. vLLM takes adapters from files: here from a folder in memory, written anew before each round of
samples.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.models.lora.compatibility import ENDS, beyond_matrices

_MEMORY = Path("/dev/shm")  # a file system in memory, on Linux
_PREFIX = "arcnb-policy-"  # of the folder; then comes the process


def send_adapter_alone(trainer) -> None:
    """Has a TRL trainer whose vLLM, in this process, was opened for adapters sample with the policy's."""
    from vllm.lora.request import LoRARequest

    generation, engine = trainer.vllm_generation, trainer.vllm_generation.llm
    folder, generate = policy_folder(generation), engine.generate
    request: LoRARequest | None = None

    def sync_weights() -> None:
        nonlocal request
        write_adapter(generation.model, folder)
        if request is not None:
            engine.llm_engine.remove_lora(request.lora_int_id)
        # Under a number of its own, since vLLM does not look at the file of one that it knows.
        number = request.lora_int_id + 1 if request else 1
        request = LoRARequest(f"policy-{number}", number, str(folder))
        engine.llm_engine.add_lora(request)
        engine.reset_prefix_cache()

    generation.sync_weights = sync_weights
    engine.generate = lambda *args, **kwargs: generate(*args, **kwargs, lora_request=request)


def write_adapter(policy, folder: Path) -> None:
    """The trained adapter of a peft model, as peft saves it. ArcnbError for one that vLLM cannot apply."""
    config = policy.peft_config["default"]
    ends = [name for name in ENDS if name in (config.target_modules or ())]
    more = beyond_matrices(config.to_dict()) + ends
    if more:
        raise ArcnbError(
            "vllm_adapter_alone=True needs a plain LoRA of inner layers, all of one rank and scale, and this "
            f"one has {', '.join(more)}"
        )
    policy.save_pretrained(folder, selected_adapters=["default"])


def policy_folder(owner) -> Path:
    """A new folder in memory that goes with its owner; folders of killed processes go now."""
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_place()))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder


def _place() -> Path:
    return _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def _remove_abandoned() -> None:
    for folder in _place().glob(f"{_PREFIX}*-*"):
        process = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if process.isdecimal() and not Path(f"/proc/{process}").exists():
            shutil.rmtree(folder, ignore_errors=True)
