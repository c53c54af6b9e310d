"""`arcnb submit`, `status`, `cancel`: runs on other machines, through their schedulers."""

import argparse
import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.batch.pipelines import read_pipeline, refuse_stages
from arcnb.lab.batch.sweeps import Sweep, named, runs_named, take_back
from arcnb.lab.clusters import stage_jobs, status, submitting
from arcnb.lab.clusters.jobs import OPTIONS, ClusterJob, checked_options, environment_of, resources_of
from arcnb.lab.clusters.tools import SchedulerError
from arcnb.lab.commands import options as shared
from arcnb.lab.commands.batch import add_set_options, planned_sweep, still_to_do
from arcnb.lab.commands.options import note, say
from arcnb.lab.notebooks import files, profiles
from arcnb.lab.notebooks.checks import refuse_early
from arcnb.lab.notebooks.parameters import default_values
from arcnb.lab.runs import provenance, queueing
from arcnb.lab.runs.cards import aligned
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.manifest import stamp
from arcnb.lab.runs.run import Run, check_name, run_name
from arcnb.machine.processes import is_alive


def submit(options: argparse.Namespace) -> int:
    """`arcnb submit`: queue the runs, write the submit files, hand them to the scheduler."""
    submitting.scheduler_named(options.on)
    given = job_options(options)
    # Of two that send the same at once, the second finds it sent.
    with contextlib.nullcontext() if options.dry_run else queueing.alone():
        return _submit(options, given)


def _submit(options: argparse.Namespace, given: dict[str, Any]) -> int:
    if options.resume:
        _refuse_for_resumed(options)
        resumed = named(options.resume)
        if isinstance(resumed, Run):
            return _submit_runs(options, given, [resumed])
        return _submit_sweep(options, given, resumed)
    if options.notebook is None:
        raise ArcnbError("arcnb submit needs a notebook, a pipeline's YAML file, or --resume and a run")
    if options.notebook.endswith((".yaml", ".yml")):
        _refuse_for_pipeline(options)
        pipeline = read_pipeline(Path(options.notebook))
        refuse_stages(pipeline, note, elsewhere=True)
        return stage_jobs.submit_pipeline(options.on, pipeline, given, options.dry_run, note)
    if options.grid or options.sets or options.shards is not None:
        _refuse_given(options, {"again": "--again"}, "a sweep goes on in its runs, or takes another --name")
        before = {run.path for run in list_runs()}
        planned = planned_sweep(options, options.dry_run)
        fresh = [member.run for member in planned.members if member.run.path not in before]
        notebook = files.find_notebook(options.notebook)
        return _submit_sweep(options, given, planned, notebook, lambda: take_back(planned, fresh))
    path = files.find_notebook(options.notebook)
    name = options.name or run_name(path.stem)
    check_name(name)
    if options.name and not options.again:
        queueing.refuse_taken(name)
    declared = files.declared_beside(path, options.profile)
    values = default_values(declared[path.stem]) | shared.given_values(options, path, declared)
    refuse_early(path, values, path.name, note, elsewhere=True, later=bool(options.after))
    resources_of(given, "arcnb submit", options.on)
    if options.dry_run:
        run = queueing.foreseen_run(name)
    else:
        run = queueing.queue_run(name, path, values, provenance.surroundings())
    return _submit_runs(options, given, [run], path, lambda: queueing.withdraw([run]), name)


def _submit_sweep(
    options: argparse.Namespace,
    given: dict[str, Any],
    sweep: Sweep,
    notebook: Path | None = None,
    undo: Callable[[], object] = lambda: None,
) -> int:
    """The sweep's runs that are not done, as an array. Its files have a folder of their own: tasks that wait
    look their runs up there, when others of the sweep are sent again."""
    now = stamp()
    names = (f"{now}-{n}" if n > 1 else now for n in itertools.count(1))
    folder = next(one for name in names if not (one := sweep.folder / "jobs" / name).exists())

    def undone() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        undo()

    runs = [member.run for member in sweep.members]
    return _submit_runs(options, given, runs, notebook, undone, sweep.folder.name, folder)


