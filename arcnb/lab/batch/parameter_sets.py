"""The parameter sets of a sweep: `--grid name=value,value`, a YAML list of sets, or both multiplied; a name
for each."""

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.parameters import Declared, Parameter, check_parameters, find_parameter
from arcnb.lab.notebooks.profiles import load_yaml, parse_value

NAME_CHARACTERS = 100  # of the part of a run's name that tells the sets apart
VALUE_CHARACTERS = 24

Values = dict[str, Any]


def grid_sets(axes: Sequence[str], declared: Declared, where: str) -> list[Values]:
    """The product of `name=value,value` texts; values with commas in them are written as `name=[a, b]`."""
    choices: dict[str, list[Any]] = {}
    for text in axes:
        name, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise ArcnbError(f"--grid {text!r} should be written name=value,value")
        known = find_parameter(name, declared, where)
        if known.name in choices:
            raise ArcnbError(f"--grid gives {name!r} twice")
        choices[known.name] = _values(values, known)
    sets = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    return [check_parameters(values, declared, where) for values in sets]


def listed_sets(path: Path, declared: Declared) -> list[Values]:
    """A YAML list of mappings, each a parameter set."""
    sets = load_yaml(path)
    if not isinstance(sets, list) or not sets or not all(isinstance(values, dict) for values in sets):
        raise ArcnbError(f"{path} must hold a list of parameter sets (`- name: value` ...)")
    return [
        check_parameters(values, declared, f"{path}, set {number}")
        for number, values in enumerate(sets, start=1)
    ]


def multiplied(lists: Sequence[Sequence[Values]]) -> list[Values]:
    """Every set of the first list with every set of the second; two that give the same parameter clash."""
    sets: list[Values] = []
    for parts in itertools.product(*lists):
        merged: Values = {}
        for part in parts:
            if twice := merged.keys() & part.keys():
                raise ArcnbError(f"the grid and the list both give {sorted(twice)[0]!r}")
            merged |= part
        sets.append(merged)
    return sets


def refuse_duplicates(sets: Sequence[Values], base: Values) -> None:
    """ArcnbError if two sets, completed by the base values, are the same."""
    seen: dict[str, int] = {}
    for number, values in enumerate(sets, start=1):
        key = json.dumps(base | values, sort_keys=True)
        if key in seen:
            given = ", ".join(f"{name} = {value!r}" for name, value in values.items()) or "the base values"
            raise ArcnbError(f"set {number} of the sweep is the same as set {seen[key]}: {given}")
        seen[key] = number


def set_name(values: Values) -> str:
    """`lr_1e-05.seed_3`: the same for the same set, whatever else is in the sweep."""
    pieces = [f"{name}_{_short(value)}" for name, value in values.items()]
    text = ".".join(pieces) or "base"
    if len(text) <= NAME_CHARACTERS:
        return text
    return f"{text[: NAME_CHARACTERS - 9].rstrip('._-')}-{_digest(values)}"


def _short(value: Any) -> str:
    """A value as part of a folder name. Where something had to be left out, a hash tells it from others."""
    text = value if isinstance(value, str) else json.dumps(value)
    if value is None or isinstance(value, bool | int | float):
        return text.replace("+", "")
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    if clean == text and len(clean) <= VALUE_CHARACTERS:
        return clean
    ending = re.sub(r"[^A-Za-z0-9._-]+", "-", text.rstrip("/").rpartition("/")[2])  # of a path
    return f"{ending[-VALUE_CHARACTERS:].strip('-._')}-{_digest(value)[:4]}".lstrip("-")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _values(text: str, parameter: Parameter) -> list[Any]:
    if text.lstrip().startswith("["):
        values = load_yaml(Path("--grid"), text)
        if not isinstance(values, list) or not values:
            raise ArcnbError(f"--grid {parameter.name}={text} is not a list")
        return values
    return [parse_value(value.strip(), parameter) for value in text.split(",")]
