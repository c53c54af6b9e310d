"""A pipeline on a cluster: a job for each stage, and the scheduler lets it wait for those it needs.

Stages that are done with the same inputs are skipped, as by `arcnb pipeline`. What a stage's references speak
of is looked up when it starts.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.batch.pipelines import Pipeline
from arcnb.lab.batch.stages import earlier_run, stage_inputs
from arcnb.lab.clusters import htcondor, slurm
from arcnb.lab.clusters.jobs import ClusterJob, checked_options, environment_of, resources_of
from arcnb.lab.clusters.submitting import (
    JOB_FOLDER,
    cancelled_unless_noted,
    note_task,
    prepare_job,
    show,
    stamp,
    submit_job,
)
from arcnb.lab.runs import provenance
from arcnb.lab.runs.queueing import queue_run, withdraw
from arcnb.lab.runs.run import Run, made_folder, runs_root


def submit_pipeline(
    scheduler: str,
    pipeline: Pipeline,
    given: Mapping[str, Any],
    dry_run: bool,
    tell: Callable[[str], None],
) -> int:
    """Submit the stages that are not done; prints their run folders. `given`: job options for all stages,
    which a stage's own `job:` overrides."""
    asked = {}
    for name, stage in pipeline.stages.items():
        where = f"{pipeline.path}, stage {name!r}"
        options = {**given, **checked_options(stage.job, where)}
        asked[name] = resources_of(options, where, scheduler), environment_of(options, where)
    runs, fresh, todo = _stage_runs(pipeline, tell)
    tasks: dict[str, list[str]] = {}
    jobs: dict[str, ClusterJob] = {}
    files: dict[str, list[Path]] = {}
    try:
        for name in todo:
            needed = [tasks[other] for other in pipeline.stages[name].needs if other in tasks]
            after = [slurm.dependency(other) for other in needed]
            folder = runs[name].path / JOB_FOLDER
            run_name = pipeline.run_name(name)
            jobs[name], files[name] = prepare_job(
                scheduler, run_name, folder, [runs[name]], *asked[name], after
            )
            if scheduler == "slurm" and not dry_run:
                tasks[name] = submit_job(scheduler, jobs[name], files[name])
                tell(f"{name}: {scheduler} {tasks[name][0]}, {runs[name].path}")
        if dry_run:
            show([file for name in todo for file in files[name]])
            withdraw(fresh)
            return 0
        if scheduler == "htcondor" and todo:
            number = _submit_dag(pipeline, jobs, todo)
            dag = f"{number} (DAG)"
            with cancelled_unless_noted(scheduler, [dag]):
                for name in todo:
                    note_task(runs[name], scheduler, dag, jobs[name].folder, files[name])
                    tell(f"{name}: {scheduler} {dag}, {runs[name].path}")
    except ArcnbError:
        # Stages that are with the scheduler already have dependents that are not: nothing of it is to run.
        if tasks:
            slurm.cancel([task for names in tasks.values() for task in names])
        withdraw(fresh)
        raise
    for name in pipeline.stages:
        print(runs[name].path)
    return 0


def _stage_runs(
    pipeline: Pipeline, tell: Callable[[str], None]
) -> tuple[dict[str, Run], list[Run], list[str]]:
    """(run of each stage, the runs that were made now, stages to submit)"""
    runs: dict[str, Run] = {}
    fresh: list[Run] = []
    todo: list[str] = []
    surroundings = provenance.surroundings()
    try:
        for name, stage in pipeline.stages.items():
            inputs = None
            if not any(other in todo for other in stage.needs):
                inputs = stage_inputs(pipeline, stage, runs)
                earlier, _ = earlier_run(pipeline, stage, inputs)
                if earlier is not None:
                    runs[name] = earlier
                    if earlier.status == "done":
                        tell(f"{name}: done with the same inputs, {earlier.path}")
                        continue
                    if earlier.status == "running" or earlier.manifest.get("waits_for"):
                        raise ArcnbError(
                            f"stage {name!r} is under way already: {earlier.path} ({earlier.status}); "
                            "wait for it, or arcnb cancel it"
                        )
            todo.append(name)
            if name not in runs:
                needed = {other: runs[other] for other in stage.needs}
                run_name = pipeline.run_name(name)
                runs[name] = queue_run(run_name, stage.notebook, stage.written, surroundings, needed, inputs)
                fresh.append(runs[name])
    except ArcnbError:
        withdraw(fresh)
        raise
    return runs, fresh, todo


def _submit_dag(pipeline: Pipeline, jobs: Mapping[str, ClusterJob], todo: list[str]) -> str:
    folder = made_folder(runs_root() / "pipelines" / pipeline.name / stamp())
    needs = {name: [other for other in pipeline.stages[name].needs if other in todo] for name in todo}
    return htcondor.submit_dag(jobs, needs, folder / "pipeline.dag")
