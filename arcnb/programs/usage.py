"""Which names of a library programs use, how often, and which ones together.

    counts = usage_counts(programs, "common")   # a row a program, a column a name
    usage_table(counts)                         # uses, programs, share of programs
    usage_correlation(counts)                   # which names appear in the same programs

Read off the syntax trees: functions and constants (`crop`, `Color`), attributes of the library's classes
(`Color.RED`; `.area` on any value, when arrays have no attribute of that name). Names that a program binds
itself are its own. Comments and strings do not count.
"""

from __future__ import annotations

import ast
import importlib
import typing
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from arcnb.errors import ArcnbError
from arcnb.programs.libraries import LIBRARIES
from arcnb.programs.syntax import ProgramSyntaxError, bound_names, imports_of, parse_program, parse_shallow

if TYPE_CHECKING:
    import pandas as pd

PREDEFINED = "common"  # its names are there without an import


@cache
def library_names(library: str) -> tuple[str, ...]:
    """What can be counted for a library, sorted: `name`, `Class.NAME` of class constants, `.attribute`."""
    if library not in LIBRARIES:
        raise ArcnbError(
            f"library {library!r} is not one that programs import; there are {', '.join(LIBRARIES)}"
        )
    module = importlib.import_module(LIBRARIES[library])
    names = set()
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, ModuleType) or name in typing.__all__:
            continue  # np, random, List: there for convenience
        names.add(name)
        if isinstance(value, type):
            own = [member for member in vars(value) if not member.startswith("_")]
            own += [member for member in getattr(value, "__annotations__", {}) if member not in own]
            constants = {member for member in own if member.isupper()}
            names |= {f"{name}.{member}" for member in constants}
            names |= {f".{member}" for member in own if member not in constants and not _ambiguous(member)}
    return tuple(sorted(names))


def program_usage(program: str, library: str) -> Counter[str]:
    """Uses of each name in one program: calls, and mentions such as a function passed to another.

    ProgramSyntaxError when it does not parse, or is nested too deeply to be followed.
    """
    nodes = list(ast.walk(parse_shallow(program)))
    countable = set(library_names(library))
    imports = [found for found in imports_of(nodes) if found.module == library]
    modules = {found.bound for found in imports if found.name is None}
    renamed = {found.bound: found.name for found in imports if found.name not in (None, "*")}
    own = bound_names(node for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom))
    spread = library == PREDEFINED or any(found.name == "*" for found in imports)

    def meaning(node: ast.AST) -> str | None:
        """The library's name for an expression (`c.crop`, `crop`, `Color.RED`); None if it has none."""
        if isinstance(node, ast.Name) and node.id not in own:
            return renamed.get(node.id, node.id if spread else None)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in modules - own:
                return node.attr
            owner = meaning(node.value)
            if owner is not None and f"{owner}.{node.attr}" in countable:
                return f"{owner}.{node.attr}"
            return f".{node.attr}" if imports else None
        return None

    uses = (meaning(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute))
    return Counter(name for name in uses if name in countable)


def main_library(programs: Iterable[str]) -> str:
    """The library that most of the programs import; `dsl` where none is imported."""
    imported: Counter[str] = Counter()
    for program in programs:
        with suppress(ProgramSyntaxError):
            modules = {found.module for found in imports_of(ast.walk(parse_program(program)))}
            imported.update(modules & set(LIBRARIES))
    return imported.most_common(1)[0][0] if imported else "dsl"


def usage_counts(programs: Iterable[str] | Mapping[object, str], library: str) -> pd.DataFrame:
    """Uses (int) of every countable name, a row a program; programs that do not parse have no row.

    The index is the position of the program, or its key in a mapping.
    """
    import pandas as pd

    columns = library_names(library)
    items = programs.items() if isinstance(programs, Mapping) else enumerate(programs)
    keys, rows = [], []
    for key, program in items:
        try:
            usage = program_usage(program, library)
        except ProgramSyntaxError:
            continue
        keys.append(key)
        rows.append([usage[name] for name in columns])
    values = np.array(rows, dtype=np.int64).reshape(len(rows), len(columns))
    return pd.DataFrame(values, index=keys, columns=list(columns))


def usage_table(counts: pd.DataFrame) -> pd.DataFrame:
    """A row a name, most used first: uses, programs (that use it), share (of all programs, 0..1)."""
    import pandas as pd

    present = counts > 0
    table = pd.DataFrame({"uses": counts.sum(), "programs": present.sum(), "share": present.mean()})
    return table.sort_values(["programs", "uses"], ascending=False, kind="stable").rename_axis("name")


def usage_correlation(counts: pd.DataFrame) -> pd.DataFrame:
    """Correlation (phi, -1..1) of two names being used by the same programs; symmetric, 1 on the diagonal.

    Only names that at least two programs use and at least one does not: others have no correlation.
    """
    present = counts > 0
    used = present.sum()
    kept = present.loc[:, (used >= 2) & (used < len(present))]
    return kept.astype(float).corr()


def _ambiguous(member: str) -> bool:
    return any(hasattr(kind, member) for kind in (np.ndarray, list, dict, set, str))
