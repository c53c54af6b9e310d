"""Hints about a program, read off its syntax tree before it runs.

    for hint in static_checks(program): print(hint.line, hint.rule, hint.message)

Hints explain failures and feed statistics and refinement prompts; they refuse nothing, because safety rests
on the executor's isolation and determinism is tested by running twice. Comments and strings never trip them.
A rule is a function in `RULES`; adding one means adding an entry.
"""

import ast
import builtins
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from arcnb.programs.libraries import LIBRARIES
from arcnb.programs.syntax import (
    Import,
    ProgramSyntaxError,
    bound_names,
    defined_names,
    imports_of,
    parse_program,
)
from arcnb.programs.wire import ENTRY

IMPORTABLE = {"numpy", "scipy", *LIBRARIES}  # besides the standard library
PREDEFINED = {"np", "numpy", "List", "Tuple"}  # every program finds these, and all of `common`

# Standard modules that reach for the system: importing them may work, using them will not.
SYSTEM_MODULES = {
    *("_posixsubprocess", "asyncio", "calendar", "code", "concurrent", "ctypes", "datetime", "faulthandler"),
    *("fcntl", "ftplib", "gc", "glob", "hashlib", "http", "importlib", "inspect", "io", "logging", "mmap"),
    *("multiprocessing", "os", "pathlib", "pickle", "pty", "resource", "runpy", "select", "shelve", "shutil"),
    *("signal", "smtplib", "socket", "socketserver", "sqlite3", "ssl", "subprocess", "sys", "tempfile"),
    *("threading", "time", "tkinter", "traceback", "urllib", "webbrowser", "xmlrpc", "zipfile", "_thread"),
}
HARMLESS_USES = {
    "sys.maxsize",
    "sys.setrecursionlimit",
    "sys.float_info",
    "io.StringIO",
    "traceback.print_exc",
}

RANDOM_MODULES = {"random", "secrets", "uuid", "numpy.random"}
IO_CALLS = {"open", "input", "breakpoint"}
DYNAMIC_CALLS = {"exec", "eval", "compile", "__import__"}
LONGEST_NAME = 8  # attributes behind a name that are followed; rules know two
IO_METHODS = {"save", "savez", "savetxt", "tofile", "fromfile", "loadtxt", "genfromtxt", "memmap", "imread"}


@dataclass(frozen=True)
class Hint:
    """`line` is 1-based; 0 speaks of the whole program."""

    rule: str
    line: int
    message: str


class _Reading:
    """A parsed program with what several rules ask: its nodes, its imports, the names that it binds."""

    def __init__(self, tree: ast.Module):
        self.tree = tree
        self.nodes = list(ast.walk(tree))  # breadth first, iterative

    @cached_property
    def imports(self) -> list[Import]:
        return imports_of(self.nodes)

    @cached_property
    def origins(self) -> dict[str, str]:
        """Bound name -> dotted origin, for imported and predefined names."""
        origins = {"np": "numpy", "numpy": "numpy", "random": "random"}
        for _, module, name, bound in self.imports:
            if name is None:
                origins[bound] = module if bound != module.partition(".")[0] else bound
            elif name != "*":
                origins[bound] = f"{module}.{name}"
        return origins

    @cached_property
    def bound(self) -> set[str]:
        """Every name bound in any scope; what is only predefined is not among them."""
        return bound_names(self.nodes)

    def dotted(self, node: ast.AST) -> str | None:
        """`np.random.choice` -> `numpy.random.choice`, by the imports; None for other expressions.

        None also for chains longer than any rule asks for: each of a thousand links would be followed.
        """
        parts = []
        while isinstance(node, ast.Attribute) and len(parts) < LONGEST_NAME:
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return ".".join([self.origins.get(node.id, node.id), *reversed(parts)])


def static_checks(program: str) -> list[Hint]:
    """Hints in the order of their lines; a program that does not parse gets a single `syntax` hint."""
    try:
        reading = _Reading(parse_program(program))
    except ProgramSyntaxError as error:
        return [Hint("syntax", error.line, str(error))]
    hints = {Hint(rule, line, text) for rule, check in RULES.items() for line, text in check(reading)}
    return sorted(hints, key=lambda hint: (hint.line, hint.rule, hint.message))


def _entry(reading: _Reading) -> Iterator[tuple[int, str]]:
    if ENTRY not in defined_names(reading.tree) and not _unknown_star(reading):
        yield 0, f"no function {ENTRY} at module level"


def _arity(reading: _Reading) -> Iterator[tuple[int, str]]:
    defined = [n for n in reading.tree.body if isinstance(n, ast.FunctionDef) and n.name == ENTRY]
    for node in defined[-1:]:
        a = node.args
        positional = len(a.posonlyargs) + len(a.args)
        needed = positional - len(a.defaults)
        keywords = [k.arg for k, default in zip(a.kwonlyargs, a.kw_defaults, strict=True) if default is None]
        if needed > 1 or (positional == 0 and a.vararg is None):
            yield node.lineno, f"{ENTRY} takes {needed or 'no'} arguments, it is called with one grid"
        elif keywords:
            yield node.lineno, f"{ENTRY} needs the keyword argument {keywords[0]}"


