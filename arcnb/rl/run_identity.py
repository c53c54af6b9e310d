"""What a GRPO run is, for its checkpoints, and what its reader has to be told about it."""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from arcnb.models.registry import adapter_digest
from arcnb.rl.options import FREE
from arcnb.rl.policies import adapter_shape
from arcnb.rl.settings import LORA_DEFAULTS

# Checkpoints of earlier versions say nothing about these.
LATER = ("template", "encoding", "refine_template", "shown_tests", "adapter_sha256", "held_out_tasks")


def run_identity(
    settings, options, lora, adapter, model, tasks, prompt_format, seed, n_processes, held_out_tasks=()
) -> dict:
    """What a checkpoint has to agree with: settings, options, start, prompts, tasks, and the tasks that its
    curves of held-out evaluation are of, by id."""
    own = {name: value for name, value in asdict(options).items() if name not in FREE and name != "guard"}
    digest = sha256("".join(task.fingerprint for task in tasks).encode()).hexdigest()[:16]
    start = {"adapter": adapter and Path(adapter).name, "model": model.name}
    if adapter:  # every run's is called adapter
        start["adapter_sha256"] = adapter_digest(Path(adapter))
    prompts = asdict(prompt_format)
    if options.turns == 1:
        prompts.pop("refine_template", None)
    shape = {} if adapter else {"lora": LORA_DEFAULTS | (lora or {})}
    free = ("save_steps", "report_to", "logging_steps", "vllm_server_base_url", "vllm_gpu_memory_utilization")
    kept = {name: value for name, value in settings.items() if name not in free}
    held_out = {task.task_id: task.fingerprint[:16] for task in held_out_tasks}
    shown = {"tasks": digest, "held_out_tasks": held_out, "seed": seed, "num_processes": n_processes}
    return kept | own | start | shape | prompts | shown


def run_notes(tasks, held_out_tasks, options, adapter, lora, settings) -> list[str]:
    """Sentences about what a run rests on that its numbers do not show."""
    notes = []
    trained = {task.fingerprint for task in tasks}
    seen = sum(task.fingerprint in trained for task in held_out_tasks)
    if seen:
        notes.append(
            f"{seen} of {len(held_out_tasks)} held-out tasks are trained on, too: what held_out/ says is not "
            "about unseen tasks"
        )
    if adapter and lora:
        shape = adapter_shape(adapter)
        other = {name: value for name, value in shape.items() if lora.get(name, value) != value}
        if other:
            kept = ", ".join(f"{name}={value}" for name, value in other.items())
            asked = ", ".join(f"{name}={lora[name]}" for name in other)
            notes.append(
                f"the LoRA has the shape of its adapter ({kept}) and not {asked}, which is for a fresh one"
            )
    unknown = [task.task_id for task in tasks if not task.has_test_outputs]
    if unknown:
        notes.append(
            f"{len(unknown)} of {len(tasks)} tasks have no known test outputs: their reward and `solved` "
            "rest on train pairs, which the prompt shows"
        )
    if options.conversations:
        notes.append(
            "conversations are shown as they were recorded, every one that fits: n_tasks, augment and "
            "signal_visits do not change them; held-out evaluation is of first answers"
        )
    if options.trainer == "unsloth" and adapter and settings["beta"]:
        notes.append(
            "unsloth measures KL to the base model without the starting adapter; TRL, to the adapter"
        )
    return notes
