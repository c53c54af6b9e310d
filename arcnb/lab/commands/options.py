"""What several commands share: options, the parameters they give, and how a command says no."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.batch.sweeps import Sweep, find_sweep
from arcnb.lab.notebooks import files, profiles
from arcnb.lab.notebooks.parameters import Declared, check_parameters, default_values
from arcnb.lab.runs.run import Run, find_run

NOTEBOOK = "3, 03, inference, 03_inference or a path"
# argparse takes `-1e-5` for an option, unless it is told what a negative number looks like.
NEGATIVE_NUMBER = re.compile(r"-(\d+(_\d+)*(\.\d*)?|\.\d+)([eE][-+]?\d+)?$|-\.inf$")


def say(sentence: object, code: int) -> int:
    print(f"arcnb: {sentence}", file=sys.stderr)
    return code


def note(sentence: object) -> None:
    print(sentence, file=sys.stderr, flush=True)


def root_option() -> argparse.ArgumentParser:
    """A parent parser with --runs."""
    root = argparse.ArgumentParser(add_help=False)
    root.add_argument("--runs", metavar="DIR", help="where the run folders are ($ARCNB_RUNS or runs/)")
    return root


def add_parameter_options(command: argparse.ArgumentParser) -> None:
    command._negative_number_matcher = NEGATIVE_NUMBER
    add = command.add_argument
    add(
        "-p", dest="parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="a parameter, or an option of the notebook's plan by its path; `arcnb params` lists them",
    )  # fmt: skip
    add(
        "-f", dest="profile", action="append", default=[], metavar="PROFILE", help="YAML file or profile name"
    )


def given_values(options: argparse.Namespace, path: Path, declared: dict[str, Declared]) -> dict[str, Any]:
    """Profiles in their order, then -p."""
    own = declared[path.stem]
    values: dict[str, Any] = {}
    for reference in options.profile:
        profile = profiles.find_profile(reference, path.parent)
        given = profiles.profile_values(profile, path.stem, declared)
        if not given:  # a profile of other notebooks: a run on the defaults is not what was asked for
            raise ArcnbError(f"{profile} gives no parameter of {path.stem}")
        values |= given
    for name, text in options.parameter:
        value = profiles.parse_value(text, own.find(name)) if own.knows(name) else profiles.parse_value(text)
        values |= check_parameters({name: value}, own, path.name)
    return values


def complete_values(options: argparse.Namespace, path: Path) -> tuple[dict[str, Any], Declared]:
    """(all parameters of a run, what the notebook declares)"""
    declared = files.declared_beside(path)
    return default_values(declared[path.stem]) | given_values(options, path, declared), declared[path.stem]


def named(reference: str, beginnings: bool = True) -> Sweep | Run:
    """The sweep or the run that a reference speaks of. Both may be called after their notebook: then nobody
    knows which is meant, and ArcnbError says how to name either."""
    sweep = find_sweep(reference) if reference.strip() else None
    if sweep is None:
        return find_run(reference, beginnings=beginnings)
    try:
        run = find_run(reference, beginnings=False)
    except ArcnbError:
        return sweep
    if not sweep.members:  # its runs were removed
        return run
    raise ArcnbError(
        f"{reference!r} is a sweep and a run; say which by its folder, {sweep.folder} or {run.path}"
    )


def runs_named(references: list[str], beginnings: bool = True) -> list[Run]:
    """The runs of these references, each once; the name of a sweep stands for all of its runs."""
    found: dict[Path, Run] = {}
    for reference in references:
        one = named(reference, beginnings)
        for run in [member.run for member in one.members] if isinstance(one, Sweep) else [one]:
            found.setdefault(run.path, run)
    return list(found.values())