def _import(reading: _Reading) -> Iterator[tuple[int, str]]:
    for line, module, _, _ in reading.imports:
        root = module.partition(".")[0]
        if not root:
            yield line, "a program has no package to import from"
        elif root not in IMPORTABLE and root not in sys.stdlib_module_names and root != "__future__":
            yield line, f"module {root} is not available to programs"


def _system(reading: _Reading) -> Iterator[tuple[int, str]]:
    for line, module, name, _ in reading.imports:
        full = module if name is None else f"{module}.{name}"
        if module.partition(".")[0] in SYSTEM_MODULES - {"sys"} and full not in HARMLESS_USES:
            yield line, f"imports {full}"
    for node in reading.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            dotted = reading.dotted(node)
            root = dotted.partition(".")[0]
            if (
                root in SYSTEM_MODULES
                and _means_module(reading, node.value.id)
                and dotted not in HARMLESS_USES
            ):
                yield node.lineno, f"uses {dotted}"


def _randomness(reading: _Reading) -> Iterator[tuple[int, str]]:
    for line, module, name, _ in reading.imports:
        if module in RANDOM_MODULES or f"{module}.{name}" in RANDOM_MODULES:
            yield (
                line,
                f"imports {module if name is None or module in RANDOM_MODULES else f'{module}.{name}'}",
            )
    for node in reading.nodes:
        if isinstance(node, ast.Attribute):
            dotted = reading.dotted(node)
            if dotted and dotted.rpartition(".")[0] in RANDOM_MODULES:
                yield node.lineno, f"uses {dotted}"
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hash", "id")
        ):
            if node.func.id not in reading.bound:
                yield node.lineno, f"{node.func.id}() differs from run to run for some values"
        elif isinstance(node, ast.keyword) and _named(reading, node.value) in ("hash", "id"):
            yield node.value.lineno, f"{node.value.id} differs from run to run for some values"


def _io(reading: _Reading) -> Iterator[tuple[int, str]]:
    for node in reading.nodes:
        if not isinstance(node, ast.Call):
            continue
        if _named(reading, node.func) in IO_CALLS:
            yield node.lineno, f"calls {node.func.id}"
        elif isinstance(node.func, ast.Attribute) and node.func.attr in IO_METHODS:
            yield node.lineno, f"calls .{node.func.attr}"


def _dynamic_code(reading: _Reading) -> Iterator[tuple[int, str]]:
    for node in reading.nodes:
        if isinstance(node, ast.Call) and _named(reading, node.func) in DYNAMIC_CALLS:
            yield node.lineno, f"calls {node.func.id}"


def _undefined(reading: _Reading) -> Iterator[tuple[int, str]]:
    """Names that no scope binds: a NameError as soon as the line is reached."""
    if _unknown_star(reading):
        return
    known = reading.bound | PREDEFINED | _star_names("common") | set(dir(builtins)) | {"__name__", "__doc__"}
    for _, module, name, _ in reading.imports:
        if name == "*":
            known |= _star_names(module)
    for node in reading.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in known:
            yield node.lineno, f"name {node.id} is not defined"


RULES: dict[str, Callable[[_Reading], Iterator[tuple[int, str]]]] = {
    "entry": _entry,
    "arity": _arity,
    "import": _import,
    "system": _system,
    "randomness": _randomness,
    "io": _io,
    "dynamic_code": _dynamic_code,
    "undefined": _undefined,
}


def _named(reading: _Reading, node: ast.AST) -> str | None:
    """The builtin that a bare name means; None when the program binds the name itself."""
    return node.id if isinstance(node, ast.Name) and node.id not in reading.bound else None


def _means_module(reading: _Reading, name: str) -> bool:
    """Whether the name is an imported module, or one that the program forgot to import."""
    return name not in reading.bound or any(name == bound for *_, bound in reading.imports)


def _unknown_star(reading: _Reading) -> bool:
    return any(name == "*" and not _star_names(module) for _, module, name, _ in reading.imports)


@lru_cache(maxsize=64)
def _star_names(module: str) -> frozenset[str]:
    """What `from module import *` binds, for the modules that programs use that way; else empty."""
    place = LIBRARIES.get(module)
    if place is None and module not in ("typing", "math", "itertools", "collections", "functools", "numpy"):
        return frozenset()
    try:
        loaded = importlib.import_module(place or module)
    except ImportError:
        return frozenset()
    return frozenset(getattr(loaded, "__all__", None) or (n for n in vars(loaded) if not n.startswith("_")))