def _submit_runs(
    options: argparse.Namespace,
    given: dict[str, Any],
    runs: list[Run],
    notebook: Path | None = None,
    undo: Callable[[], object] = lambda: None,
    name: str | None = None,
    folder: Path | None = None,
) -> int:
    """The runs that are not done yet, as one job. A refusal undoes what was made for it; for a dry run
    nothing was. notebook: of all of them; without it each is asked for its own."""
    todo = still_to_do(runs)
    if not todo:
        note("nothing is left to submit")
        return 0
    try:
        resources = resources_of(given, "arcnb submit", options.on)
        environment = environment_of(given, "arcnb submit")
        folder = folder or todo[0].path / submitting.JOB_FOLDER
        notebooks = [notebook] if notebook else [_notebook_of(run) for run in todo]
        job = ClusterJob(name or todo[0].name, folder, tuple(todo), tuple(notebooks), resources, environment)
        texts = submitting.job_texts(options.on, job, options.after)
        if options.dry_run:
            submitting.show(texts)
            return 0
        submitting.write_job(job, texts)
        tasks = submitting.submit_job(options.on, job, texts)
    except (ArcnbError, KeyboardInterrupt):
        if not options.dry_run:
            undo()
        raise
    for run, task in zip(todo, tasks, strict=True):
        note(f"{options.on} {task}: {run.path}")
        print(run.path)
    return 0


def _notebook_of(run: Run) -> Path:
    notebook = run.manifest["notebook"]
    if notebook is None:
        raise ArcnbError(f"{run.path} does not say which notebook it ran, so no job can go on with it")
    return Path(notebook["path"])


def show_status(options: argparse.Namespace) -> int:
    """`arcnb status`: one line a submitted run; without names those that are not over."""
    if options.run:
        runs = runs_named(options.run)
    else:
        runs = []
        for run in list_runs():
            with contextlib.suppress(ArcnbError):  # of another version: `arcnb ls` says so
                if options.all or status.is_open(run):
                    runs.append(run)
    code = 0
    for run in runs:
        try:
            run.verdict()
        except ArcnbError as error:
            code = say(error, 1)
    found = status.status_lines(runs)
    if options.json:
        shared.print_json([vars(line) | {"run": line.run.path.name, "path": line.run.path} for line in found])
        return code
    if not found:
        note("none of these runs was submitted" if options.run else "no submitted run is waiting or running")
    else:
        print(aligned([(x.status, x.run.path.name, f"{x.task}: {x.scheduler}", x.news) for x in found]))
    return code


def cancel(options: argparse.Namespace) -> int:
    """`arcnb cancel`: take waiting runs out of the queue, tell running ones to save and stop. One that cannot
    be stopped leaves the others to be; the exit code says so."""
    code = 0
    submitted: dict[str, dict[str, list[Run]]] = {}  # scheduler -> task -> runs, of which a DAG has many
    # Waiting ones first: where one that runs ends, its sweep starts the next.
    for run in sorted(runs_named(options.run), key=_at_work):
        try:
            record = submitting.read_record(run)
            if record is not None and _is_with_scheduler(run, record):
                if problem := submitting.elsewhere(record):
                    code = say(f"{run.path.name}: {problem}", 1)
                else:
                    submitted.setdefault(record["scheduler"], {}).setdefault(record["task"], []).append(run)
            else:
                code = _cancel_here(run) or code
        except ArcnbError as error:
            code = say(error, 2)
    for name, tasks in submitted.items():
        code = _cancel_tasks(name, tasks) or code
    return code


def _at_work(run: Run) -> bool:
    with contextlib.suppress(ArcnbError):
        return run.status != "queued"
    return True


def _is_with_scheduler(run: Run, record: dict[str, Any]) -> bool:
    """Has its scheduler anything to stop? The record outlives the job: what was submitted once may now run,
    or have been stopped, on this machine."""
    status, manifest = run.status, run.manifest
    if status in ("running", "preempted") and not manifest.get("waits_for"):
        return submitting.is_work_of(record, manifest["job"])
    return bool(manifest.get("waits_for")) or status == "queued"


def _cancel_here(run: Run) -> int:
    state, process = run.status, run.manifest["process"]
    if state == "queued":
        status.write_cancelled(run)
        note(f"{run.path.name}: cancelled before it started")
    elif state != "running":
        note(f"{run.path.name}: {state} already")
    elif not is_alive(process):
        return say(f"{run.path.name} runs on {process['host']}, out of reach from here", 1)
    else:
        try:
            os.kill(process["pid"], signal.SIGTERM)
        except OSError as error:  # somebody else's, or it has just ended
            return say(f"{run.path.name} cannot be told to stop: {error.strerror}", 1)
        note(f"{run.path.name}: told to stop")
    return 0


