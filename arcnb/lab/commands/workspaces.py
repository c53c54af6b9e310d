"""`arcnb init`, `upgrade`, `doctor`: a folder to work in, and whether this machine can."""

import argparse
from collections import Counter
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.lab.commands.options import add_command, note
from arcnb.lab.workspace import doctor as doctors
from arcnb.lab.workspace import layout
from arcnb.lab.workspace.folders import DELIVERED, workspace

_SAID = {
    "brought": "{name}: brought",
    "kept": "{name}: edited by you, unchanged in this version; kept",
    "both": "{name}: edited by you, and changed in this version; yours is kept, this is what changed:",
    "gone": "{name}: no longer delivered; yours is kept",
}


def init(options: argparse.Namespace) -> int:
    """`arcnb init DIR`: lay out notebooks, profiles and pipelines."""
    folder = layout.init(Path(options.folder).expanduser().resolve())
    n = len(list((folder / "notebooks").glob("*.ipynb")))
    note(f"{n} notebooks with their profiles and pipelines; `arcnb doctor` says what this machine can do")
    print(folder)
    return 0


def upgrade(options: argparse.Namespace) -> int:
    """`arcnb upgrade [DIR]`: the notebooks of this version; what was edited stays."""
    folder = Path(options.folder).expanduser().resolve() if options.folder else workspace()
    if folder is None:
        raise ArcnbError("neither this folder nor one above it is a workspace; `arcnb init DIR` makes one")
    done = layout.upgrade(folder)
    for one in done:
        print(_SAID[one.what].format(name=one.name))
        if one.difference:
            print(one.difference)
    counts = Counter(one.what for one in done)
    if counts["both"]:
        note(f"delivered files are in {folder / DELIVERED}: `nbdiff {DELIVERED}/NAME notebooks/NAME`")
    note(", ".join(f"{n} {what}" for what, n in counts.items()) or "nothing has changed")
    return 0


def doctor(options: argparse.Namespace) -> int:
    """`arcnb doctor`: 1 if something that everything needs is missing."""
    bad = 0
    for finding in doctors.examine():
        print(finding, flush=True)
        bad += finding.state == "bad"
    return 1 if bad else 0


def add_commands(commands: argparse._SubParsersAction) -> None:
    command = add_command(commands, "init", init, "lay out notebooks in a folder of your own", "lab")
    command.add_argument("folder", metavar="DIR")
    command = add_command(
        commands, "upgrade", upgrade, "bring notebooks of a newer package; what you edited stays", "", "lab"
    )
    command.add_argument("folder", metavar="DIR", nargs="?", help="a workspace; the current one without it")
    add_command(commands, "doctor", doctor, "what this machine has, what will not work, and the remedy", "")
