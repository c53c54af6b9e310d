"""Which run a checkpoint is of: the settings that it must match, and notes for readers of its numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from arcnb.errors import some
from arcnb.models.lora.compatibility import adapted_modules, adapter_settings, weights_digest
from arcnb.models.registry import ModelPath, adapter_digest
from arcnb.models.training.checkpoints import STATE, plain_difference, refuse_differences, step_of
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.rewards.schemes import file_of

STATE_KEY = "RunStateCallback"  # the name under which our own state stands in trainer_state.json


def run_identity(
    plan: GrpoPlan,
    settings: Mapping,
    model: ModelPath,
    adapter: Path | None,
    tasks: Sequence,
    eval_tasks: Sequence,
) -> dict:
    """What a checkpoint has to agree with: the plan's options that a resumed run must share, start, prompts,
    tasks, and the tasks that its curves of eval tasks are of, by id."""
    own = plan.identity()
    start = {"adapter": adapter and Path(adapter).name, "model": model.name}
    start["model_sha256"] = weights_digest(model.folder)
    if adapter:  # every run's is called adapter
        start["adapter_sha256"] = adapter_digest(Path(adapter))
        own = {name: value for name, value in own.items() if plan.find(name).path.partition(".")[0] != "lora"}
    if file := file_of(plan.reward):
        start["reward_sha256"] = sha256(file.read_bytes()).hexdigest()
    prompts = asdict(plan.subject.prompt_format)
    if plan.turns == 1:
        prompts.pop("refine_template", None)
    digest = sha256("".join(task.fingerprint for task in tasks).encode()).hexdigest()[:16]
    versions = {task.task_id: task.fingerprint[:16] for task in eval_tasks}
    of_tasks = {"tasks": digest, "eval_task_versions": versions, "max_steps": settings["max_steps"]}
    return own | start | prompts | of_tasks


def saved_state(checkpoint: Path) -> dict:
    """What our RunState kept in a checkpoint; empty for a checkpoint of another program."""
    state = json.loads((checkpoint / STATE).read_text())
    return state.get("stateful_callbacks", {}).get(STATE_KEY, {}).get("attributes", {})


def refuse_other_settings(checkpoint: Path, settings: Mapping, accept: bool) -> None:
    """ArcnbError that names every setting which differs from the checkpoint's, unless `accept`."""
    before = saved_state(checkpoint).get("settings")
    refuse_differences(checkpoint, before, settings, accept, said=_difference)


def _difference(name: str, before, now) -> str:
    """One setting of a checkpoint that has another value now; tasks are named, and not all shown."""
    if name != "eval_task_versions" or before is None or now is None:
        return plain_difference(name, before, now)
    changed = [id_ for id_ in before if now.get(id_, before[id_]) != before[id_]]
    parts = {
        "are without": [id_ for id_ in before if id_ not in now],
        "have besides": [id_ for id_ in now if id_ not in before],
        "have another version of": changed,
    }
    said = [f"{what} {some(sorted(ids))}" for what, ids in parts.items() if ids]
    return f"{name} now {', '.join(said)}"


def evaluated_before(checkpoint: Path, eval_tasks: Mapping[str, str]) -> tuple[bool, str]:
    """(whether the evaluations before the checkpoint are of other tasks than these, what a reader of their
    curves has to be told). eval_tasks: versions by id, as in the run's identity."""
    before = saved_state(checkpoint).get("settings", {})
    never = before.get("eval_steps") == 0
    if not eval_tasks or never or before.get("eval_task_versions") == eval_tasks:
        return False, ""
    until = f"evaluation of the eval tasks up to step {step_of(checkpoint)}"
    return True, f"{until} was of other tasks: do not compare pass@k before and after it"


def run_notes(plan: GrpoPlan, tasks: Sequence, eval_tasks: Sequence, adapter: Path | None) -> list[str]:
    """Sentences about what a run rests on that its numbers do not show."""
    notes = []
    if plan.train_on_held_out:
        notes.append("train_on_held_out: what is reserved was not left out; results on it are memory")
    trained = {task.fingerprint for task in tasks}
    seen = sum(task.fingerprint in trained for task in eval_tasks)
    if seen:
        notes.append(
            f"{seen} of {len(eval_tasks)} eval tasks are trained on, too: what held_out/ says is not "
            "about unseen tasks"
        )
    if adapter:
        shape, asked = adapter_shape(adapter), plan.lora.config
        default = type(plan.lora)().config
        other = {name: value for name, value in shape.items() if asked[name] not in (value, default[name])}
        if other:
            kept = ", ".join(f"{name}={value}" for name, value in other.items())
            wanted = ", ".join(f"{name}={asked[name]}" for name in other)
            notes.append(
                f"the LoRA has the shape of its adapter ({kept}) and not {wanted}, which is for a fresh one"
            )
    unknown = [task.task_id for task in tasks if not task.has_test_outputs]
    if unknown:
        notes.append(
            f"{len(unknown)} of {len(tasks)} tasks have no known test outputs: their reward and `solved` "
            "rest on train pairs, which the prompt shows"
        )
    if plan.refine_conversations:
        notes.append(
            "conversations are shown as they were recorded, every one that fits: n_tasks, augment and "
            "signal_visits do not change them; the eval tasks get first answers only"
        )
    if plan.trainer == "unsloth" and adapter and plan.trl["beta"]:
        notes.append(
            "unsloth measures KL to the base model without the starting adapter; TRL, to the adapter"
        )
    return notes


def adapter_shape(adapter: Path) -> dict:
    """r, lora_alpha, use_rslora, target_modules of an adapter folder. ArcnbError where it is none."""
    config = adapter_settings(Path(adapter))
    return {
        "r": config["r"],
        "lora_alpha": config["lora_alpha"],
        "use_rslora": config.get("use_rslora", False),
        "target_modules": adapted_modules(adapter),
    }
