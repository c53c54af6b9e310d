"""Classes of installed packages, read from their source: importing them would load torch."""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError


@functools.cache
def config_fields(source: str) -> dict[str, tuple[str, Any, str]]:
    """name -> (annotation, default where it is a literal, help) of a dataclass in an installed package; empty
    where the package is not installed."""
    found = {}
    for statement in _class_body(source):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            kind = ast.unparse(statement.annotation)
            default, meaning = _field_of(statement.value)
            found[statement.target.id] = (kind, default, meaning)
    return found


def _class_body(source: str) -> list[ast.stmt]:
    """The statements of "file:class" in an installed package; none where the package is not installed."""
    path, _, name = source.partition(":")
    package, _, inside = path.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return []
    file = Path(spec.submodule_search_locations[0], inside)
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
        (found,) = [part for part in body if isinstance(part, ast.ClassDef) and part.name == name]
    except (OSError, ValueError) as error:
        raise ArcnbError(f"{file} does not hold the class {name}: {error}") from None
    return found.body


@functools.cache
def enum_values(source: str) -> tuple[str, ...]:
    """The values of an enumeration of texts, "file:class" below the installed packages; empty where the
    package is not installed."""
    return tuple(
        value
        for part in _class_body(source)
        if isinstance(part, ast.Assign) and isinstance(value := _literal(part.value), str)
    )


def schedules() -> tuple[str, ...]:
    """Names of the learning rate's schedules that transformers has; empty where it is not installed."""
    return enum_values("transformers/trainer_utils.py:SchedulerType")


def optimizers() -> tuple[str, ...]:
    """Names of transformers' optimizers; empty where it is not installed."""
    return enum_values("transformers/training_args.py:OptimizerNames")


def _field_of(value: ast.expr | None) -> tuple[Any, str]:
    """(default, help) of `field(default=..., metadata={"help": ...})`; None where it is no literal."""
    if not isinstance(value, ast.Call):
        return _literal(value), ""
    given = {word.arg: word.value for word in value.keywords}
    metadata = given.get("metadata")
    meaning = ""
    if isinstance(metadata, ast.Dict):
        for key, text in zip(metadata.keys, metadata.values, strict=True):
            if _literal(key) == "help":
                meaning = " ".join(str(_literal(text) or "").split())
    return _literal(given.get("default")), meaning


def _literal(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None
