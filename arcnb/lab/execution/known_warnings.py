"""Warnings of libraries that are known to mean nothing here, kept out of notebooks and their pages; all
others stay."""

import logging
import re
import warnings

# Beginning of the message -> why it means nothing.
PYTHON = {
    # peft asks the hub whether a base model's vocabulary was changed; ours is a folder, of which the hub
    # knows nothing and whose vocabulary is never changed.
    "Unable to fetch remote file due to the following error": UserWarning,
    "Could not find a config file in": UserWarning,
}
# Logger -> beginning of the message.
LOGGED = {
    # vLLM on a CPU: Triton came with torch and is of no use there.
    "vllm.triton_utils.importing": "Triton is installed, but",
}


def silence() -> None:
    """Keep them out from now on, in this process."""
    for beginning, category in PYTHON.items():
        warnings.filterwarnings("ignore", message=re.escape(beginning), category=category)
    for name, beginning in LOGGED.items():
        logger = logging.getLogger(name)
        if not any(isinstance(one, _Beginning) for one in logger.filters):
            logger.addFilter(_Beginning(beginning))


class _Beginning(logging.Filter):
    """Lets everything pass that does not begin so."""

    def __init__(self, beginning: str):
        super().__init__()
        self.beginning = beginning

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self.beginning)
