"""`arcnb run`, `params`: a notebook, its run, and what it can be asked for."""

import argparse
import contextlib
import logging
import shlex
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.commands import options as shared
from arcnb.lab.commands.options import note, say
from arcnb.lab.execution import resuming
from arcnb.lab.execution.usable_home import substitute_home
from arcnb.lab.notebooks import files
from arcnb.lab.notebooks.checks import refuse_early
from arcnb.lab.notebooks.parameters import default_values, find_parameter, folded
from arcnb.lab.runs import cards, provenance, queueing
from arcnb.lab.runs.finding import find_run
from arcnb.lab.runs.manifest import cause, now, read_manifest
from arcnb.lab.runs.placeholders import run_meant
from arcnb.lab.runs.run import Run, check_name, new_run, run_name, runs_root
from arcnb.values import choices, meanings


def run(options: argparse.Namespace) -> int:
    """`arcnb run`: check everything, make or reopen the run folder, execute, export the page."""
    earlier = find_run(options.resume) if options.resume else None
    if earlier is None and options.notebook is None:
        raise ArcnbError("arcnb run needs a notebook, or --resume and a run")
    reference = options.notebook or (earlier.manifest["notebook"] or {}).get("path")
    if reference is None:
        raise ArcnbError(f"{earlier} does not say which notebook it ran; name it")
    path = files.find_notebook(reference)
    if earlier is not None and earlier.kind not in ("", path.stem):
        raise ArcnbError(f"{earlier.path.name} is a run of {earlier.kind}, so {path.stem} cannot resume it")
    declared = files.declared_beside(path, options.profile)
    given = shared.given_values(options, path, declared)
    if earlier is not None:
        changed = resuming.changed_values(earlier, given, declared[path.stem])
        if earlier.status == "done" and not changed:
            note(f"{earlier.path} is done, there is nothing to resume")
            print(earlier.path)
            return 0
        given = resuming.kept_values(earlier, changed, declared[path.stem])
        if options.dry_run:
            resuming.refuse_busy(earlier, bool(changed))
            return _foreseen(path, given, {}, earlier.path)
        if resuming.reopen(earlier, path, given, changed):
            note(f"arcnb: {path.name} has changed since {earlier.path.name} was started")
        current = earlier
    else:
        if options.name and not options.again:
            queueing.refuse_taken(options.name)
        values = default_values(declared[path.stem]) | given
        refuse_early(path, values, path.name, note)
        if options.dry_run:
            check_name(options.name or run_name(path.stem))
            return _foreseen(path, values, given, runs_root())
        record = provenance.notebook_record(path)
        with queueing.taken("" if options.again else options.name):  # by two at once
            current = new_run(options.name or run_name(path.stem), values, record, "engine", sys.argv)
    note(f"run folder: {current.path}")
    with substitute_home() as problem:
        if problem:
            note(f"arcnb: the home folder takes no files ({problem}); caches of this run are temporary")
        try:
            return _execute(current, path, folded(given, declared[path.stem]), options)
        except KeyboardInterrupt:  # the engine takes it for itself
            return _interrupted(current)


def _foreseen(path: Path, values: dict[str, Any], given: dict[str, Any], folder: Path) -> int:
    """What a dry run says; what is given on the command line or by a profile is marked."""
    note(f"would run {path} in {folder}; what only machine, model and tasks tell is left to its first cells")
    print(
        cards.aligned([("*" if name in given else "", name, repr(value)) for name, value in values.items()])
    )
    return 0


def params(options: argparse.Namespace) -> int:
    """`arcnb params NOTEBOOK [NAME]`: what a notebook can be asked for, or one of it."""
    path = files.find_notebook(options.notebook)
    beside = files.declared_beside(path, options.profile)
    declared = beside[path.stem]
    values = shared.given_values(options, path, beside)
    if options.name:
        known = find_parameter(options.name, declared, path.name)
        unit = f", {known.unit}" if known.unit else ""
        print(f"{known.name} = {values.get(known.name, known.default)!r}    ({known.kind}{unit})")
        print(known.comment)
        if told := meanings(declared.within(known.name)):
            print(cards.aligned(list(told.items())))
        elif there := choices(declared.within(known.name)):
            print(f"There are {', '.join(map(str, there))}.")
        if declared.is_free(known.name):
            print("It may differ when a run is resumed.")
        return 0
    cell, further = declared.all()
    parts = {f"the parameters cell of {path.name}": list(cell.values())}
    left_out: Counter[str] = Counter()
    for one in further.values():
        if one.ours or one.name in values or options.all:
            parts.setdefault(one.branch or "further", []).append(one)
        else:
            left_out[one.branch] += 1
    lines = {one.name: repr(values.get(one.name, one.default)) for part in parts.values() for one in part}
    names, given = (max(map(len, texts), default=0) for texts in (lines, lines.values()))
    for title, part in parts.items():
        print(f"# {title}")
        for one in part:
            print(f"{one.name:{names}} = {lines[one.name]:{min(given, 28)}}  {one.sentence}".rstrip())
    for title, count in left_out.items():
        print(
            f"# {title}: {count} more, at the library's defaults; --all lists them, NAME says what one means"
        )
    return 0


