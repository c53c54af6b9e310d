"""Warnings of libraries that are known to mean nothing here, kept out of notebooks and their pages; all
others stay."""

import logging
import warnings

# peft asks the hub whether a base model's vocabulary was changed; ours is a folder, of which the hub knows
# nothing and whose vocabulary is never changed.
_PEFT = ("Unable to fetch remote file due to the following error", "Could not find a config file in")


def silence() -> None:
    """Keep them out from now on, in this process."""
    for beginning in _PEFT:
        warnings.filterwarnings("ignore", message=beginning, category=UserWarning)
    logging.getLogger("vllm.triton_utils.importing").addFilter(_not_about_triton)  # added once, however often


def _not_about_triton(record: logging.LogRecord) -> bool:
    """vLLM on a CPU: Triton came with torch and is of no use there."""
    return not record.getMessage().startswith("Triton is installed, but")
