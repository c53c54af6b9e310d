"""RE-ARC's grid DSL under the name that programs import: `from rearc_dsl import *`.

About 160 pure functions on grids (tuples of tuples of int), objects (frozensets of (color, (row, column)))
and indices (frozensets of (row, column)), by Michael Hodel (RE-ARC and arc-dsl, MIT licence). The source is
the copy inside the package `reasoning-gym` (Apache-2.0); only that one file is loaded, by its path, because
importing `reasoning_gym` itself pulls in a hundred unrelated generators and their dependencies.

`as_tuples` is the one addition: programs receive a numpy array and the DSL wants tuples of Python ints.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

# Name under which RE-ARC's folder is a package of its own, so that its relative imports work.
_PACKAGE = "_rearc_source"


def load_rearc_module(name: str) -> ModuleType:
    """Module `name` ("dsl", "verifiers", "generators", "utils") of RE-ARC inside reasoning-gym.

    ImportError when reasoning-gym is not installed.
    """
    if _PACKAGE not in sys.modules:
        spec = importlib.util.find_spec("reasoning_gym")  # finds the folder, runs nothing
        if spec is None or spec.origin is None:
            raise ImportError("RE-ARC needs the package reasoning-gym: pip install --no-deps reasoning-gym")
        folder = Path(spec.origin).parent / "arc" / "rearc_utils"
        package_spec = importlib.machinery.ModuleSpec(_PACKAGE, None, is_package=True)
        package_spec.submodule_search_locations = [str(folder)]
        sys.modules[_PACKAGE] = importlib.util.module_from_spec(package_spec)
    return importlib.import_module(f"{_PACKAGE}.{name}")


def as_tuples(grid) -> tuple[tuple[int, ...], ...]:
    """The grid (array or nested lists, 2-D) as tuples of Python ints, the form every function here takes."""
    rows = grid.tolist() if hasattr(grid, "tolist") else grid
    return tuple(tuple(row) for row in rows)


_dsl = load_rearc_module("dsl")
_TYPES = {"Any", "Callable", "Container", "FrozenSet", "Union"}  # what dsl.py imports for its annotations
_public = {
    name: value for name, value in vars(_dsl).items() if not name.startswith("_") and name not in _TYPES
}
globals().update(_public)

__all__ = ["as_tuples", *sorted(_public)]
