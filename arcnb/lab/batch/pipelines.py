"""Pipelines: a YAML file of notebooks whose parameters speak of what earlier ones left.

    name: demo                      # runs are called demo-data, demo-inference; default: the file's name
    about: What it does.            # optional: printed when it starts
    stages:
      data:
        notebook: 01                # number, name, or path (beside this file, too)
        profile: demo               # one or a list, as with -f
      inference:
        notebook: 03
        parameters:
          tasks: ${data.tasks}      # artifact of stage data (arcnb.lab.runs.placeholders has all forms)
        after: [warmup]             # optional: stages to wait for without needing anything of them
        job: {gpus: 1, time: 2h}    # optional: resources on a cluster, as the options of `arcnb submit`;
                                    # with gpus: 0 it runs beside other stages here

Everything that can be checked without running is checked when the file is read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, nearest
from arcnb.lab.notebooks import files, profiles
from arcnb.lab.notebooks.checks import refuse_early
from arcnb.lab.notebooks.parameters import Declared, check_parameters, default_values, named_once
from arcnb.lab.runs.named_paths import existing_file
from arcnb.lab.runs.placeholders import refuse_malformed, stages_named
from arcnb.lab.runs.run import check_name, run_name

STAGE_KEYS = ("notebook", "profile", "parameters", "after", "job")


@dataclass(frozen=True)
class Stage:
    """`written`: all parameters of the notebook, with references where the file has them."""

    name: str
    notebook: Path
    declared: Declared
    written: dict[str, Any]
    needs: tuple[str, ...]
    waits: bool  # whether it has an `after:`, for files that other stages leave at places of their own
    job: dict[str, Any] = field(default_factory=dict)

    @property
    def runs_beside(self) -> bool:
        """Whether another stage may run at the same time on this machine."""
        return self.job.get("gpus") == 0


@dataclass(frozen=True)
class Pipeline:
    name: str
    path: Path
    stages: dict[str, Stage]  # in an order in which they can run
    about: str = ""  # what it does and how long that takes, for whoever starts it

    def run_name(self, stage: str) -> str:
        return f"{self.name}-{stage}"


def read_pipeline(path: Path) -> Pipeline:
    """ArcnbError in one sentence for whatever is wrong with the file."""
    content = profiles.read_yaml(path)
    refuse_unknown(content, ("name", "about", "stages"), str(path))
    described = content.get("stages")
    if not isinstance(described, dict) or not described:
        raise ArcnbError(f"{path} must hold `stages:` with at least one stage in it")
    name = str(content.get("name") or run_name(path.stem))
    check_name(name)
    stages = {}
    for stage, description in zip(map(str, described), described.values(), strict=True):
        where = f"{path}, stage {stage!r}"
        check_name(stage)
        if not isinstance(description, dict) or "notebook" not in description:
            raise ArcnbError(f"{where} must say which `notebook:` it runs")
        refuse_unknown(description, STAGE_KEYS, where)
        stages[stage] = _stage(stage, description, path, where)
    for stage in stages.values():
        for other in stage.needs:
            if other not in stages:
                known = [name for name in stages if name != stage.name]
                raise ArcnbError(
                    f"{path}, stage {stage.name!r} needs stage {other!r}, which is not there"
                    f"{nearest(other, known)}"
                )
    sorter = TopologicalSorter({name: stage.needs for name, stage in stages.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " needs ".join(reversed(error.args[1]))
        raise ArcnbError(f"{path}: the stages wait for each other in a cycle: {circle}") from None
    about = str(content.get("about") or "").strip()
    return Pipeline(name, path, {name: stages[name] for name in _in_order(stages)}, about)


def _in_order(stages: Mapping[str, Stage]) -> list[str]:
    """Names in the order of the file, each behind what it needs."""
    order: list[str] = []
    while len(order) < len(stages):
        order.append(next(n for n, s in stages.items() if n not in order and set(s.needs) <= set(order)))
    return order


def _stage(name: str, description: dict[str, Any], path: Path, where: str) -> Stage:
    notebook = _notebook(description["notebook"], path)
    declared = files.declared_beside(notebook, description.get("profile"))
    own = declared[notebook.stem]
    values = default_values(own)
    profile = profiled(description.get("profile"), path, notebook, declared)
    values |= profile
    given = description.get("parameters") or {}
    if not isinstance(given, dict):
        raise ArcnbError(f"{where}: `parameters:` must hold `name: value` lines")
    said = f"{where}: {notebook.name}"
    for key, value in (profile | given).items():
        refuse_malformed(value, f"{where}, parameter {key!r}")
    given = named_once(given, own, said)
    referring = {key: value for key, value in given.items() if any(stages_named(value))}
    plain = {key: value for key, value in given.items() if key not in referring}
    values |= referring | check_parameters(plain, own, said)
    after = description.get("after") or []
    after = after if isinstance(after, list) else [after]
    needs = [stage for value in values.values() for stage, _ in stages_named(value)]
    job = description.get("job") or {}
    if not isinstance(job, dict):
        raise ArcnbError(f"{where}: `job:` must hold `option: value` lines")
    every = tuple(dict.fromkeys([*map(str, after), *needs]))
    return Stage(name, notebook, own, values, every, bool(after), job)


def refuse_stages(pipeline: Pipeline, tell: Callable[[str], object], elsewhere: bool = False) -> None:
    """ArcnbError for what the notebook of a stage refuses (see `refuse_early`), before anything runs."""
    for name, stage in pipeline.stages.items():
        where = f"{pipeline.path}, stage {name!r}"
        refuse_early(stage.notebook, stage.written, where, tell, elsewhere, stage.waits)


def _notebook(reference: Any, path: Path) -> Path:
    """Of a path, from the folder of the pipeline's file, too. YAML reads `03` as a number."""
    beside = path.parent / str(reference)
    return beside.resolve() if existing_file(beside) else files.find_notebook(str(reference))


def profiled(wanted: Any, path: Path, notebook: Path, declared: Mapping[str, Declared]) -> dict[str, Any]:
    """The values of a profile or a list of them, in their order; also of files beside the file `path`."""
    values: dict[str, Any] = {}
    for reference in wanted if isinstance(wanted, list) else [wanted] if wanted else []:
        beside = path.parent / str(reference)
        profile = beside if existing_file(beside) else profiles.find_profile(str(reference), notebook.parent)
        values |= profiles.profile_values(profile, notebook.stem, declared)
    return values


def refuse_unknown(content: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in content:
        if key not in known:
            raise ArcnbError(f"{where} has an unknown key {key!r}{nearest(str(key), known)}")