def _execute(current: Run, path: Path, given: dict[str, Any], options: argparse.Namespace) -> int:
    import papermill
    from papermill.engines import papermill_engines
    from papermill.exceptions import PapermillException

    from arcnb.lab.execution.papermill_engine import ArcnbEngine

    papermill_engines.register("arcnb", ArcnbEngine)  # an entry point only where installed
    logging.getLogger("papermill").setLevel(logging.ERROR)  # what matters is said below, once
    told, problem = 0, None
    try:
        papermill.execute_notebook(
            _literal(path),
            _literal(current.copy_path),
            parameters=given,
            engine_name="arcnb",
            kernel_name="python3",
            language="python",
            run_folder=str(current.path),
            progress_bar=not options.quiet,
            grace_seconds=options.grace,
        )
    except PapermillException as error:  # the manifest tells it better
        problem = error
    except ArcnbError as error:
        told, problem = say(error, 1), error
    except KeyboardInterrupt:  # papermill writes the copy once more when all has ended
        if read_manifest(current.path)["end"] is None:
            raise
    try:
        manifest = read_manifest(current.path)
        if manifest["end"] is None:
            told = told or say(f"{path.name} could not be run: {problem}", 1)
            _end_without_engine(current, problem)
    except ArcnbError as error:  # it began, so it was not refused
        return told or say(error, 1)
    files.sign(current.copy_path)
    _export(current)
    print(current.path)
    if manifest["status"] == "done":
        note(f"{path.name} done in {cards.duration_text(manifest['seconds'])}")
        return 0
    if manifest["end"] is None:  # which was said above
        return 1
    why = manifest["error"]["sentence"]
    if manifest["status"] == "failed":
        why += run_meant(manifest["parameters"], why, current.called)
    see = " See" if why.endswith("?") else "; see"
    say(f"{path.name} {manifest['status']} at {why}{see} {current.copy_path}", 1)
    if manifest["status"] == "preempted":
        note(f"arcnb: to go on: arcnb run --resume {shlex.quote(str(current.path))}")
        stop = manifest["stop"] or {"signal": "SIGTERM"}  # which only the notebook's own trainer heard
        return 128 + signal.Signals[stop["signal"]]
    return 128 + signal.SIGKILL if manifest["status"] == "killed" else 1


def _end_without_engine(current: Run, problem: Exception | None) -> None:
    """Write the end of a run that papermill refused, or whose engine could not write it."""
    kind = type(problem).__name__
    error = cause(f"the notebook could not be run: {problem}", kind, str(problem))
    with contextlib.suppress(ArcnbError):
        current.update(status="failed", end=now(), error=error)


def _interrupted(current: Run) -> int:
    """Ctrl-C before the engine was at work or after it."""
    when = "after the notebook had ended"
    with contextlib.suppress(ArcnbError):
        if read_manifest(current.path)["end"] is None:
            when = "before the notebook started"
            error = cause(f"interrupted {when}", "SIGINT", "stopped by SIGINT (Ctrl-C)")
            current.update(status="preempted", end=now(), error=error)
    return say(f"interrupted {when}", 128 + signal.SIGINT)


def _literal(path: Path) -> str:
    """As papermill takes it, which fills in the parameters where a path has their names in braces."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _export(current: Run) -> None:
    """A page not written, or not waited for, does not make a good run a bad one; it is said and left."""
    later = f"`arcnb report {current.path.name}` writes it later"
    try:
        from arcnb.lab.pages.export import export_run

        export_run(current)
    except KeyboardInterrupt:
        note(f"arcnb: interrupted while the report of {current.path} was written; {later}")
    except ArcnbError as error:
        note(f"arcnb: {error}; {later}")


def add_commands(commands: Any) -> None:
    command = shared.add_command(
        commands, "run", run, "execute a notebook in a run folder of its own",
        "03 -f demo -p n_predictions 8",
        "06 -p tasks data -p predictions before,after      # names of runs stand for what they left",
        "05 -p max_steps 100 --dry-run",
        "--resume 20260101-120000-03",
    )  # fmt: skip
    add = command.add_argument
    add("notebook", nargs="?", metavar="NOTEBOOK", help=shared.NOTEBOOK)
    shared.add_parameter_options(command)
    add("--name", help="name of the run (default: the notebook's)")
    add("--again", action="store_true", help="let there be a second run of that name")
    add("--resume", metavar="RUN", help="go on in the folder of a run that was stopped or failed")
    add("--grace", type=float, default=60.0, metavar="SECONDS", help="time for a stopped cell to save (60)")
    add("--quiet", action="store_true", help="no progress")
    add(
        "--dry-run",
        action="store_true",
        help="check the parameters and what they name, print them, make and run nothing",
    )

    command = shared.add_command(
        commands,
        "params",
        params,
        "list what a notebook can be asked for",
        "05",
        "05 lora.r",
        "05 -f grpo --all",
    )
    add = command.add_argument
    add("notebook", metavar="NOTEBOOK", help=shared.NOTEBOOK)
    add("name", nargs="?", metavar="NAME", help="one of them: its value, type and meaning")
    add("--all", action="store_true", help="also fields of a library's class that keep its defaults")
    shared.add_parameter_options(command)
