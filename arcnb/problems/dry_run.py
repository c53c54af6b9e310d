"""What a plan would start, and whether it can fit: the commands as text, without starting anything."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.models.embedded import embedded_model
from arcnb.models.gpu_memory import GIB, visible_gpus
from arcnb.models.launching import command_line
from arcnb.models.registry import ModelPath
from arcnb.problems.memory import Layout, MemoryPlanError, check_fit, estimate, shape_of
from arcnb.rl.generation_server import server_command
from arcnb.rl.launch import GrpoPlan
from arcnb.rl.settings import DEFAULTS, LORA_DEFAULTS, batch_layout
from arcnb.rl.subject import subject_of

if TYPE_CHECKING:
    import pandas as pd

ASSUMED_GIB = 80.0  # an H100 or A100, where nobody says otherwise and no GPU is seen


@dataclass(frozen=True)
class DryRun:
    """commands: what would be run, in order. memory: the estimate as a table, GiB."""

    commands: list[str]
    memory: pd.DataFrame


def gpu_gib(asked: float = 0.0) -> float:
    """Memory of a GPU, GiB: as asked, of the smallest GPU here, or what is assumed."""
    gpus = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    return asked or (min(gpu.total for gpu in gpus) / GIB if gpus else ASSUMED_GIB)


def dry_run(plan: GrpoPlan, gpu_memory_gib: float = 0.0, full: bool = False, insist: bool = True) -> DryRun:
    """The commands and the estimate; MemoryPlanError where the run cannot fit, ValueError for a
    format, template or reward weight that the run would refuse. full: without LoRA.

    insist: refuse a model whose size is unknown, too; otherwise its table is empty.
    """
    folder = embedded_model() if plan.model == "default" else Path(plan.model).expanduser()
    settings = DEFAULTS | plan.settings
    subject = subject_of(plan.subject, plan.subject_options)
    subject.prompt_format(plan)  # a format, template or weight that does not exist is said here, too
    subject.reward_plan(plan.options, settings)
    server = bool(settings["use_vllm"]) and settings.get("vllm_mode") == "server"
    share = settings.get("vllm_gpu_memory_utilization", 0.9)
    context = plan.options.max_sequence_length or 8192
    layout = Layout(
        plan.num_processes,
        plan.parallel == "zero3" and plan.num_processes > 1,
        0 if full else plan.lora.get("r", LORA_DEFAULTS["r"]),
        batch_layout(settings, plan.num_processes, plan.options.prompts_per_step),
        plan.options.max_prompt_tokens or context - settings["max_completion_length"],
        settings["max_completion_length"],
        context,
        share if server else None,
        settings["gradient_checkpointing"],
        settings.get("vllm_gpu_memory_utilization", 0.3) if settings["use_vllm"] and not server else 0.0,
    )
    memory = _memory(plan.model, folder, layout, gpu_gib(gpu_memory_gib), insist)
    commands = []
    n = plan.num_processes
    if server and not settings.get("vllm_server_base_url"):
        cache = plan.options.vllm_kv_cache_dtype
        words = server_command(ModelPath(plan.model, folder), plan.server_gpus, context, 8000, share, cache)
        gpus = ",".join(str(n + i) for i in range(plan.server_gpus))
        commands.append(f"VLLM_SERVER_DEV_MODE=1 CUDA_VISIBLE_DEVICES={gpus} {_shown(words)}")
    launch = str(Path(plan.output) / "launch" / "launch.json")
    accumulation = settings["gradient_accumulation_steps"]
    words = command_line("arcnb.rl.launch", [launch], n, plan.parallel, accumulation)
    commands.append(f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(n)))} {_shown(words)}")
    return DryRun(commands, memory)


def _memory(model: str, folder: Path, layout: Layout, room: float, insist: bool) -> pd.DataFrame:
    try:
        shape = shape_of(model, folder)
    except MemoryPlanError:
        if insist:
            raise
        import pandas as pd

        return pd.DataFrame()
    check_fit(model, shape, layout, room)
    return estimate(shape, layout, room)


def _shown(words: list[str]) -> str:
    return shlex.join(["python", *words[1:]])
