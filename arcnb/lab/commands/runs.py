"""`arcnb run`, `ls`, `show`, `report`, `rm`: one run, and looking at what is there."""

import argparse
import contextlib
import logging
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, number_of
from arcnb.lab.batch.sweeps import Sweep, named, runs_named
from arcnb.lab.commands import options as shared
from arcnb.lab.commands.options import note, say
from arcnb.lab.execution import resuming
from arcnb.lab.execution.usable_home import substitute_home
from arcnb.lab.notebooks import files
from arcnb.lab.notebooks.checks import refuse_early
from arcnb.lab.notebooks.parameters import default_values, find_parameter, folded
from arcnb.lab.runs import cards, disk, provenance, queueing
from arcnb.lab.runs.finding import find_run, list_runs
from arcnb.lab.runs.heartbeat import place_text, read_heartbeat
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
        given, more = resuming.kept_values(earlier, changed, declared[path.stem]), bool(changed)
        if options.dry_run:
            resuming.refuse_busy(earlier, more)
            return _foreseen(path, given, {}, earlier.path)
        if resuming.reopen(earlier, path, given, more):
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


def ls(options: argparse.Namespace) -> int:
    """`arcnb ls`: one line a run, oldest first."""
    runs = list_runs()
    if options.json:
        shared.print_json([_facts(item) for item in runs])
        return 0
    if not runs:
        note(f"no runs in {runs_root()}")
        return 0
    lines = []
    for item in runs:
        facts = _facts(item)
        took = cards.duration_text(facts["seconds"]) if facts.get("seconds") is not None else ""
        waits = f"waits as {facts['waits_for']}" if facts.get("waits_for") else ""
        beat = read_heartbeat(item.path) if facts["status"] == "running" else None
        news = f"{place_text(beat)} {beat.get('progress') or ''}" if beat else facts["why"]
        lines.append((facts["status"], facts["run"], took, waits or news or cards.news(facts["outcome"])))
    print(cards.aligned(lines))
    return 0


def _facts(item: Run, whole: bool = False) -> dict[str, Any]:
    """A run as `--json` gives it: what identifies it, its true status, and its outcome without tables; or
    with the whole manifest."""
    known: dict[str, Any] = {"run": item.path.name, "path": item.path}
    try:
        status, why = item.verdict()
        manifest = item.manifest
    except ArcnbError as error:
        return known | {"status": "unreadable", "why": str(error), "outcome": {}}
    said = {key: manifest.get(key) for key in ("name", "start", "end", "seconds", "waits_for")}
    outcome = {k: value for k, value in manifest["outcome"].items() if not cards.is_rows(value)}
    known |= {"status": status, "why": why}
    return manifest | known if whole else known | {"notebook": item.kind} | said | {"outcome": outcome}


def show(options: argparse.Namespace) -> int:
    """`arcnb show RUN`: the manifest, readably; of a sweep, its table."""
    one = named(options.run)
    if options.json:
        told = {"folder": one.folder, "table": one.table()} if isinstance(one, Sweep) else _facts(one, True)
        shared.print_json(told)
    elif isinstance(one, Sweep):
        print(one.table_text())
        print(one.folder / "table.csv")
    else:
        print(_run_text(one))
    return 0


def _run_text(run: Run) -> str:
    """The manifest as aligned lines."""
    manifest = run.manifest
    status, why = run.verdict()
    lines = [str(run.path), f"{'status':12} {status}" + (f": {why}" if why else "")]
    lines.append(f"{'time':12} {cards.times_text(manifest)}")
    if status == "running" and (beat := read_heartbeat(run.path)):
        lines.append(f"{'now':12} {place_text(beat)} {beat.get('progress') or ''}")
    if manifest.get("report_problem"):
        lines.append(f"{'report':12} not written: {manifest['report_problem']}")
    lines += [f"{name:12} {value}" for name, value in cards.run_facts(manifest) if name != "packages"]
    for title, values in (("parameters", manifest["parameters"]), ("outcome", manifest["outcome"])):
        width = max(map(len, values), default=0)
        lines += [title] + [
            f"    {name:{width}}  {cards.value_text(value)}" for name, value in values.items()
        ]
    lines += ["artifacts"] + [
        f"    {item['path']}  {cards.size_text(item['bytes'])}" for item in manifest["artifacts"]
    ]
    return "\n".join(lines)