def _cancel_tasks(name: str, tasks: dict[str, list[Run]]) -> int:
    """All at once, which is quick; if that is refused, each by itself: the others may well be stopped."""
    try:
        submitting.scheduler_named(name).cancel(list(tasks))
    except SchedulerError as error:
        if not error.refused:
            return say(error, 2)
        if len(tasks) > 1:
            return max(_cancel_tasks(name, {task: runs}) for task, runs in tasks.items())
        return say(f"{name} {next(iter(tasks))}: {error}", 2)
    code = 0
    for task, runs in tasks.items():
        for run in runs:
            note(f"{run.path.name}: {name} {task} cancelled")
            try:
                status.write_cancelled(run)
            except ArcnbError as error:
                code = say(f"{run.path.name}: {error}", 2)
    return code


def job_options(options: argparse.Namespace) -> dict[str, Any]:
    """Files in their order, then the command line; only what was given."""
    values: dict[str, Any] = {}
    for file in options.job:
        values |= checked_options(profiles.read_yaml(Path(file)), file)
    line: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        text = getattr(options, f"job_{name}")
        if name == "env" and text:
            line[name] = dict(_assignment(item) for item in text)
        elif text not in (None, []):
            line[name] = text if not isinstance(text, str) else profiles.parse_value(text, option)
    return values | checked_options(line, "arcnb submit")


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ArcnbError(f"--env {text!r} should be written NAME=VALUE")
    return name, value


def _refuse_for_pipeline(options: argparse.Namespace) -> None:
    told = _OF_NEW_RUNS | {"after": "--after"}
    _refuse_given(options, told, "a pipeline's file says its parameters itself")


def _refuse_for_resumed(options: argparse.Namespace) -> None:
    told = _OF_NEW_RUNS | {"notebook": options.notebook}
    _refuse_given(options, told, "a resumed run has its notebook, name and parameters already")


# What makes new runs, as it is written on the command line.
_OF_NEW_RUNS = {name: f"--{name}" for name in ("grid", "sets", "name", "again", "shards")} | {
    "parameter": "-p",
    "profile": "-f",
}


def _refuse_given(options: argparse.Namespace, told: Mapping[str, str], why: str) -> None:
    for name, option in told.items():
        value = getattr(options, name)
        if value is not False and value not in (None, "", []):
            raise ArcnbError(f"{why}; leave out {option}")


def add_commands(commands: Any) -> None:
    command = shared.add_command(
        commands, "submit", submit, "send runs to a cluster",
        "--on slurm 03 --shards 8 --gpus 1 --time 4h --name eval",
        "--on slurm notebooks/pipelines/demo.yaml --dry-run",
        "--on htcondor --resume eval",
    )  # fmt: skip
    add = command.add_argument
    add("notebook", nargs="?", metavar="NOTEBOOK", help="a notebook, or the YAML file of a pipeline")
    add("--on", required=True, metavar="SCHEDULER", help=" or ".join(submitting.SCHEDULERS))
    shared.add_parameter_options(command)
    add_set_options(command)
    add("--name", help="name of the run or the sweep (default: the notebook's)")
    add("--again", action="store_true", help="let there be a second run of that name")
    add("--resume", metavar="RUN", help="a run or sweep that was stopped: the rest of its work")
    add("--after", action="append", default=[], metavar="JOB", help="Slurm: a job that must end well before")
    add("--dry-run", action="store_true", help="check the parameters, print the submit files, send nothing")
    add(
        "--job",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML file of the options below (defaults in parentheses)",
    )
    forms: dict[str, dict[str, Any]] = {
        "bool": {"action": argparse.BooleanOptionalAction, "default": None},
        "int": {"type": int, "metavar": "N"},
        "str": {},
    }
    for name, option in OPTIONS.items():
        form = forms.get(option.kind, {"action": "append", "default": []})
        if option.kind != "bool":
            form = {"metavar": name.upper()} | form
        told = f"{option.comment} ({option.default})" if option.default else option.comment
        add(f"--{name.replace('_', '-')}", dest=f"job_{name}", help=told, **form)

    command = shared.add_command(
        commands, "status", show_status, "what became of submitted runs", "", "eval --json"
    )
    shared.add_runs(command, "*", "runs and sweeps (default: those not over)")
    command.add_argument("--all", action="store_true", help="also those that are over")
    shared.add_json(command)

    command = shared.add_command(commands, "cancel", cancel, "stop runs, here or on a cluster", "eval")
    shared.add_runs(command, "+", "runs and sweeps")
