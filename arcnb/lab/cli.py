"""The command line: run notebooks, look at runs. `arcnb --help` lists the commands, `arcnb COMMAND --help`
ends with examples.

`arcnb run` prints the run folder, and nothing else, on standard output. It ends with 0 when the run is done,
1 when it failed, 2 when it could not start (notebook, parameter, run folder), 128 + signal when it was
stopped or killed (143 where only its trainer heard the signal). The commands are in arcnb.lab.commands.
"""

import argparse
import gc
import os
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

from arcnb.errors import ArcnbError, nearest
from arcnb.lab.commands import batch, cluster, notebooks, runs, workspaces
from arcnb.lab.commands.options import Parser, refuse_assignments, say
from arcnb.lab.execution.lost_terminal import steady_streams
from arcnb.machine.processes import leave

GROUPS = {
    "one notebook": ("run", "params"),
    "many runs": ("sweep", "pipeline"),
    "other machines": ("submit", "status", "cancel"),
    "this machine": ("init", "upgrade", "doctor", "bundle"),
    "what there is": ("ls", "show", "report", "rm"),
}


def main(arguments: list[str] | None = None) -> int:
    known = parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for the ends of a word, and this does not return
        import argcomplete

        argcomplete.autocomplete(known)
    given = sys.argv[1:] if arguments is None else arguments
    first = next(iter(given), "-h")
    commands = {name for names in GROUPS.values() for name in names}
    with steady_streams():
        if odd := next((one for one in given if not _is_utf8(one)), None):
            return say(f"{odd!r} is not UTF-8, in which manifests are written", 2)
        if not first.startswith("-") and first not in commands:
            return say(f"there is no command {first!r}{nearest(first, commands)}", 2)
        return _done(known.parse_args(arguments))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _done(options: argparse.Namespace) -> int:
    if options.runs:
        os.environ["ARCNB_RUNS"] = options.runs  # notebooks look up earlier runs there, too
    try:
        refuse_assignments(options)
        return int(options.command(options))
    except ArcnbError as error:
        return say(error, 2)
    except KeyboardInterrupt:
        when = " before the notebook started" if options.command is notebooks.run else ""
        return say(f"interrupted{when}", 128 + signal.SIGINT)


def parser() -> argparse.ArgumentParser:
    arcnb = Parser(prog="arcnb", formatter_class=argparse.RawDescriptionHelpFormatter)
    arcnb.add_argument("--version", action="version", version=f"arcnb {_version()}")
    commands = arcnb.add_subparsers(required=True, metavar="COMMAND", help="its --help ends with examples")
    for group in (notebooks, runs, batch, cluster, workspaces):
        group.add_commands(commands)
    lines = ["Run notebooks and look at their runs."]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:9} {commands.choices[name].description}" for name in names)]
    arcnb.description = "\n".join(lines)
    arcnb.epilog = 'Tab completes in bash and zsh after: eval "$(register-python-argcomplete arcnb)"'
    return arcnb


def _version() -> str:
    try:
        return version("arcnb")
    except PackageNotFoundError:
        return "of a checkout that is not installed"


def command() -> NoReturn:
    """`arcnb`, a process of its own."""
    gc.set_threshold(50_000)  # after 700 new objects, as Python does, the garbage of imports is looked for
    leave(main())


if __name__ == "__main__":
    command()
