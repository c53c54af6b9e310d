"""What a GRPO run is, for its checkpoints, and what its reader has to be told about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from arcnb.models.registry import ModelPath, adapter_digest
from arcnb.rl.plan import GrpoPlan
from arcnb.rl.trainer.policies import adapter_shape


def run_identity(
    plan: GrpoPlan,
    settings: Mapping,
    model: ModelPath,
    adapter: Path | None,
    tasks: Sequence,
    eval_tasks: Sequence,
) -> dict:
    """What a checkpoint has to agree with: the plan's options that a resumed run must share, start, prompts,
    tasks, and the tasks that its curves of held-out evaluation are of, by id."""
    own = plan.identity()
    start = {"adapter": adapter and Path(adapter).name, "model": model.name}
    if adapter:  # every run's is called adapter
        start["adapter_sha256"] = adapter_digest(Path(adapter))
        own = {name: value for name, value in own.items() if plan.find(name).path.partition(".")[0] != "lora"}
    prompts = asdict(plan.subject.prompt_format)
    if plan.turns == 1:
        prompts.pop("refine_template", None)
    digest = sha256("".join(task.fingerprint for task in tasks).encode()).hexdigest()[:16]
    versions = {task.task_id: task.fingerprint[:16] for task in eval_tasks}
    of_tasks = {"tasks": digest, "eval_task_versions": versions, "max_steps": settings["max_steps"]}
    return own | start | prompts | of_tasks


def run_notes(plan: GrpoPlan, tasks: Sequence, eval_tasks: Sequence, adapter: Path | None) -> list[str]:
    """Sentences about what a run rests on that its numbers do not show."""
    notes = []
    trained = {task.fingerprint for task in tasks}
    seen = sum(task.fingerprint in trained for task in eval_tasks)
    if seen:
        notes.append(
            f"{seen} of {len(eval_tasks)} held-out tasks are trained on, too: what held_out/ says is not "
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
            "signal_visits do not change them; held-out evaluation is of first answers"
        )
    if plan.trainer == "unsloth" and adapter and plan.trl["beta"]:
        notes.append(
            "unsloth measures KL to the base model without the starting adapter; TRL, to the adapter"
        )
    return notes
