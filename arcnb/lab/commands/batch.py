"""`arcnb sweep` and `arcnb pipeline`: many runs on this machine."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.batch import parameter_sets, stages, workers
from arcnb.lab.batch.pipelines import read_pipeline, refuse_stages
from arcnb.lab.batch.sweeps import Sweep, plan_sweep
from arcnb.lab.clusters.jobs import checked_options
from arcnb.lab.commands import options as shared
from arcnb.lab.commands.options import note, say
from arcnb.lab.commands.runs import write_report
from arcnb.lab.notebooks import files
from arcnb.lab.notebooks.checks import refuse_early
from arcnb.lab.notebooks.parameters import Declared, default_values
from arcnb.lab.runs.cards import aligned
from arcnb.lab.runs.placeholders import with_runs
from arcnb.lab.runs.run import Run, run_name


def sweep(options: argparse.Namespace) -> int:
    """`arcnb sweep`: run the sets that are not done, and print the table."""
    asked = _sweep_file(options).content | {
        name: number for name in parameter_sets.NUMBERS if (number := getattr(options, name)) is not None
    }
    places = workers.slots(asked.get("jobs"), asked.get("gpus", 1), asked.get("per_gpu", 1))
    planned = planned_sweep(options, options.dry_run)
    note(f"sweep folder: {planned.folder}")
    if options.dry_run:
        is_new = {member.name: not member.run.path.exists() for member in planned.members}
        states = [("new" if is_new[one.name] else one.run.status, one.name) for one in planned.members]
        print(aligned(states))
        return 0
    todo = still_to_do([member.run for member in planned.members])
    names = {member.run.path: member.name for member in planned.members}

    def tell(run: Run, code: int | None) -> None:
        if code is None:
            note(f"{names[run.path]}: started, {run.path.name}")
            return
        try:
            status, why = run.verdict()
        except ArcnbError as error:
            note(f"{names[run.path]}: {error}")
            return
        reason = why or (f"exit code {code}, see {run.path / workers.LOG}" if code else "")
        note(f"{names[run.path]}: {status}" + (f": {reason}" if reason else ""))

    ending = workers.run_queued(todo, places, tell, asked.get("seconds", 0), asked.get("apart", 0))
    print(planned.table_text())
    if ending.stopped_by is not None:
        return 128 + ending.stopped_by
    left = sum(row["status"] != "done" for row in planned.table())
    if left and ending.time_is_up:
        return say(f"the time is up, and {left} runs are not done; the same command goes on with them", 1)
    return say(f"{left} runs of the sweep are not done", 1) if left else 0


def still_to_do(runs: list[Run]) -> list[Run]:
    """Those that are not done, at work or with a scheduler; of the others it is said."""
    todo = []
    for run in runs:
        if not run.path.exists():  # a dry run has made none
            todo.append(run)
            continue
        status, _ = run.verdict()
        waiting = run.manifest.get("waits_for")
        if status in ("done", "running") or waiting:
            note(f"{run.path.name}: {f'waits as {waiting}' if waiting else status}")
        else:
            todo.append(run)
    return todo


def planned_sweep(options: argparse.Namespace, dry_run: bool = False) -> Sweep:
    """The sweep that the options describe, its runs queued; in a dry run nothing is made."""
    path = files.find_notebook(options.notebook)
    said = _sweep_file(options)
    declared_beside = files.declared_beside(path, options.profile or said.content.get("profile"))
    declared = declared_beside[path.stem]
    base = default_values(declared) | said.base(path, declared_beside)
    base |= shared.given_values(options, path, declared_beside)
    choices = said.grid(declared) | parameter_sets.grid_choices(options.grid, declared, path.name)
    sets = [parameter_sets.grid_sets(choices, declared, path.name)] if choices else []
    sets += [listed] if (listed := said.sets(declared)) else []
    fixed: dict[str, Any] = {}
    if options.shards is not None:
        shard, n_shards, output = shard_parameters(options.shards, declared, path)
        numbers = [{shard: number} for number in range(options.shards)]
        sets.append([parameter_sets.ParameterSet(number, number) for number in numbers])
        fixed = {n_shards: options.shards, output: base.get(output) or "{sweep}/predictions"}
        if len(sets) > 1 and not base.get(output):
            raise ArcnbError("the shards of several parameter sets would share one output; sweep them apart")
    if not sets:
        raise ArcnbError("a sweep needs parameter sets: --grid name=value,value, --sets FILE or --shards N")
    name = options.name or str(said.content.get("name") or "") or run_name(said.path.stem or path.stem)
    every = [replace(one, values=with_runs(one.values)) for one in parameter_sets.multiplied(sets)]
    awaited = {"elsewhere": hasattr(options, "on"), "later": bool(getattr(options, "after", None))}

    def check(member: str, values: Mapping[str, Any]) -> None:
        refuse_early(path, values, f"{path.name}, {member}", note, **awaited)

    return plan_sweep(name, path, with_runs(base), every, fixed, dry_run, check)


def _sweep_file(options: argparse.Namespace) -> parameter_sets.SweepFile:
    """What --sets names; without it a file that says nothing."""
    if options.sets:
        return parameter_sets.read_sweep_file(Path(options.sets))
    return parameter_sets.SweepFile(Path())


def shard_parameters(n_shards: int, declared: Declared, path: Path) -> list[str]:
    """What `shard`, `n_shards` and `output` are called in manifests of this notebook."""
    wanted = ("shard", "n_shards", "output")
    missing = [name for name in wanted if not declared.knows(name)]
    if missing:
        raise ArcnbError(f"{path.name} cannot be run in shards: it has no parameter {missing[0]!r}")
    if n_shards < 1:
        raise ArcnbError(f"--shards must be at least 1, got {n_shards}")
    return [declared.find(name).name for name in wanted]


def pipeline(options: argparse.Namespace) -> int:
    """`arcnb pipeline`: run the stages that are not done with these inputs; print their run folders."""
    described = read_pipeline(Path(options.file))
    for name, stage in described.stages.items():
        checked_options(stage.job, f"{described.path}, stage {name!r}")  # of which `gpus: 0` counts here, too
    refuse_stages(described, note)
    if described.about:
        note(described.about)
    if options.dry_run:
        print(aligned(stages.foreseen(described, options.again)))
        return 0
    report = stages.run_stages(described, options.again, note)
    for run in report.runs.values():
        print(run.path)
    for stage, problem in report.problems.items():
        say(f"stage {stage!r}: {problem}", 1)
    if report.problems:
        return 128 + report.stopped_by if report.stopped_by is not None else 1
    if options.report:
        return write_report(list(report.runs.values()), options.report, options.title or described.name)
    return 0


def add_set_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--grid", action="append", default=[], metavar="NAME=V,V", help="values to combine; may be repeated")
    add("--sets", metavar="FILE", help="YAML file: a list of parameter sets, or a whole sweep")
    add("--shards", type=int, metavar="N", help="shards of one inference into one prediction set")


def add_commands(commands: Any) -> None:
    command = shared.add_command(
        commands, "sweep", sweep, "run a notebook with many parameter sets",
        "05 --grid learning_rate=1e-5,2e-5 --grid seed=0,1 --name rates --jobs 2",
        "05 --sets ranks.yaml --dry-run",
        "03 -p tasks data --shards 4 --name eval",
    )  # fmt: skip
    add = command.add_argument
    add("notebook", metavar="NOTEBOOK", help=shared.NOTEBOOK)
    shared.add_parameter_options(command)
    add_set_options(command)
    add("--name", help="name of the sweep (default: the name of the --sets file or the notebook)")
    add("--seconds", type=int, metavar="N", help="then start no further run, and tell those at work to save")
    add("--jobs", type=int, metavar="N", help="runs at the same time (default: as the GPUs allow, else 1)")
    add("--gpus", type=int, metavar="N", help="GPUs of each run where there are any (1); 0: all share all")
    add("--per-gpu", type=int, metavar="N", help="runs at the same time on each GPU (1)")
    add("--apart", type=int, metavar="N", help="seconds between two starts on the same GPU (0)")
    add(
        "--dry-run",
        action="store_true",
        help="check the parameters and what they name, list the runs, make nothing",
    )

    command = shared.add_command(
        commands, "pipeline", pipeline, "run notebooks that build on each other",
        "notebooks/pipelines/demo.yaml --report demo.html",
        "notebooks/pipelines/demo.yaml --again grpo --dry-run",
    )  # fmt: skip
    command.add_argument("file", metavar="FILE", help="YAML file of stages")
    command.add_argument(
        "--again", action="append", default=[], metavar="STAGE", help="run it though it is done"
    )
    command.add_argument("--report", type=Path, metavar="FILE", help="write an index of the runs at the end")
    command.add_argument("--title", help="of the index")
    command.add_argument(
        "--dry-run", action="store_true", help="check the stages, say what would run, run nothing"
    )
