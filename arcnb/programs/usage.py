"""Which functions and attributes of a grid library programs use, and which occur together.

Read off the syntax tree: a name counts when the program refers to it, not when a comment or a longer name
contains it. `library` is the name programs import: "dsl", "rearc_dsl" or "common".
"""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LIBRARIES = {
    "dsl": "arcnb.programs.dsl",
    "rearc_dsl": "arcnb.programs.rearc_dsl",
    "common": "arcnb.programs.barc",
}


def used_names(program: str, library: str = "dsl") -> Counter[str]:
    """How often the program refers to each public name of `library`, and to each attribute of its classes.

    Attributes are written with a dot, `.area`. SyntaxError for a program that does not parse; ValueError for
    an unknown library.
    """
    names, attributes = _library_names(library)
    found: Counter[str] = Counter()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Name) and node.id in names:
            found[node.id] += 1
        elif isinstance(node, ast.Attribute) and node.attr in attributes:
            found[f".{node.attr}"] += 1
    return found


def usage_table(programs: Iterable[str], library: str = "dsl") -> pd.DataFrame:
    """One row a name, the most used first: `programs` that use it, their `share`, `uses` in all.

    Names that no program uses are listed with zeros.
    """
    import pandas as pd

    counts = [used_names(program, library) for program in programs]
    names, attributes = _library_names(library)
    every = [*names, *(f".{attribute}" for attribute in attributes)]
    in_programs = Counter(name for count in counts for name in count)
    uses = sum(counts, Counter())
    rows = [(name, in_programs[name], in_programs[name] / max(len(counts), 1), uses[name]) for name in every]
    frame = pd.DataFrame(rows, columns=["name", "programs", "share", "uses"])
    return frame.sort_values(["programs", "name"], ascending=[False, True], ignore_index=True)


def cooccurrence(programs: Iterable[str], library: str = "dsl", most: int = 30) -> pd.DataFrame:
    """Correlation (-1..1) between "the program uses a" and "uses b" for the `most` used names.

    Names that every program uses, or none, have no correlation and are left out.
    """
    import pandas as pd

    counts = [used_names(program, library) for program in programs]
    in_programs = Counter(name for count in counts for name in count)
    names = [name for name, n in in_programs.items() if n < len(counts)]
    names = sorted(names, key=lambda name: (-in_programs[name], name))[:most]
    used = np.array([[name in count for name in names] for count in counts], dtype=float)
    correlation = np.atleast_2d(np.corrcoef(used, rowvar=False)) if names else np.zeros((0, 0))
    return pd.DataFrame(correlation, index=names, columns=names)


def draw_cooccurrence(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """The table of `cooccurrence` as a picture: blue for together, red for apart."""
    import matplotlib.pyplot as plt

    if ax is None:
        side = 2 + 0.25 * len(frame)
        _, ax = plt.subplots(figsize=(side, side))
    image = ax.imshow(frame, cmap="RdBu", vmin=-1, vmax=1)
    ax.set_xticks(range(len(frame)), frame.columns, rotation=90)
    ax.set_yticks(range(len(frame)), frame.index)
    ax.figure.colorbar(image, ax=ax, label="correlation", shrink=0.7)
    return ax


@lru_cache(maxsize=8)
def _library_names(library: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Public names, and the public attributes of the classes among them."""
    if library not in LIBRARIES:
        raise ValueError(f"no grid library {library!r}; there are {', '.join(LIBRARIES)}")
    module = importlib.import_module(LIBRARIES[library])
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    classes = [getattr(module, name) for name in names if isinstance(getattr(module, name), type)]
    own = [cls for cls in classes if not issubclass(cls, BaseException)]
    attributes = {name for cls in own for name in (*vars(cls), *getattr(cls, "__annotations__", ()))}
    return tuple(names), frozenset(name for name in attributes if not name.startswith("_"))
