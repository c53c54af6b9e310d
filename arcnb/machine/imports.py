"""Large libraries (torch, transformers, trl, vLLM), whose millions of objects stay; IPython where it is."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def nothing_collected() -> Iterator[None]:
    """Within the block, or a function that it decorates, Python's garbage collector rests: it would go
    through all that an import has made again and again, a fifth of vLLM's and trl's import."""
    rested, n_modules = not gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if not rested:
            gc.enable()
        # All that is there joins the oldest generation, without a look at it. Counting what is frozen takes
        # up to a tenth of a second.
        if len(sys.modules) > n_modules and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()


def ipython_shell() -> Any:
    """IPython's shell in this process, which a kernel has, too; None without one."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
