"""A home folder that takes no more files (full, over quota, read-only) stops neither a run nor its plots.

Jupyter keeps its connection files in the home, IPython its history, matplotlib, Triton and vLLM their caches:
on a cluster that is the first place to be full, and the first thing to fail is the start of the kernel.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from arcnb.machine.files import write_problem

# Variables of programs that write to the home of their own accord, and where below the substitute.
HABITS = {
    "JUPYTER_RUNTIME_DIR": "jupyter/runtime",
    "JUPYTER_DATA_DIR": "jupyter/data",
    "IPYTHONDIR": "ipython",
    "MPLCONFIGDIR": "matplotlib",
    "XDG_CACHE_HOME": "cache",
    "TRITON_CACHE_DIR": "cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "cache/inductor",
    "VLLM_CACHE_ROOT": "cache/vllm",
    "VLLM_CONFIG_ROOT": "config/vllm",
}


def _home_problem() -> str | None:
    """Why the home cannot take a file of a megabyte, or None if it can."""
    try:
        return write_problem(Path.home())
    except RuntimeError as error:  # a container that does not know this user
        return str(error)


@contextlib.contextmanager
def substitute_home() -> Iterator[str | None]:
    """While active, what usually writes to an unusable home writes to a temporary folder, which then goes
    away. Yields the problem, if there is one. Variables that are set already are left alone."""
    problem = _home_problem()
    if problem is None:
        yield None
        return
    with tempfile.TemporaryDirectory(
        prefix=f"arcnb-home-{os.getpid()}-", ignore_cleanup_errors=True
    ) as folder:
        ours = {name: str(Path(folder, place)) for name, place in HABITS.items() if name not in os.environ}
        for place in ours.values():
            Path(place).mkdir(parents=True, exist_ok=True)
        os.environ.update(ours)
        try:
            yield problem
        finally:
            for name in ours:
                os.environ.pop(name, None)
