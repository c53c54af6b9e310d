"""What a warm server loads before its first program, so that no program waits for it.

Three kinds of server: forking one that holds all of scipy costs three times what numpy alone costs.

    numpy     numpy, `common`, `rearc_dsl`
    ndimage   the same, numpy.random, scipy.ndimage, `dsl`
    scipy     the same and the rest of scipy that programs use
"""

from __future__ import annotations

import importlib
import re
import sys
import types
import typing
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import numpy as np

from arcnb.programs.libraries import LIBRARIES

KINDS = ("numpy", "ndimage", "scipy")
_STANDARD = (
    *("bisect", "copy", "dataclasses", "enum", "functools"),
    *("heapq", "itertools", "operator", "re", "string"),
)
_SCIPY = {
    "ndimage": ("ndimage",),
    "scipy": (
        *("ndimage", "signal", "spatial", "spatial.distance", "optimize", "stats", "sparse"),
        *("sparse.csgraph", "interpolate", "linalg"),
    ),
}


def kind_of(program: str) -> str:
    """The kind of server that holds what a program's source mentions."""
    if "scipy" in program and _OTHER_SCIPY.search(program):
        return "scipy"
    if "ndimage" in program or "random" in program or ("dsl" in program and _DSL.search(program)):
        return "ndimage"
    return "numpy"


_OTHER_SCIPY = re.compile(r"scipy(?!\.ndimage\b|\s+import\s+ndimage\b)")
_DSL = re.compile(r"\bdsl\b")


class Libraries:
    """Finds numpy and scipy for an import, and nothing else that is installed beside them.

    What may not be read is not there, on every machine: an import of it fails as programs expect it to, by an
    ImportError.
    """

    def __init__(self, folders: list[str]) -> None:
        self.folders = folders

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self.folders) if name in ("numpy", "scipy") else None


def load(kind: str, folders: list[str]) -> tuple[dict[str, types.ModuleType], list[Path]]:
    """Load what a kind of server holds: the grid libraries by alias, and the folders programs may read.

    ``folders``: those of ``sys.path`` that hold numpy, scipy and other packages.
    """
    for name in _STANDARD:
        importlib.import_module(name)
    if kind != "numpy":
        import numpy.random

        numpy.random.seed(0)
        for name in _SCIPY[kind]:
            importlib.import_module(f"scipy.{name}")
    libraries = {}
    for alias, name in LIBRARIES.items():
        if alias == "dsl" and kind == "numpy":
            continue  # it needs scipy.ndimage
        try:
            libraries[alias] = sys.modules[alias] = importlib.import_module(name)
        except ImportError:
            continue  # reasoning-gym is not installed; programs get an ImportError
    if "_rearc_source" in sys.modules:
        sys.modules["_rearc_source"].__path__ = []  # beside the DSL lie programs that solve every task
    sys.modules["random"].seed(0)
    own = [Path(library.__file__) for library in libraries.values()]
    readable = [path.parent if path.name == "__init__.py" else path for path in own]
    for folder in sys.path:
        readable += [Path(folder, name) for name in ("numpy", "numpy.libs", "scipy", "scipy.libs")]
    sys.meta_path.append(Libraries(folders))
    sys.path[:] = [folder for folder in sys.path if folder not in folders]
    return libraries, readable


def program_names(libraries: dict[str, types.ModuleType]) -> dict[str, object]:
    """The names that every program finds defined: np, numpy, List, Tuple and what `common` exports."""
    names: dict[str, object] = {}
    if "common" in libraries:
        common = libraries["common"]
        public = getattr(common, "__all__", None) or [
            name for name in vars(common) if not name.startswith("_")
        ]
        names = {name: getattr(common, name) for name in public}
    return names | {"np": np, "numpy": np, "List": typing.List, "Tuple": typing.Tuple}  # noqa: UP006


def seed_generators(value: int) -> None:
    """Other random numbers than the server's, for a run that looks for nondeterminism."""
    sys.modules["random"].seed(value)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(value)
