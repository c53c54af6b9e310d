"""Values of parameters: of the kind that an annotation names, and within a range or among choices.

A kind is an annotation in its short form, as text: "int | None", "list[str]", "dict[str, float]". A range is
an interval, as text: "[1, inf)", "(0, 1]"; NaN is in none.
"""

import ast
import functools
import inspect
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

FINITE = "(-inf, inf)"
NOT_NEGATIVE = "[0, inf)"
POSITIVE = "(0, inf)"
COUNT = "[1, inf)"
SHARE, SOME_SHARE = "[0, 1]", "(0, 1]"
SEED = f"[0, {2**32 - 1}]"  # what numpy takes

# What else a kind is called, in typing, collections.abc and elsewhere.
_SHORT = {
    **dict.fromkeys(("List", "Sequence", "MutableSequence", "Iterable", "Collection", "Container"), "list"),
    **dict.fromkeys(("Dict", "Mapping", "MutableMapping"), "dict"),
    **dict.fromkeys(("Set", "FrozenSet", "AbstractSet", "frozenset"), "set"),
    **dict.fromkeys(("Path", "PurePath", "PathLike", "Text", "AnyStr", "LiteralString"), "str"),
    **dict.fromkeys(("Number", "Real"), "float"),
    "Tuple": "tuple",
    "NoneType": "None",
    "object": "Any",
}
_OUTER = ("Annotated", "Final", "ClassVar", "Required", "NotRequired")  # of the kind that comes first in them
_PLAIN = ("int", "float", "str", "bool", "complex", "bytes")
_HOLDS = {"list": list, "dict": dict, "set": (set, frozenset, list), "tuple": (tuple, list)}


@functools.cache
def short_kind(annotation: str) -> str:
    """The annotation in its short form, "int | None" of `typing.Optional["int"]`; what is not known stays."""
    try:
        return ast.unparse(_short(ast.parse(annotation, mode="eval").body))
    except SyntaxError:
        return annotation


def _short(node: ast.expr) -> ast.expr:
    match node:
        case ast.Constant(value=str(text)):
            return _short(ast.parse(text.strip(), mode="eval").body)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return ast.Name(_SHORT.get(name, name))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return ast.BinOp(_short(left), ast.BitOr(), _short(right))
        case ast.Subscript(value=outer, slice=inner):
            name = ast.unparse(_short(outer))
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if name == "Literal":
                return ast.Subscript(ast.Name(name), inner)
            if name in _OUTER:
                return _short(parts[0])
            kinds = [_short(part) for part in parts]
            if name == "Optional":
                kinds.append(ast.Constant(None))
            if name in ("Optional", "Union"):
                return functools.reduce(lambda left, right: ast.BinOp(left, ast.BitOr(), right), kinds)
            inside = ast.Tuple(kinds) if isinstance(inner, ast.Tuple) else kinds[0]
            return ast.Subscript(ast.Name(name), inside)
    return node


def fits(value: Any, kind: str, lenient: bool = False) -> bool:
    """Whether a value is of this kind (in its short form). lenient: of a kind that is not known everything
    is, which is said once."""
    try:
        return _is(value, ast.parse(kind, mode="eval").body, lenient)
    except SyntaxError:
        return _unknown(kind, lenient)


def _is(value: Any, kind: ast.expr, lenient: bool) -> bool:
    match kind:
        case ast.Constant(value=None) | ast.Name(id="None"):
            return value is None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is(value, left, lenient) or _is(value, right, lenient)
        case ast.Name(id="Any"):
            return True
        case ast.Name(id=name) if name in _PLAIN:
            return type(value).__name__ == name
        case ast.Name(id=name) if name in _HOLDS:
            return isinstance(value, _HOLDS[name])
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            options = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            known = [option.value for option in options if isinstance(option, ast.Constant)]
            return any(value == one and type(value) is type(one) for one in known)
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, inner])):
            return isinstance(value, dict) and all(
                _is(k, key, lenient) and _is(item, inner, lenient) for k, item in value.items()
            )
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=kinds)):
            if not isinstance(value, tuple | list):
                return False
            if isinstance(kinds[-1], ast.Constant) and kinds[-1].value is ...:
                return all(_is(item, kinds[0], lenient) for item in value)
            return len(value) == len(kinds) and all(
                _is(item, kind, lenient) for item, kind in zip(value, kinds, strict=True)
            )
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _HOLDS:
            return isinstance(value, _HOLDS[name]) and all(_is(item, inner, lenient) for item in value)
    return type(value).__name__ == ast.unparse(kind) or _unknown(ast.unparse(kind), lenient)


