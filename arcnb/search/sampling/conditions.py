"""How a prediction set was begun, kept beside its parts, so that nothing else is ever mixed into it.

The file says which tasks the set is about (in all shards) and what decides prompts and completions. The first
process writes it; every other one, today or next week, has to come with the same. Other shards, other
machines, and fewer tasks are welcome, and more predictions a task where all are first turns.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.tables import other_versions
from arcnb.errors import ArcnbError, some
from arcnb.machine.files import new_file
from arcnb.models.lora.compatibility import weights_digest
from arcnb.models.prompts.rendering import template_digest
from arcnb.models.registry import SHIPPED_ADAPTERS, adapter_digest
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.search.sampling.sampled_set import SampledSet

FILE_NAME = "_conditions.json"  # readers of Parquet folders leave out names that begin with an underscore
UNSAID = {"turns": 1, "last_share": 0.0}  # what a set has, or a plan wants, that does not name them
OF_OLD = {"lessons": "hindsight"}  # what a search was begun with before there was a choice


def conditions(made: SampledSet, plan: RoundPlan) -> dict:
    """What the file holds: {"tasks": {task_id: fingerprint}, "settings": {name: value}}."""
    sampling = asdict(made.sampling)
    settings = {
        "model": made.model,
        "adapter": made.adapter,
        "template": made.prompt_format.template,
        "template_sha256": template_digest(made.prompt_format.template),
        "encoding": made.prompt_format.encoding,
        "seed": plan.seed,
        "per_prompt": plan.per_prompt,
        "augment": plan.augment,
        "shuffle": plan.shuffle,
        "max_completion_length": sampling.pop("max_tokens"),
        **sampling,
    }
    if digest := _digest_of_named(made.adapter):
        settings["adapter_sha256"] = digest
    if digest := _digest_of_model(made.model):
        settings["model_sha256"] = digest
    plain = json.loads(json.dumps(settings))  # as it will be read again: tuples become lists
    return {"tasks": {task.task_id: task.fingerprint for task in made.tasks}, "settings": plain}


def _digest_of_named(adapter: str) -> str:
    """Of a named adapter; "" for none, and for one in no folder here, as those that a server has."""
    if not adapter:
        return ""
    return adapter_digest(SHIPPED_ADAPTERS / adapter if adapter == "default" else Path(adapter).expanduser())


def _digest_of_model(model: str) -> str:
    """Of a model in a folder here; "" for other names, as the hub's and those that a server has."""
    folder = Path(model).expanduser()
    return weights_digest(folder) if model and folder.is_dir() else ""


def hold_to_conditions(predictions: PredictionSet, wanted: dict) -> None:
    """Begin the set with these conditions, or compare. ArcnbError names what was added or changed."""
    path = predictions.folder / FILE_NAME
    if not path.exists():
        _compare_rows(predictions, wanted["tasks"])
        try:
            with new_file(path) as file:
                file.write(json.dumps(wanted, indent=1).encode())
            return
        except FileExistsError:  # another shard has just begun the set
            pass
    compare_conditions(predictions, wanted)


def begun_with(predictions: PredictionSet) -> dict:
    """The conditions that the set was begun with. FileNotFoundError without the file, ArcnbError for a
    damaged one."""
    path = predictions.folder / FILE_NAME
    try:
        begun = json.loads(path.read_bytes())
        return {name: dict(begun[name]) for name in ("tasks", "settings")}
    except (ValueError, KeyError, TypeError) as error:
        raise ArcnbError(
            f"{path} is damaged ({error!r}); it says how the predictions beside it were made"
        ) from None


def tasks_asked(predictions: PredictionSet) -> set[str]:
    """Ids of the tasks that the set was begun for; none where it does not say. ArcnbError as `begun_with`."""
    try:
        return set(begun_with(predictions)["tasks"])
    except FileNotFoundError:
        return set()


def compare_conditions(predictions: PredictionSet, wanted: dict) -> None:
    """ArcnbError where the set was begun with other conditions, or holds other tasks; nothing is written."""
    try:
        begun = begun_with(predictions)
    except FileNotFoundError:
        _compare_rows(predictions, wanted["tasks"])
        return
    tasks, settings = begun["tasks"], begun["settings"]
    changed = [id_ for id_, print_ in wanted["tasks"].items() if tasks.get(id_, print_) != print_]
    if changed:
        raise ArcnbError(_of_other_tasks(predictions, changed))
    added = [id_ for id_ in wanted["tasks"] if id_ not in tasks]
    if added:
        raise ArcnbError(
            f"{predictions.folder} was begun with {len(tasks)} tasks and without {some(added)}; "
            f"use a new folder for the larger task set"
        )
    of_before = {"model_sha256": wanted["settings"].get("model_sha256")}  # which older sets do not say
    settings = UNSAID | OF_OLD | of_before | settings
    for name, value in (UNSAID | wanted["settings"]).items():
        if settings.get(name) != value:
            raise ArcnbError(
                f"{predictions.folder} was begun with {name} {settings.get(name)!r}, not {value!r}; "
                "use a new folder for the changed setting"
            )


def _compare_rows(predictions: PredictionSet, fingerprints: dict[str, str]) -> None:
    """For a set without the file: its rows must be of the same version of the tasks."""
    if changed := other_versions(predictions.read(["task_id", "task_fingerprint"]), fingerprints):
        raise ArcnbError(_of_other_tasks(predictions, changed))


def _of_other_tasks(predictions: PredictionSet, changed: list[str]) -> str:
    return (
        f"{predictions.folder} holds predictions of another version of {some(changed)}; "
        f"use a new folder for the changed tasks"
    )
