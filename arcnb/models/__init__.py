"""Language models: prompts, sampling, LoRA, supervised fine-tuning, memory.

The names that notebooks may import stand in `__init__.pyi`; they are loaded when first used.
"""

import logging

import lazy_loader

# peft imports bitsandbytes, which warns on some processors that a kernel, one of a hub, is not there.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