def _unknown(kind: str, lenient: bool) -> bool:
    if lenient:
        _say_once(f"arcnb: values of the annotation {kind} are not checked")
    return lenient


@functools.cache
def _say_once(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def as_floats(value: Any) -> Any:
    """Whole numbers as floats, inside lists and dictionaries too."""
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return value
    if isinstance(value, list):
        return [as_floats(item) for item in value]
    if isinstance(value, dict):
        return {key: as_floats(item) for key, item in value.items()}
    return value


def range_problem(value: Any, within: str) -> str:
    """What a number has to be that is not in its range ("at least 1"), "" of all else. Of lists and
    dictionaries every number counts."""
    if isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        return next(filter(None, (range_problem(item, within) for item in items)), "")
    if not within or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    low, high = (float(part) for part in within[1:-1].split(","))
    above = value >= low if within[0] == "[" else value > low
    below = value <= high if within[-1] == "]" else value < high
    if above and below:
        return ""
    ends = [f"{'at least' if within[0] == '[' else 'above'} {low:.15g}"] if low > -math.inf else []
    ends += [f"{'at most' if within[-1] == ']' else 'below'} {high:.15g}"] if high < math.inf else []
    if not -math.inf < value < math.inf and len(ends) < 2:
        ends = ["finite", *ends] if ends else ["a finite number"]
    return " and ".join(ends)


@dataclass(frozen=True)
class KeysOf:
    """Choices that are the keys of a registry, "module:NAME", or what a function of that name gives. It is
    imported when a value is checked.

    others: a function, "module:function", that takes these and further texts, and refuses all else with an
    ArcnbError; "": there are no others.
    """

    registry: str
    others: str = ""


@dataclass(frozen=True)
class ReadBy:
    """Texts that a function, "module:function", reads without an ArcnbError; the empty one asks for nothing.
    It is imported when a value is checked."""

    function: str

    def read(self, text: Any) -> None:
        """ArcnbError for a text that cannot be read."""
        if isinstance(text, str) and text:
            resolve_name(self.function)(text)


# A range of numbers, the choices that there are, or what can be read.
Within = str | tuple[Any, ...] | KeysOf | ReadBy


def choices(within: Within) -> tuple[Any, ...]:
    """All that a value can be; () where that is a range."""
    if isinstance(within, KeysOf):
        found = resolve_name(within.registry)
        return tuple(found() if callable(found) else found)
    return within if isinstance(within, tuple) else ()


def meanings(within: Within) -> dict[str, str]:
    """choice -> what it does, of a registry of functions: the first paragraph of each one's docstring; of
    others {}."""
    found = resolve_name(within.registry) if isinstance(within, KeysOf) else None
    if not isinstance(found, Mapping) or not all(map(inspect.isfunction, found.values())):
        return {}
    told = {name: (one.__doc__ or "").split("\n\n")[0] for name, one in found.items()}
    return {name: " ".join(text.split()) for name, text in told.items()} if all(told.values()) else {}


def split_unquoted(text: str, separator: str, most: int = -1) -> list[str]:
    """The parts of a text by a separator that stands outside double quotes; at most so many splits."""
    parts, quoted = [""], False
    pieces = text.split(separator)
    for number, piece in enumerate(pieces):
        parts[-1] += piece
        quoted ^= piece.count('"') % 2 == 1
        if number < len(pieces) - 1:
            if quoted or len(parts) - 1 == most:
                parts[-1] += separator
            else:
                parts.append("")
    return parts


def bare(text: str) -> str:
    """A part without blanks around it, and without the double quotes that its separators stand in."""
    return text.strip().replace('"', "")


def listed(text: str) -> list[str]:
    """Names and paths that are separated by commas; one that holds a comma stands in double quotes."""
    return [found for part in split_unquoted(text, ",") if (found := bare(part))]


def misfit(value: Any, shape: Any, where: str = "it") -> str:
    """Where a structure is not of its shape, in words; "" where it is. A shape is a kind, a list of a shape,
    or shapes by name: "name?" may be None, "name~" may be missing, too."""
    if isinstance(shape, str):
        return "" if fits(value, shape) else f"{where} is {value!r:.80}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is no list"
        return next(
            filter(None, (misfit(item, shape[0], f"{where}[{n}]") for n, item in enumerate(value))), ""
        )
    if not isinstance(value, dict):
        return f"{where} is {value!r:.80}"
    for name, inner in shape.items():
        key = name.rstrip("?~")
        if key not in value and not name.endswith("~"):
            return f"{where} has no {key}"
        if (value.get(key) is not None or name == key) and (found := misfit(value[key], inner, key)):
            return found
    return ""
