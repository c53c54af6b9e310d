"""What several commands share: options, the parameters they give, and how a command says no."""

import argparse
import sys
from pathlib import Path
from typing import Any

from arcnb.lab import notebooks, profiles
from arcnb.lab.parameters import ParameterError, check_parameters, default_values, nearest
from arcnb.lab.runs import Run, find_run
from arcnb.lab.sweeps import find_sweep


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
    add = command.add_argument
    add("-p", dest="parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    add(
        "-f", dest="profile", action="append", default=[], metavar="PROFILE", help="YAML file or profile name"
    )


def given_values(options: argparse.Namespace, path: Path, declared: dict[str, Any]) -> dict[str, Any]:
    """Profiles in their order, then -p."""
    own = declared[path.stem]
    values: dict[str, Any] = {}
    for reference in options.profile:
        profile = profiles.find_profile(reference, path.parent)
        given = profiles.profile_values(profile, path.stem, declared)
        if not given:  # a profile of other notebooks: a run on the defaults is not what was asked for
            raise ParameterError(f"{profile} gives no parameter of {path.stem}")
        values |= given
    for name, text in options.parameter:
        if name not in own:
            raise ParameterError(f"{path.name} has no parameter {name!r}{nearest(name, own)}")
        values[name] = profiles.parse_value(text, own[name])
    return check_parameters(values, own, path.name)


def complete_values(options: argparse.Namespace, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(all parameters of a run, what the notebook declares)"""
    declared = notebooks.declared_beside(path)
    return default_values(declared[path.stem]) | given_values(options, path, declared), declared[path.stem]


def runs_named(references: list[str]) -> list[Run]:
    """The runs of these references, each once; the name of a sweep stands for all of its runs."""
    found: dict[Path, Run] = {}
    for reference in references:
        sweep = find_sweep(reference)
        for run in [member.run for member in sweep.members] if sweep else [find_run(reference)]:
            found.setdefault(run.path, run)
    return list(found.values())
