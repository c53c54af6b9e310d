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
    job_texts,
    note_task,
    show,
    submit_job,
    write_job,
)
from arcnb.lab.runs import provenance
from arcnb.lab.runs.manifest import stamp
from arcnb.lab.runs.queueing import foreseen_run, queue_run, withdraw
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
    runs, fresh, todo = _stage_runs(pipeline, tell, dry_run)
    tasks: dict[str, list[str]] = {}
    jobs: dict[str, ClusterJob] = {}
    texts: dict[str, dict[Path, str]] = {}
    try:
        for name in todo:
            needed = [tasks[other] for other in pipeline.stages[name].needs if other in tasks]
            after = [slurm.dependency(other) for other in needed]
            folder, notebook = runs[name].path / JOB_FOLDER, pipeline.stages[name].notebook
            jobs[name] = ClusterJob(pipeline.run_name(name), folder, (runs[name],), (notebook,), *asked[name])
            texts[name] = job_texts(scheduler, jobs[name], after)
            if dry_run:
                continue
            write_job(jobs[name], texts[name])
            if scheduler == "slurm":
                tasks[name] = submit_job(scheduler, jobs[name], texts[name])
                tell(f"{name}: {scheduler} {tasks[name][0]}, {runs[name].path}")
        if scheduler == "htcondor" and todo:
            dag_file = runs_root() / "pipelines" / pipeline.name / stamp() / "pipeline.dag"
            dag_text = htcondor.dag_text(jobs, _needs(pipeline, todo))
            if dry_run:
                texts["the DAG"] = {dag_file: dag_text}
            else:
                _submit_dag(dag_file, dag_text, jobs, texts, tell)
    except (ArcnbError, KeyboardInterrupt):
        # Stages that are with the scheduler already have dependents that are not: nothing of it is to run.
        if tasks:
            slurm.cancel([task for names in tasks.values() for task in names])
        withdraw(fresh)
        raise
    if dry_run:
        for told in texts.values():
            show(told)
        return 0
    for name in pipeline.stages:
        print(runs[name].path)
    return 0


def _stage_runs(
    pipeline: Pipeline, tell: Callable[[str], None], dry_run: bool
) -> tuple[dict[str, Run], list[Run], list[str]]:
    """(run of each stage, the runs that were made now, stages to submit); in a dry run none are made"""
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
            if name not in runs and dry_run:
                runs[name] = foreseen_run(pipeline.run_name(name))
            elif name not in runs:
                needed = {other: runs[other] for other in stage.needs}
                run_name = pipeline.run_name(name)
                runs[name] = queue_run(run_name, stage.notebook, stage.written, surroundings, needed, inputs)
                fresh.append(runs[name])
    except (ArcnbError, KeyboardInterrupt):
        withdraw(fresh)
        raise
    return runs, fresh, todo


def _needs(pipeline: Pipeline, todo: list[str]) -> dict[str, list[str]]:
    """Of each stage to submit, those among them that it waits for."""
    return {name: [other for other in pipeline.stages[name].needs if other in todo] for name in todo}


def _submit_dag(
    path: Path,
    text: str,
    jobs: Mapping[str, ClusterJob],
    texts: Mapping[str, Mapping[Path, str]],
    tell: Callable[[str], None],
) -> None:
    made_folder(path.parent)
    dag = f"{htcondor.submit_dag(path, text)} (DAG)"
    with cancelled_unless_noted(htcondor.NAME, [dag]):
        for name, job in jobs.items():
            (run,) = job.runs
            note_task(run, htcondor.NAME, dag, job.folder, texts[name])
            tell(f"{name}: {htcondor.NAME} {dag}, {run.path}")
