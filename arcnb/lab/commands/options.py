"""What several commands share: options, the parameters they give, and how a command says no."""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from arcnb.errors import ArcnbError
from arcnb.lab.notebooks import profiles
from arcnb.lab.notebooks.parameters import Declared, check_parameters
from arcnb.lab.runs.finding import list_runs, run_names
from arcnb.lab.runs.manifest import plain
from arcnb.lab.runs.placeholders import with_runs

NOTEBOOK = "3, 03, inference, 03_inference or a path"
# argparse takes `-1e-5` for an option, unless it is told what a negative number looks like.
NEGATIVE_NUMBER = re.compile(r"-(\d+(_\d+)*(\.\d*)?|\.\d+)([eE][-+]?\d+)?$|-\.inf$")


# What argparse says, and the same in a sentence.
_SENTENCES = {
    r"argument -p: expected 2 arguments": "-p takes a name and a value: -p n_tasks 8",
    r"argument (\S+): invalid int value: (.*)": r"\1 must be a whole number, got \2",
    r"argument (\S+): invalid float value: (.*)": r"\1 must be a number, got \2",
    r"the following arguments are required: (.*)": r"{prog} needs \1; `{prog} --help` ends with examples",
}


class Parser(argparse.ArgumentParser):
    """Refuses in one sentence, as commands do, without the usage above it."""

    given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        sentence = message
        for said, told in _SENTENCES.items():
            sentence = re.sub(f"^{said}$", told.replace("{prog}", self.prog), sentence)
        threes = zip(self.given, self.given[1:], self.given[2:], strict=False)
        odd = [value for p, name, value in threes if p == "-p" and "=" not in name and value[:1] == "-"]
        if sentence.startswith("-p") and odd:
            what = f"-p takes no value that begins with a hyphen, as {odd[0]} does"
            sentence = f"{what}; write it into a profile (-f)"
        if sentence == message:
            sentence = f"{message} (`{self.prog} --help`)"
        self.exit(2, f"arcnb: {sentence}\n")


def refuse_assignments(options: argparse.Namespace) -> None:
    """ArcnbError for `-p n_tasks=8 03`, which takes the notebook for the value."""
    for name, _ in getattr(options, "parameter", []):
        if "=" in name:
            name, _, value = name.partition("=")
            raise ArcnbError(f"-p takes a name and a value: -p {name} {shlex.quote(value)}")


def say(sentence: object, code: int) -> int:
    print(f"arcnb: {sentence}", file=sys.stderr)
    return code


def note(sentence: object) -> None:
    print(sentence, file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def add_command(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], about: str, *examples: str
) -> argparse.ArgumentParser:
    """A subcommand that `--runs` tells where the run folders are; --help ends with the examples."""
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        description=about,
        epilog="\n    ".join(["examples:", *(f"arcnb {name} {example}".rstrip() for example in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added.add_argument("--runs", metavar="DIR", help="where the run folders are ($ARCNB_RUNS or runs/)")
    added.set_defaults(command=command)
    return added


def add_runs(command: argparse.ArgumentParser, nargs: str | None, help: str) -> None:
    """The argument RUN, completed by what there is."""
    run = command.add_argument("run", nargs=nargs, metavar="RUN", help=help)
    run.completer = lambda **_: [*(run.path.name for run in list_runs()), *run_names()]


def add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="for programs: JSON instead of lines")


def add_parameter_options(command: argparse.ArgumentParser) -> None:
    command._negative_number_matcher = NEGATIVE_NUMBER
    add = command.add_argument
    add(
        "-p", dest="parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="a parameter, or an option of the notebook's plan by its path; `arcnb params` lists them. "
        "Values of a list have commas between them",
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
    return with_runs(values | line_values(options, path, own))


def line_values(options: argparse.Namespace, path: Path, own: Declared) -> dict[str, Any]:
    """What -p gives, by the names that the notebook declares, however they were written."""
    values: dict[str, Any] = {}
    for name, text in options.parameter:
        value = profiles.parse_value(text, own.find(name)) if own.knows(name) else profiles.parse_value(text)
        values |= check_parameters({name: value}, own, path.name)
    return with_runs(values)
