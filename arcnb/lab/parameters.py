"""Parameters of a notebook: what its `parameters` cell declares, and whether given values fit.

The cell tagged `parameters` holds literal assignments, each with a comment that says what it is and in what
unit:

    n_tasks = 40               # how many tasks, from the start of the task set
    adapter: str | None = None # run folder of 02_sft, or None for the bare model

A parameter's kind is its annotation, else the type of its default (a list's elements included). papermill
itself warns about an unknown name and never looks at types; here both stop a run before its kernel starts.
"""

import ast
import difflib
import io
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class ParameterError(ValueError):
    """An unknown parameter, a value of the wrong type, or a parameters cell that cannot be read."""


@dataclass(frozen=True)
class Parameter:
    name: str
    default: Any  # None also where the default is not a literal
    kind: str  # "int", "str | None", "list[float]", ...; "any" if nothing is known
    comment: str  # the comment behind the assignment, or the lines of comment above it


def notebook_parameters(notebook: Mapping[str, Any], where: str = "notebook") -> dict[str, Parameter]:
    """The parameters that a notebook (nbformat 4) declares, in order; empty without a cell tagged
    `parameters`."""
    for cell in notebook["cells"]:
        if "parameters" in cell["metadata"].get("tags", []):
            return _read_cell("".join(cell["source"]), where)
    return {}


def default_values(declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """What a run gets without being told; without defaults that only Python could work out."""
    known = (
        parameter for parameter in declared.values() if (parameter.kind, parameter.default) != ("any", None)
    )
    return {parameter.name: parameter.default for parameter in known}


def check_parameters(
    values: Mapping[str, Any], declared: Mapping[str, Parameter], where: str
) -> dict[str, Any]:
    """Return `values` with whole numbers for float parameters made floats, or raise ParameterError for the
    first unknown name (with the nearest known one) or ill-typed value. `where` opens the message: a notebook
    or a file."""
    checked = {}
    for name, value in values.items():
        if name not in declared:
            raise ParameterError(f"{where} has no parameter {name!r}{nearest(name, declared)}")
        checked[name] = _fit(value, declared[name], where)
    return checked


def nearest(name: str, names: Iterable[str]) -> str:
    """'; did you mean ...?' for a near miss, else the list of what there is."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; it has {', '.join(sorted(names))}" if names else "; it has none"


def _fit(value: Any, parameter: Parameter, where: str) -> Any:
    if parameter.kind == "any":
        return value
    kind = ast.parse(parameter.kind, mode="eval").body
    for candidate in (value, _as_floats(value)):
        if _is(candidate, kind):
            return candidate
    raise ParameterError(
        f"{where}: parameter {parameter.name!r} must be {parameter.kind} (default {parameter.default!r}), "
        f"got {value!r} of type {type(value).__name__}"
    )


def _is(value: Any, kind: ast.expr) -> bool:
    match kind:
        case ast.Constant(value=None):
            return value is None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is(value, left) or _is(value, right)
        case ast.Name(id="Any" | "object"):
            return True
        case ast.Name(id=name):
            return type(value).__name__ == name
        case ast.Subscript(value=ast.Name(id="list"), slice=element):
            return isinstance(value, list) and all(_is(item, element) for item in value)
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, element])):
            return isinstance(value, dict) and all(
                _is(k, key) and _is(item, element) for k, item in value.items()
            )
    return False


def _as_floats(value: Any) -> Any:
    """Whole numbers as floats, inside lists and dictionaries too."""
    if type(value) is int:
        return float(value)
    if isinstance(value, list):
        return [_as_floats(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_floats(item) for key, item in value.items()}
    return value


def _read_cell(source: str, where: str) -> dict[str, Parameter]:
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise ParameterError(
            f"{where}: the parameters cell is not Python: line {error.lineno}: {error.msg}"
        ) from None
    comments = _comments(source)
    parameters = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                kind = None
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
                kind = ast.unparse(annotation)
            case _:
                continue
        try:
            default = ast.literal_eval(value)
            kind = kind or _kind_of(default)
        except ValueError:  # an expression: only Python can tell its value
            default, kind = None, kind or "any"
        parameters[name] = Parameter(name, default, kind, _comment_of(statement, comments))
    return parameters


def _kind_of(default: Any) -> str:
    if default is None:
        return "any"
    if isinstance(default, list):
        kinds = sorted({_kind_of(item) for item in default})
        return f"list[{' | '.join(kinds)}]" if kinds and "any" not in kinds else "list"
    return type(default).__name__


def _comments(source: str) -> dict[int, tuple[str, bool]]:
    """line -> (comment, does it stand alone on its line)"""
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = (
                token.string.lstrip("# ").rstrip(),
                not token.line[: token.start[1]].strip(),
            )
    return comments


def _comment_of(statement: ast.stmt, comments: dict[int, tuple[str, bool]]) -> str:
    for line in (statement.end_lineno, statement.lineno):
        if line in comments:
            return comments[line][0]
    above: list[str] = []
    line = statement.lineno - 1
    while line in comments and comments[line][1]:
        above.insert(0, comments[line][0])
        line -= 1
    return " ".join(above)