def report(options: argparse.Namespace) -> int:
    """`arcnb report RUN ...`: the page of each run, and an index that links them."""
    return write_report(runs_named(options.run), options.output, options.title)


def write_report(runs: list[Run], output: Path, title: str) -> int:
    from arcnb.lab.pages.export import export_run
    from arcnb.lab.pages.index import write_index

    code = 0
    try:
        for item in runs:
            try:
                if item.copy_path.is_file():
                    export_run(item, output.resolve())
            except ArcnbError as error:  # the others have their pages, and the index says it of this one
                code = say(error, 1)
                if isinstance(error.__cause__, ImportError):  # which no other page has either
                    return code
        print(write_index(runs, output, title))
        return code
    except ArcnbError as error:
        return say(error, 1)
    except ImportError as error:
        return say(f"{output} could not be written: {type(error).__name__}: {error}", 1)


def rm(options: argparse.Namespace) -> int:
    """`arcnb rm`: without a run what each takes on disk, largest last; else remove, unless it is at work or
    another run points to it. Only the latter can be forced: whoever is at work would write into nothing."""
    if not options.run:
        sizes = sorted((disk.disk_bytes(item.path), item.path.name) for item in list_runs())
        sizes.append((sum(size for size, _ in sizes), f"{len(sizes)} runs in {runs_root()}"))
        print(cards.aligned([(cards.size_text(size), name) for size, name in sizes]))
        if half := disk.folders_without_manifest():
            size = cards.size_text(sum(map(disk.disk_bytes, half)))
            folders = number_of(len(half), "folder")
            first = half[0].relative_to(runs_root())
            what = f"{folders} of runs without a manifest or half removed, {size}"
            note(f"not counted: {what}, the first {first}")
        return 0
    runs = runs_named(options.run, beginnings=False)
    disk.refuse_at_work(runs)
    if not options.force:
        disk.refuse_needed(runs)
    for item in runs:
        size = cards.size_text(disk.disk_bytes(item.path))
        if not options.dry_run:
            disk.remove(item)
        print(f"{'would remove' if options.dry_run else 'removed'} {size:>8}  {item.path}")
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
        note(f"arcnb: to go on: arcnb run --resume {current.path}")
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

    command = shared.add_command(commands, "ls", ls, "list the runs", "", "--json | jq '.[-1].outcome'")
    shared.add_json(command)

    command = shared.add_command(
        commands,
        "show",
        show,
        "what a run was given and how it ended; of a sweep, its table",
        "eval",
        "rates --json",
    )
    shared.add_runs(command, None, "path, folder name or its beginning, run name, or sweep")
    shared.add_json(command)

    command = shared.add_command(
        commands, "report", report, "export runs and write an index of them", "before after -o index.html"
    )
    shared.add_runs(command, "+", "runs, and sweeps for all of theirs")
    add = command.add_argument
    add(
        "-o",
        dest="output",
        type=Path,
        default=Path("index.html"),
        metavar="FILE",
        help="the index (index.html)",
    )
    add("--title", default="Runs of arcnb", help="of the index")

    command = shared.add_command(
        commands, "rm", rm, "disk use of the runs, or remove some", "", "eval --dry-run", "eval"
    )
    shared.add_runs(command, "*", "paths, whole folder names, run names, sweeps for all of theirs")
    command.add_argument("--force", action="store_true", help="even if another run points to it")
    command.add_argument("--dry-run", action="store_true", help="say what would go, and keep it")
