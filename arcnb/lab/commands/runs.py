"""`arcnb ls`, `show`, `report`, `rm`: looking at the runs that are there."""

import argparse
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, number_of
from arcnb.lab.batch.sweeps import Sweep, named, runs_named
from arcnb.lab.commands import options as shared
from arcnb.lab.commands.options import note, say
from arcnb.lab.runs import cards, disk
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.heartbeat import place_text, read_heartbeat
from arcnb.lab.runs.run import Run, runs_root


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
    sweeps = [one for name in options.run if isinstance(one := named(name, beginnings=False), Sweep)]
    runs = runs_named(options.run, beginnings=False)
    disk.refuse_at_work(runs)
    if not options.force:
        disk.refuse_needed(runs)
    for item in runs:
        size = cards.size_text(disk.disk_bytes(item.path))
        if not options.dry_run:
            disk.remove(item)
        print(f"{'would remove' if options.dry_run else 'removed'} {size:>8}  {item.path}")
    for one in sweeps:
        size = cards.size_text(disk.disk_bytes(one.folder))
        note(f"{one.folder} stays, {size}: the list of the sweep's runs, and what they wrote together")
    return 0


def add_commands(commands: Any) -> None:
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
