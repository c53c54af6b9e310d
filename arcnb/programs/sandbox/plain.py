"""Which programs may share a process: those whose code reaches nothing that outlives them.

A program is *plain* when its compiled code names only numpy, the grid libraries and the harmless part of
the standard library, never a private or dunder attribute, neither defines a class nor assigns an attribute,
and has no generator with `try` or `with`. Such a program can read its input and build values of its own; it
cannot reach a module's dictionary, a frame, a file descriptor or an object of another program, and nothing of
it runs once it has ended. Plain programs run in batches, one sandboxed child for many; all others get a child
each. Nothing is refused here.

The check reads opcodes and names off the compiled code, not the source: what runs is what is checked, and it
takes microseconds. An attribute is safe because it stands in ``plain_names``, or because nothing loaded in
this interpreter has an attribute of that name: then a namedtuple of the program has it, or the program fails.
Matching on classes is out because it names attributes in constants.
"""

from __future__ import annotations

import builtins
import inspect
import opcode
import re
import sys
import types
import typing
from collections.abc import Iterator

from arcnb.programs.sandbox.plain_names import ATTRIBUTES, BUILTINS, GLOBAL_DUNDERS, MODULES, SPREADABLE

_OP = opcode.opmap
_KNOWN_VERSION = sys.version_info[:2] in ((3, 11), (3, 12))  # whose opcodes were studied
_FORBIDDEN = ("STORE_ATTR", "DELETE_ATTR", "LOAD_BUILD_CLASS", "MATCH_CLASS", "LOAD_SUPER_ATTR")
_PERMITTED = bytes(code for code in range(256) if code not in {_OP.get(name) for name in _FORBIDDEN})
_NAMED = frozenset(op for op in opcode.hasname if op < 256)  # 3.12 lists pseudo-operations as well
# The name's index is the argument shifted by flags: LOAD_GLOBAL since 3.11, LOAD_ATTR since 3.12.
_SHIFT = {_OP["LOAD_GLOBAL"]: 1} | ({_OP["LOAD_ATTR"]: 1} if sys.version_info >= (3, 12) else {})
# Code that stops halfway, and the operation that every handler of the program's own begins with (since 3.12
# all generators have one of the interpreter's as well, which begins with another).
_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_HANDLER = _OP["PUSH_EXC_INFO"]
_EXTENDED, _IMPORT, _IMPORT_FROM = _OP["EXTENDED_ARG"], _OP["IMPORT_NAME"], _OP["IMPORT_FROM"]
_INTRINSIC, _INTRINSIC_STAR = _OP.get("CALL_INTRINSIC_1"), 2  # how 3.12 spells the next one
_STAR = _OP.get("IMPORT_STAR", -1)
_INTERESTING = re.compile(
    b"[" + re.escape(bytes(sorted(_NAMED | {_STAR if _INTRINSIC is None else _INTRINSIC}))) + b"]", re.DOTALL
)
_ATTRIBUTE_LOADS = {_OP["LOAD_ATTR"], _OP.get("LOAD_METHOD")}
_GLOBAL_LOADS = {_OP["LOAD_NAME"], _OP["LOAD_GLOBAL"]}
_BINDINGS = {_OP[name] for name in ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL")}
_OWN_PACKAGES = ("arcnb.", "_rearc_source")


class Screen:
    """Decides for one warm interpreter; built after everything it preloads is loaded.

    ``libraries`` are the grid libraries by import name. Their functions and constants are safe, except those
    that draw random numbers and those that are mutable (``shared``).
    """

    def __init__(self, libraries: dict[str, types.ModuleType]) -> None:
        contents = {name: value for library in libraries.values() for name, value in vars(library).items()}
        mutable = {name for _, name, _ in mutable_values(libraries.values())}
        drawing = {name for name, value in contents.items() if _draws(value, set())}
        self._shared = mutable | drawing | (set(typing.__all__) - ATTRIBUTES)
        self._known = frozenset(_attribute_names())
        self._modules = (MODULES & set(sys.modules)) | set(libraries)
        self._exports = {name for name in contents if not name.startswith("_")} - self._shared
        self._unsafe_builtins = frozenset(
            name
            for name, value in vars(builtins).items()
            if name not in BUILTINS | GLOBAL_DUNDERS
            and not (isinstance(value, type) and issubclass(value, BaseException))
        )
        self._attributes = (ATTRIBUTES | (BUILTINS - {"format"})) - self._shared
        # Safe as a global and as an attribute alike; import statements are looked at in any case.
        self._anywhere = self._attributes - self._unsafe_builtins

    def is_plain(self, code: types.CodeType) -> bool:
        """Whether a compiled program may share its process."""
        return _KNOWN_VERSION and all(self._is_plain(part) for part in _nested(code))

    def _is_plain(self, code: types.CodeType) -> bool:
        operations = code.co_code[::2]
        if operations.translate(None, _PERMITTED) or _may_run_late(code, operations):
            return False
        if _IMPORT not in operations:
            for name in code.co_names:
                if name not in self._anywhere and (
                    name in self._known or name[0] == "_" or name in self._shared
                ):
                    break
            else:
                return True
        module = None
        for operation, name in _operations(code):
            if operation == _IMPORT:
                module = name
                safe = module in self._modules
            elif operation == _STAR:
                safe = module in SPREADABLE
            elif operation == _IMPORT_FROM:
                safe = name in ATTRIBUTES or name in self._exports
            elif operation in _GLOBAL_LOADS:
                safe = name not in self._unsafe_builtins and name not in self._shared and not _is_dunder(name)
            elif operation in _ATTRIBUTE_LOADS:
                safe = name in self._attributes or not (
                    name in self._known or name in self._shared or name[0] == "_"
                )
            else:
                safe = operation in _BINDINGS and not _is_dunder(name)
            if not safe:
                return False
        return True


def _may_run_late(code: types.CodeType, operations: bytes) -> bool:
    """Whether this code may go on after its program has ended: a generator or coroutine with a handler.

    One that is left open is closed when it is freed, and then its `finally`, `except` or `with` runs: in a
    cycle, or in one of typing's caches, that is in the middle of some later program. Without a handler
    nothing of it runs.
    """
    return bool(code.co_flags & _SUSPENDABLE) and _HANDLER in operations


def _draws(function: object, seen: set[int]) -> bool:
    """Whether a library function draws random numbers, itself or through another."""
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return False
    seen.add(id(function))
    names = {name for part in _nested(function.__code__) for name in part.co_names}
    return "random" in names or any(_draws(function.__globals__.get(name), seen) for name in names)


def mutable_values(modules) -> Iterator[tuple[object, str, object]]:
    """Lists, dictionaries and sets that the modules and their classes hold: (holder, name, value)."""
    for module in modules:
        for name, value in vars(module).items():
            if name.startswith("__"):
                continue
            if isinstance(value, list | dict | set):
                yield module, name, value
            elif isinstance(value, type) and _is_own(value):
                for inner, held in vars(value).items():
                    if not inner.startswith("__") and isinstance(held, list | dict | set):
                        yield value, inner, held


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _operations(code: types.CodeType) -> Iterator[tuple[int, str]]:
    """The operations of ``code`` that carry a name, and star imports; inline caches read as operation 0."""
    raw, names = code.co_code, code.co_names
    operations = raw[::2]
    for match in _INTERESTING.finditer(operations):
        at = match.start()
        operation, argument, shift = operations[at], raw[2 * at + 1], 8
        while at and operations[at - 1] == _EXTENDED:
            at -= 1
            argument |= raw[2 * at + 1] << shift
            shift += 8
        if operation in _NAMED:
            yield operation, names[argument >> _SHIFT.get(operation, 0)]
        elif operation == _STAR or argument == _INTRINSIC_STAR:
            yield _STAR, "*"


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name not in GLOBAL_DUNDERS


def _attribute_names() -> Iterator[str]:
    """Every name that a loaded module or class has as an attribute, our own libraries apart."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and not module.__name__.startswith(_OWN_PACKAGES):
            yield from vars(module)
            yield from getattr(module, "__all__", ())
            yield name.rpartition(".")[2]
            if "__dir__" in vars(module):  # a package that loads its parts on demand
                yield from dir(module)
    seen: set[type] = set()
    waiting: list[type] = [object]
    while waiting:
        kind = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            waiting += type.__subclasses__(kind)
            if not _is_own(kind):
                yield from vars(kind)


def _is_own(kind: type) -> bool:
    """Whether a class comes from the grid libraries (some classes have a property for ``__module__``)."""
    module = vars(kind).get("__module__")
    return isinstance(module, str) and module.startswith(_OWN_PACKAGES)
