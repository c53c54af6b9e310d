"""The command line: run notebooks, look at runs.

    arcnb run 03 -f cpu -p n_predictions 8     # notebooks/03_*.ipynb in a new run folder
    arcnb run --resume 20260101-120000-03      # the same folder and parameters, only the rest of the work
    arcnb ls
    arcnb show 03_inference
    arcnb report RUN RUN -o index.html

`arcnb run` prints the run folder, and nothing else, on standard output. It ends with 0 when the run is done,
1 when it failed, 2 when it could not start (notebook, parameter, run folder), 128 + signal when it was
stopped or killed.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

from arcnb.lab import notebooks, profiles, resuming
from arcnb.lab.heartbeat import place_text, read_heartbeat
from arcnb.lab.manifest import RunError, read_manifest
from arcnb.lab.notebooks import NotebookError
from arcnb.lab.pages import duration_text
from arcnb.lab.parameters import ParameterError, check_parameters, default_values, nearest
from arcnb.lab.runs import Run, find_run, list_runs, new_run, runs_root


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.runs:
        os.environ["ARCNB_RUNS"] = options.runs  # notebooks look up earlier runs there, too
    try:
        return int(options.command(options))
    except (NotebookError, ParameterError, RunError) as error:
        return _say(error, 2)
    except KeyboardInterrupt:
        return _say("interrupted before the notebook started", 128 + signal.SIGINT)
    except BrokenPipeError:  # `arcnb ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run(options: argparse.Namespace) -> int:
    """`arcnb run`: check everything, make or reopen the run folder, execute, export the page."""
    earlier = find_run(options.resume) if options.resume else None
    if earlier is None and options.notebook is None:
        raise ParameterError("arcnb run needs a notebook, or --resume and a run")
    path = notebooks.find_notebook(options.notebook or _source_of(earlier))
    declared = notebooks.declared_beside(path)
    given = _given_values(options, path, declared)
    if earlier is not None:
        if earlier.status == "done":
            print(f"{earlier.path} is done, there is nothing to resume", file=sys.stderr)
            print(earlier.path)
            return 0
        given = resuming.kept_values(earlier, given, declared[path.stem])
        if resuming.reopen(earlier, path):
            print(f"arcnb: {path.name} has changed since {earlier.path.name} was started", file=sys.stderr)
        current = earlier
    else:
        values = default_values(declared[path.stem]) | given
        record = notebooks.notebook_record(path)
        current = new_run(None, options.name or path.stem, values, record, "engine", sys.argv)
    print(f"run folder: {current.path}", file=sys.stderr)
    return _execute(current, path, given, options)


def ls(options: argparse.Namespace) -> int:
    """`arcnb ls`: one line a run, oldest first."""
    runs = list_runs()
    if not runs:
        print(f"no runs in {runs_root()}", file=sys.stderr)
    for item in runs:
        try:
            status, why = item.verdict()
            manifest = item.manifest
            beat = read_heartbeat(item.path) if status == "running" else None
        except RunError as error:
            print(f"{'unreadable':10} {item.path.name}  {error}")
            continue
        took = f"{manifest['seconds']:.0f} s" if manifest["seconds"] is not None else ""
        numbers = {name: value for name, value in manifest["outcome"].items() if type(value) in (int, float)}
        facts = ", ".join([f"{name} {value:.4g}" for name, value in numbers.items()][:5])
        news = f"{place_text(beat)} {beat.get('progress') or ''}" if beat else why or facts
        print(f"{status:10} {item.path.name}  {took:>8}  {news}")
    return 0


def show(options: argparse.Namespace) -> int:
    """`arcnb show RUN`: the manifest, readably."""
    from arcnb.lab.pages import run_text

    print(run_text(find_run(options.run)))
    return 0


def report(options: argparse.Namespace) -> int:
    """`arcnb report RUN ...`: the page of each run, and an index that links them."""
    from arcnb.lab.export import ExportError, export_run
    from arcnb.lab.index import write_index

    runs = [find_run(reference) for reference in options.run]
    try:
        for item in runs:
            if item.copy_path.is_file():
                export_run(item)
        print(write_index(runs, options.output, options.title))
    except ExportError as error:
        return _say(error, 1)
    return 0


def _execute(current: Run, path: Path, given: dict[str, Any], options: argparse.Namespace) -> int:
    import logging

    import papermill
    from papermill.exceptions import PapermillException

    logging.getLogger("papermill").setLevel(logging.ERROR)  # what matters is said below, once
    try:
        papermill.execute_notebook(
            path,
            current.copy_path,
            parameters=given,
            engine_name="arcnb",
            kernel_name="python3",
            language="python",
            run_folder=str(current.path),
            progress_bar=not options.quiet,
            grace_seconds=options.grace,
        )
    except PapermillException:
        pass  # the manifest tells it better
    except RunError as error:
        _say(error, 1)
    notebooks.sign(current.copy_path)
    _export(current)
    print(current.path)
    manifest = read_manifest(current.path)
    if manifest["status"] == "done":
        print(f"{path.name} done in {duration_text(manifest['seconds'])}", file=sys.stderr)
        return 0
    _say(f"{path.name} {manifest['status']} at {manifest['error']['sentence']}; see {current.copy_path}", 1)
    if manifest["status"] == "preempted":
        print(f"arcnb: to go on: arcnb run --resume {current.path}", file=sys.stderr)
        return 128 + signal.Signals[manifest["stop"]["signal"]]
    return 128 + signal.SIGKILL if manifest["status"] == "killed" else 1


def _export(current: Run) -> None:
    """A page that cannot be written does not make a good run a bad one; it is said and left."""
    from arcnb.lab.export import ExportError, export_run

    try:
        export_run(current)
    except (ExportError, RunError) as error:
        print(f"arcnb: no page was exported: {error}", file=sys.stderr)


def _given_values(options: argparse.Namespace, path: Path, declared: dict[str, Any]) -> dict[str, Any]:
    """Profiles in their order, then -p."""
    own = declared[path.stem]
    values: dict[str, Any] = {}
    for reference in options.profile:
        values |= profiles.profile_values(profiles.find_profile(reference, path.parent), path.stem, declared)
    for name, text in options.parameter:
        if name not in own:
            raise ParameterError(f"{path.name} has no parameter {name!r}{nearest(name, own)}")
        values[name] = profiles.parse_value(text, own[name])
    return check_parameters(values, own, path.name)


def _source_of(earlier: Run | None) -> str:
    source = (earlier.manifest["notebook"] or {}).get("path") if earlier else None
    if source is None:
        raise NotebookError(f"{earlier} does not say which notebook it ran; name it")
    return str(source)


def _say(sentence: object, code: int) -> int:
    print(f"arcnb: {sentence}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="arcnb", description="Run notebooks and look at their runs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    root = argparse.ArgumentParser(add_help=False)
    root.add_argument("--runs", metavar="DIR", help="where the run folders are ($ARCNB_RUNS or runs/)")

    command = commands.add_parser("run", parents=[root], help="execute a notebook in a run folder of its own")
    command.set_defaults(command=run)
    add = command.add_argument
    add("notebook", nargs="?", metavar="NOTEBOOK", help="03, 03_inference or a path")
    add("-p", dest="parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    add(
        "-f", dest="profile", action="append", default=[], metavar="PROFILE", help="YAML file or profile name"
    )
    add("--name", help="name of the run (default: the notebook's)")
    add("--resume", metavar="RUN", help="go on in the folder of a run that was stopped or failed")
    add("--grace", type=float, default=60.0, metavar="SECONDS", help="time for a stopped cell to save (60)")
    add("--quiet", action="store_true", help="no progress")

    command = commands.add_parser("ls", parents=[root], help="list the runs")
    command.set_defaults(command=ls)

    command = commands.add_parser("show", parents=[root], help="what a run was given and how it ended")
    command.set_defaults(command=show)
    command.add_argument("run", metavar="RUN", help="path, folder name or its beginning, or run name")

    command = commands.add_parser("report", parents=[root], help="export runs and write an index of them")
    command.set_defaults(command=report)
    command.add_argument("run", nargs="+", metavar="RUN")
    command.add_argument("-o", dest="output", type=Path, default=Path("index.html"), metavar="FILE")
    command.add_argument("--title", default="Runs of arcnb")
    return parser


if __name__ == "__main__":
    sys.exit(main())
