"""Running a pipeline's stages here, and skipping those that are done."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from arcnb.errors import ArcnbError, nearest
from arcnb.lab.batch import workers
from arcnb.lab.batch.pipelines import Pipeline, Stage
from arcnb.lab.notebooks.parameters import check_parameters
from arcnb.lab.runs import provenance
from arcnb.lab.runs.finding import runs_called
from arcnb.lab.runs.fingerprints import differences, run_inputs
from arcnb.lab.runs.placeholders import resolved
from arcnb.lab.runs.provenance import notebook_record
from arcnb.lab.runs.queueing import alone, queue_run
from arcnb.lab.runs.run import Run


@dataclass
class StagesReport:
    """What became of each stage: its run, and a sentence for those that are not done."""

    runs: dict[str, Run] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    stopped_by: int | None = None


def stage_inputs(pipeline: Pipeline, stage: Stage, runs: Mapping[str, Run]) -> dict[str, Any]:
    """What the stage depends on now; `runs` has the runs of the stages it needs."""
    where = f"{pipeline.path}, stage {stage.name!r}"
    values = check_parameters(resolved(stage.written, runs, where), stage.declared, where)
    return run_inputs(notebook_record(stage.notebook)["sha256"], stage.written, values)


def earlier_run(pipeline: Pipeline, stage: Stage, inputs: Mapping[str, Any]) -> tuple[Run | None, str]:
    """The newest run of this stage with the same inputs, rather a done one, and a remark: what has changed
    since the last one if there is none such."""
    earlier = runs_called(pipeline.run_name(stage.name))
    same = [run for run in earlier if run.manifest.get("inputs") == inputs and _complete(run)]
    done = [run for run in same if run.status == "done"]
    if done or same:
        return (done or same)[0], ""
    if not earlier:
        return None, ""
    changed = differences(earlier[0].manifest.get("inputs"), inputs)
    return None, f"changed since {earlier[0].path.name}: {', '.join(changed) or 'its artifacts'}"


def foreseen(pipeline: Pipeline, again: Collection[str]) -> list[tuple[str, str, str]]:
    """(stage, "done" or what would become of it, run folder or why) of all stages; nothing is made."""
    _refuse_unknown_stages(pipeline, again)
    runs: dict[str, Run] = {}
    lines = []
    for stage in pipeline.stages.values():
        missing = [name for name in stage.needs if name not in runs]
        if missing:
            lines.append((stage.name, "would run", f"after {', '.join(missing)}"))
            continue
        run, remark = earlier_run(pipeline, stage, stage_inputs(pipeline, stage, runs))
        if run is not None and run.status in ("done", "running") and stage.name not in again:
            lines.append((stage.name, run.status, str(run.path)))
            runs |= {stage.name: run} if run.status == "done" else {}
        else:
            lines.append(
                (stage.name, "would run", f"in {run.path}" if run and run.status != "done" else remark)
            )
    return lines


def _refuse_unknown_stages(pipeline: Pipeline, again: Collection[str]) -> None:
    for name in again:
        if name not in pipeline.stages:
            raise ArcnbError(f"{pipeline.path} has no stage {name!r}{nearest(name, pipeline.stages)}")


def run_stages(pipeline: Pipeline, again: Collection[str], tell: Callable[[str], None]) -> StagesReport:
    """Run what is not done, one stage after the other, and beside them those that ask for no GPU; a stage
    whose predecessor failed is left out, the others go on. `again` names stages that run whether or not they
    are done.

    A stage is over for the others when its manifest says so; it may still write its page.
    """
    _refuse_unknown_stages(pipeline, again)
    report, waiting = StagesReport(), dict(pipeline.stages)
    running: dict[str, Run] = {}
    with workers.at_work() as group:
        while waiting or group.working:
            for stage in [] if group.received else list(waiting.values()):
                missing = [name for name in stage.needs if name in report.problems]
                turn = stage.runs_beside or all(pipeline.stages[name].runs_beside for name in running)
                if missing:
                    report.problems[stage.name] = f"not run: it needs {missing[0]}"
                elif not turn or not report.runs.keys() - running.keys() >= set(stage.needs):
                    continue
                elif (run := _begun(pipeline, stage, report, stage.name in again, tell)) is not None:
                    running[stage.name] = run
                    group.begin(run, workers.planned_attempt(run), {}, quiet=stage.runs_beside)
                del waiting[stage.name]
            group.ended()
            if group.received and waiting:
                report.problems |= dict.fromkeys(waiting, "not run")
                waiting.clear()
            alive = [run for run, _, _ in group.working]
            for name, run in list(running.items()):
                try:
                    status, why = run.verdict()
                    problem = f"{run.path} {status}" + (f" at {why}" if why else "")
                except ArcnbError as error:  # removed or broken: the others go on
                    status, problem = "unreadable", str(error)
                if status != "done" and run not in alive:
                    report.problems[name] = problem
                if status == "done" or run not in alive:
                    del running[name]
    report.stopped_by = next(iter(group.received), None)
    in_order = [name for name in pipeline.stages if name in report.runs]
    report.runs = {name: report.runs[name] for name in in_order}
    return report


def _begun(
    pipeline: Pipeline, stage: Stage, report: StagesReport, again: bool, tell: Callable[[str], None]
) -> Run | None:
    """The stage's run, where it is to start now; the report has what became of it otherwise."""
    try:
        run, remark = _stage_run(pipeline, stage, report.runs, again)
    except ArcnbError as error:
        report.problems[stage.name] = str(error)
        return None
    report.runs[stage.name] = run
    status = run.status
    if status == "done":
        tell(f"{stage.name}: done with the same inputs{_other_code(run)}, {run.path}")
        return None
    if status == "running" or run.manifest.get("waits_for"):
        report.problems[stage.name] = f"{run.path} is {status} already; wait for it, or arcnb cancel it"
        return None
    tell(f"{stage.name}: {run.path}" + (f" ({remark})" if remark else ""))
    return run


def _stage_run(pipeline: Pipeline, stage: Stage, runs: Mapping[str, Run], again: bool) -> tuple[Run, str]:
    inputs = stage_inputs(pipeline, stage, runs)
    surroundings = provenance.surroundings()
    with alone():
        run, remark = earlier_run(pipeline, stage, inputs)
        if run is not None and not (again and run.status == "done"):
            return run, remark
        needed = {name: runs[name] for name in stage.needs}
        name = pipeline.run_name(stage.name)
        return queue_run(name, stage.notebook, stage.written, surroundings, needed, inputs), remark


def _other_code(run: Run) -> str:
    """The package's code is no input, but who reads that a stage is done should know of a change."""
    before, now = run.manifest["git"], provenance.git_state()
    if before and now and before["commit"] != now["commit"]:
        return f" by the code of commit {before['commit'][:8]}"
    return ""


def _complete(run: Run) -> bool:
    """Is everything still there that the run left?"""
    return all((run.path / item["path"]).exists() for item in run.manifest["artifacts"])
