"""`arcnb init`, `upgrade`, `doctor`, `bundle`: a folder to work in, what this machine can, Kaggle."""

import argparse
import os
from collections import Counter
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.lab.commands.options import add_command, add_parameter_options, given_values, line_values, note
from arcnb.lab.notebooks import files
from arcnb.lab.notebooks.checks import refuse_early
from arcnb.lab.notebooks.parameters import default_values
from arcnb.lab.notebooks.profiles import find_profile
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
    if not options.folder:  # which Path takes for the current folder
        raise ArcnbError("an empty text names no folder")
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


def bundle(options: argparse.Namespace) -> int:
    """`arcnb bundle kaggle OUT`: everything for an offline Kaggle notebook; with --rehearse its score."""
    from arcnb.lab.workspace import kaggle
    from arcnb.plans import refuse
    from arcnb.search import SearchPlan
    from arcnb.synth import SourceSettings, build_task_set

    path = files.find_notebook(kaggle.NOTEBOOK)
    declared = files.declared_beside(path, options.profile)
    values = default_values(declared[path.stem]) | given_values(options, path, declared)
    values |= {name: said for name in ("model", "adapter") if (said := getattr(options, name)) is not None}
    profiles = [find_profile(name, path.parent) for name in options.profile]
    parameters = line_values(options, path, declared[path.stem])
    made = kaggle.KaggleBundle(
        values["model"], values["adapter"], profiles, parameters, options.wheels, options.python, options.gpu,
        options.hours, options.user, options.competition,
    )  # fmt: skip
    if options.rehearse < 0 or not 0 < options.rehearse_hours <= kaggle.HOURS:
        raise ArcnbError(
            f"--rehearse must be at least 0, and --rehearse-hours above 0 and at most {kaggle.HOURS}; "
            f"got {options.rehearse} and {options.rehearse_hours}"
        )
    refuse_early(path, values | kaggle.COMPETITION, path.name, note)
    refuse(made.problems(SearchPlan.of(values)))
    out = options.folder.expanduser().resolve()
    work = out.with_name(f"{out.name}-rehearsal")
    for path in (out, work) if options.rehearse else (out,):
        if os.path.exists(path):
            raise ArcnbError(f"{path} is there already; name a new folder, or remove it")
    print(kaggle.write_bundle(made, out))
    if options.rehearse:
        tasks = build_task_set("arc-agi-1/evaluation", options.rehearse, SourceSettings(seed=0))
        note(f"rehearsal: {len(tasks)} evaluation tasks, {60 * options.rehearse_hours:.0f} minutes at most")
        if not kaggle.offline():
            note("unshare cannot take the network away here: the rehearsal has one, Kaggle has none")
        score = kaggle.rehearse(out, tasks, options.rehearse_hours, work)
        print(f"rehearsal: {score}")
    note(f"kaggle datasets create -p {out / 'dataset'} -r zip; kaggle kernels push -p {out / 'kernel'}")
    return 0


def add_commands(commands: argparse._SubParsersAction) -> None:
    command = add_command(commands, "init", init, "lay out notebooks in a folder of your own", "lab")
    command.add_argument("folder", metavar="DIR", help="where they go")
    command = add_command(
        commands, "upgrade", upgrade, "bring notebooks of a newer package; what you edited stays", "", "lab"
    )
    command.add_argument("folder", metavar="DIR", nargs="?", help="a workspace; the current one without it")
    command = add_command(
        commands, "bundle", bundle, "write what an offline Kaggle notebook needs, check and rehearse it",
        "kaggle out --wheels wheels --rehearse 4",
    )  # fmt: skip
    add = command.add_argument
    add("where", choices=["kaggle"])
    add(
        "folder",
        metavar="OUT",
        type=Path,
        help="a new folder: dataset/ and kernel/, ready for the kaggle command",
    )
    add("--model", help="default, a folder or a hub id; without it that of -f and -p")
    add(
        "--adapter",
        help='auto (shipped, for the default model), a folder, or ""; without it that of -f and -p',
    )
    add("--gpu", default="L4x4", help="L4x4 or T4x2")
    add("--hours", type=float, default=11.3, help="of the scored run; Kaggle ends it after 12 (default 11.3)")
    add(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="wheels to install there: pip download --no-deps -r requirements.txt",
    )
    add(
        "--python", default="3.12", help="Python of the Kaggle image, for which the wheels are (default 3.12)"
    )
    add("--user", default="YOUR-NAME", help="your Kaggle name")
    add("--competition", default="arc-prize-2026", help="the competition's name in its address")
    add(
        "--rehearse",
        type=int,
        metavar="N",
        default=0,
        help="run the kernel on N evaluation tasks and score it",
    )
    add("--rehearse-hours", type=float, default=0.5, metavar="H", help="time of the rehearsal (default 0.5)")
    add_parameter_options(command)
    add_command(commands, "doctor", doctor, "what this machine has, what will not work, and the remedy", "")
