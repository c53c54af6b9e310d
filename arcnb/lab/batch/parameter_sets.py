"""The parameter sets of a sweep: `--grid name=value,value`, a YAML file of sets, or both multiplied; a name
for each.

The file is a list of sets, or says more:

    notebook: 05                    # optional: which notebook the sets are for
    profile: grpo                   # one or a list, as with -f; files beside this one, too
    parameters: {max_steps: 300}    # what all sets have
    sets:                           # a list, or a mapping that names them
      rank1: {lora.r: 1}
      rank8: {lora.r: 8}
    grid: {seed: [0, 1, 2]}
    name: ranks                     # of the sweep; default: the file's name
    seconds: 3600                   # and jobs, gpus, per_gpu, apart: as the options of `arcnb sweep`
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.batch.pipelines import profiled, refuse_unknown
from arcnb.lab.notebooks import files
from arcnb.lab.notebooks.parameters import Declared, Parameter, check_parameters, find_parameter, named_once
from arcnb.lab.notebooks.profiles import load_yaml, parse_value

NAME_CHARACTERS = 100  # of the part of a run's name that tells the sets apart
VALUE_CHARACTERS = 24
KEYS = ("notebook", "profile", "parameters", "sets", "grid", "name")
NUMBERS = ("jobs", "gpus", "per_gpu", "apart", "seconds")

Values = dict[str, Any]


@dataclass(frozen=True)
class ParameterSet:
    """`label`: what its name and its row of the table say of it: its values, or its name in the file."""

    values: Values
    label: Values


@dataclass(frozen=True)
class SweepFile:
    path: Path
    content: Mapping[str, Any] = field(default_factory=dict)

    def base(self, notebook: Path, declared: Mapping[str, Declared]) -> Values:
        """What all sets have: profiles in their order, then parameters. ArcnbError if the file is for another
        notebook."""
        named = self.content.get("notebook")
        if named is not None and (meant := files.find_notebook(str(named))) != notebook:
            raise ArcnbError(f"the sets of {self.path} are for {meant.stem}, not for {notebook.stem}")
        values = profiled(self.content.get("profile"), self.path, notebook, declared)
        given = self.content.get("parameters") or {}
        return values | check_parameters(given, declared[notebook.stem], f"{self.path}, parameters")

    def grid(self, declared: Declared) -> dict[str, list[Any]]:
        return named_once(self.content.get("grid") or {}, declared, f"{self.path}, grid")

    def sets(self, declared: Declared) -> list[ParameterSet]:
        described = self.content.get("sets") or []
        named = isinstance(described, dict)
        found = []
        for name, given in described.items() if named else enumerate(described, start=1):
            values = check_parameters(given, declared, f"{self.path}, set {name}")
            found.append(ParameterSet(values, {"set": str(name)} if named else values))
        return found


def read_sweep_file(path: Path) -> SweepFile:
    """ArcnbError for a file that cannot be read, an unknown key, or something of the wrong kind."""
    content = load_yaml(path)
    content = {"sets": content} if isinstance(content, list) else content
    if not isinstance(content, dict):
        raise ArcnbError(f"{path} must hold a list of parameter sets (`- name: value` ...) or a sweep")
    refuse_unknown(content, (*KEYS, *NUMBERS), str(path))
    sets, grid, parameters = (content.get(key) or {} for key in ("sets", "grid", "parameters"))
    listed = sets.values() if isinstance(sets, dict) else sets if isinstance(sets, list) else [sets]
    for given in [parameters, grid, *listed]:
        if not isinstance(given, dict):
            raise ArcnbError(f"{path}: parameters, a set and a grid are `name: value` lines, not {given!r}")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ArcnbError(f"{path}: the grid must give a list of values for {name!r}, not {values!r}")
    for name in NUMBERS:
        if name in content and (type(content[name]) is not int or content[name] < 0):
            raise ArcnbError(f"{path}: {name} must be a whole number, 0 or more, not {content[name]!r}")
    return SweepFile(path, content)


def grid_choices(axes: Sequence[str], declared: Declared, where: str) -> dict[str, list[Any]]:
    """The values of each parameter in `name=value,value` texts; those with commas in them are written as
    `name=[a, b]`."""
    choices: dict[str, list[Any]] = {}
    for text in axes:
        name, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise ArcnbError(f"--grid {text!r} should be written name=value,value")
        known = find_parameter(name, declared, where)
        if known.name in choices:
            raise ArcnbError(f"--grid gives {name!r} twice")
        choices[known.name] = _values(values, known)
    return choices


def grid_sets(choices: Mapping[str, list[Any]], declared: Declared, where: str) -> list[ParameterSet]:
    """Every combination of the values."""
    products = (dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values()))
    checked = [check_parameters(values, declared, where) for values in products]
    return [ParameterSet(values, values) for values in checked]


def multiplied(lists: Sequence[Sequence[ParameterSet]]) -> list[ParameterSet]:
    """Every set of the first list with every set of the second; two that give the same parameter clash."""
    sets = []
    for parts in itertools.product(*lists):
        values: Values = {}
        label: Values = {}
        for part in parts:
            if twice := values.keys() & part.values.keys():
                raise ArcnbError(f"the grid and the sets both give {sorted(twice)[0]!r}")
            values |= part.values
            label |= part.label
        sets.append(ParameterSet(values, label))
    return sets


def refuse_duplicates(sets: Sequence[ParameterSet], base: Values) -> None:
    """ArcnbError if two sets, completed by the base values, are the same."""
    seen: dict[str, int] = {}
    for number, one in enumerate(sets, start=1):
        key = json.dumps(base | one.values, sort_keys=True)
        if key in seen:
            given = ", ".join(f"{name} = {value!r}" for name, value in one.label.items()) or "the base values"
            raise ArcnbError(f"set {number} of the sweep is the same as set {seen[key]}: {given}")
        seen[key] = number


def set_name(label: Values) -> str:
    """`lr_1e-05.seed_3`: the same for the same set, whatever else is in the sweep."""
    text = ".".join(f"{name}_{_short(value)}" for name, value in label.items()) or "base"
    if len(text) <= NAME_CHARACTERS:
        return text
    return f"{text[: NAME_CHARACTERS - 9].rstrip('._-')}-{_digest(label)}"


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
