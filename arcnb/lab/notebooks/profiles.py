"""Profiles: YAML files that give parameters, for one notebook or for many.

    all:                      # for every notebook that has the parameter
      backend: vllm
    03_inference:             # for this notebook only
      n_predictions: 64
    seed: 7                   # any other key is a parameter of the notebook that is run

A copy of a notebook beside it, without a section of its own, takes the section of the one whose plan it has.
An option of a notebook's plan is written `guard.window: 10` or `guard: {window: 10}`.

Later wins: `all`, then the notebook's section, then plain keys. Every name and every value in the file is
checked, also the names for other notebooks, so a typo shows on the first run and not in the third hour. A
file of plain keys also works with `papermill -f`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from arcnb.errors import ArcnbError, nearest, reason
from arcnb.lab.notebooks.parameters import Declared, Parameter, check_parameters
from arcnb.lab.runs.named_paths import existing_file
from arcnb.plans import nearest_option

NOTHING = ("null", "~", "None")  # what stands for None on the command line, where a text or None is declared


def find_profile(reference: str, notebooks: Path) -> Path:
    """A file as given, or `profiles/<reference>.yaml` beside the notebooks."""
    folder = notebooks / "profiles"
    for path in (reference, folder / f"{reference}.yaml", folder / reference):
        if (file := existing_file(path)) is not None:
            return file
    names = [path.stem for path in folder.glob("*.yaml")]
    raise ArcnbError(
        f"there is no profile {reference!r}, neither as a file nor in {folder}{nearest(reference, names)}"
    )


def profile_values(path: Path, notebook: str, declared: Mapping[str, Declared]) -> dict[str, Any]:
    """The parameters that a profile gives to `notebook` (a key of `declared`: notebook stem -> its
    parameters)."""
    values = read_yaml(path)
    sections = {key: value for key, value in values.items() if key == "all" or key in declared}
    plain = {key: value for key, value in values.items() if key not in sections}
    for key, value in plain.items():
        if isinstance(value, dict) and not _takes(key, value, declared[notebook]):
            raise ArcnbError(
                f"{path}: {key!r} is neither a notebook nor a parameter{nearest(key, [*declared, 'all'])}"
            )
    for key, section in sections.items():
        if not isinstance(section, dict):
            raise ArcnbError(f"{path}: section {key!r} must hold parameters, got {section!r}")

    shared, taken = sections.get("all", {}), set()
    chosen: dict[str, dict[str, Any]] = {}
    for stem, parameters in declared.items():
        own = {name: value for name, value in shared.items() if _takes(name, value, parameters)}
        chosen[stem] = check_parameters(own, parameters, f"{path}, section 'all' for {stem}")
        taken |= own.keys()
    if unknown := [name for name in shared if name not in taken]:
        names = {name for parameters in declared.values() for name in parameters.names()}
        near = nearest_option(unknown[0], names)
        raise ArcnbError(f"{path}: no notebook has the parameter {unknown[0]!r} of section 'all'{near}")
    for stem, parameters in declared.items():
        chosen[stem] |= check_parameters(sections.get(stem, {}), parameters, f"{path}, section {stem!r}")
    own = declared[notebook]
    for stem, section in sections.items() if own.plan_name and notebook not in sections else ():
        if stem != "all" and declared[stem].plan_name == own.plan_name:
            chosen[notebook] |= check_parameters(section, own, f"{path}, section {stem!r} for {notebook}")
    return chosen[notebook] | check_parameters(plain, declared[notebook], str(path))


def _takes(name: str, value: Any, declared: Declared) -> bool:
    """Whether this is a parameter of the notebook, or a mapping with options of its plan."""
    return any(map(declared.knows, declared.opened({name: value})))


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file whose top is a mapping (an empty file is an empty one); ArcnbError names file and
    line."""
    values = load_yaml(path)
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ArcnbError(f"{path} must hold `name: value` lines, got a {type(values).__name__}")
    return values


def load_yaml(path: Path, text: str | None = None) -> Any:
    """Whatever a YAML file holds (or `text`, which `path` is then only the name of)."""
    try:
        return yaml.load(path.read_text(encoding="utf-8") if text is None else text, Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ArcnbError(f"{path} cannot be read: {reason(error)}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ArcnbError(f"{path}{line}: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise ArcnbError(f"{path}: lists or mappings are too deep within each other") from None


def parse_value(text: str, parameter: Parameter = Parameter("", None, "any", "")) -> Any:
    """The value of `-p name text`: a YAML scalar, list or mapping; the text itself, letter by letter, where a
    text is declared. For a list the values may stand alone, with commas between them."""
    kind = parameter.kind
    kinds = {kind.strip() for kind in kind.split("|")}
    if text in NOTHING and "None" in kinds:
        return None
    if kinds <= {"str", "None"}:
        return text  # of which YAML would take what follows ` #`, quotes and anchors away
    kind = kind.removesuffix(" | None")
    if kind.startswith("list") and not text.lstrip().startswith("["):
        element = kind.removeprefix("list[").removesuffix("]") if kind != "list" else "any"
        of_list = replace(parameter, kind=element)
        if "," not in text or text.lstrip().startswith("{"):
            return [parse_value(text, of_list)]
        return [parse_value(value.strip(), of_list) for value in text.split(",")]
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError):
        return text


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars: `1e-4` is a number, `no` and `12:30` and `2025-01-31` are texts. A key is a text, as
    it is written: `8: x` has the key "8". One given twice is an error. There are no merge keys (`<<`):
    sections do that work here."""

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            return super().construct_mapping(node, deep)  # which says so
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key, problem = key_node.value, ""
            if not isinstance(key_node, yaml.ScalarNode):
                problem = (
                    f"a key must be a text, not a {'list' if key_node.id == 'sequence' else key_node.id}"
                )
            elif key in found:
                problem = f"key {key!r} is given twice"
            if problem:
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            found[key] = self.construct_object(value_node, deep=deep)
        return found

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError):  # `!!int x`, or more digits than Python converts
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value[:40]!r} cannot be read as {kind}", node.start_mark
            ) from None


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|None|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+(_[0-9]+)*", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(node.value.replace(".inf", "inf").replace(".nan", "nan"))


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(node.value)  # decimal always: 010 is ten, not eight


_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
