"""What a plan would start, and whether it can fit: the commands as text, without starting anything."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError
from arcnb.models.embedded import embedded_model
from arcnb.models.memory.shape import shape_of
from arcnb.models.memory.training import Layout, check_fit, estimate, memory_of_a_gpu
from arcnb.models.registry import ModelPath, name_problems, resolve_adapter, resolve_model
from arcnb.models.training.processes import command_line
from arcnb.plans import refusals, refuse
from arcnb.problems.plan import ProblemPlan
from arcnb.rl.checks.problems import plan_problems as of_training
from arcnb.rl.checks.problems import problems_anywhere
from arcnb.rl.engine.server import server_command
from arcnb.rl.launch import decided
from arcnb.rl.plan.grpo import SHARE_BESIDE_TRAINING, SHARE_OF_SERVER

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class DryRun:
    """commands: what would be run, in order. memory: the estimate as a table, GiB."""

    commands: list[str]
    memory: pd.DataFrame


def memory_and_commands(plan: ProblemPlan, tasks: Sequence, eval_tasks: Sequence) -> DryRun:
    """The commands and the estimate, both empty where nothing is trained. ArcnbError where the run cannot
    fit, and for what it would be refused anywhere.

    With the plan's `dry_run` a model whose size is unknown is refused, too; otherwise its table is empty.
    """
    if plan.evaluate_only:
        refuse(evaluation_problems(plan, eval_tasks))
        return DryRun([], _no_table())
    plan = decided(plan)
    refuse(problems_anywhere(plan, tasks, eval_tasks))
    folder = embedded_model() if plan.model == "default" else Path(plan.model).expanduser()
    settings = plan.settings
    share = plan.trl.get("vllm_gpu_memory_utilization", SHARE_OF_SERVER)
    context = plan.max_length or 8192
    n = plan.num_processes
    layout = Layout(
        n,
        plan.parallel == "zero3" and n > 1,
        plan.lora.r,
        plan.completions_a_part,
        plan.longest_prompt(context),
        settings["max_completion_length"],
        context,
        share if plan.by_server else None,
        settings["gradient_checkpointing"],
        plan.trl.get("vllm_gpu_memory_utilization", SHARE_BESIDE_TRAINING) if plan.colocated else 0.0,
        plan.vllm.kv_cache_gb,
        fp8_weights=plan.vllm.eight_bits,
        fp8_cache=plan.vllm.kv_cache_dtype != "auto",
    )
    memory = _memory(plan, folder, layout)
    commands = []
    if plan.by_server and not plan.server_address:
        n_server, cache = plan.vllm.server_gpus, plan.vllm.kv_cache_dtype
        words = server_command(ModelPath(plan.model, folder), n_server, context, 8000, share, cache)
        gpus = ",".join(str(n + i) for i in range(n_server))
        commands.append(f"VLLM_SERVER_DEV_MODE=1 CUDA_VISIBLE_DEVICES={gpus} {_shown(words)}")
    launch = str(Path(plan.output) / "launch" / "launch.json")
    accumulation = settings["gradient_accumulation_steps"]
    words = command_line("arcnb.rl.launch", [launch], n, plan.parallel, accumulation)
    commands.append(f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(n)))} {_shown(words)}")
    return DryRun(commands, memory)


def _memory(plan: ProblemPlan, folder: Path, layout: Layout) -> pd.DataFrame:
    room = memory_of_a_gpu(plan.gpu_memory_gib)
    try:
        shape = shape_of(plan.model, folder)
    except ArcnbError:
        if plan.dry_run:
            raise
        return _no_table()
    check_fit(plan.model, shape, layout, room)
    return estimate(shape, layout, room)


def _no_table() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame()


def plan_problems(plan: ProblemPlan) -> list[str]:
    """Why this run cannot be, as far as the plan itself and the names in it tell, a sentence each."""
    if not plan.evaluate_only:
        return of_training(plan)
    found = _evaluation_problems(plan, ())
    return [*found, *plan.subject.source_problems(), *name_problems(plan.model, [plan.adapter])]


def evaluation_problems(plan: ProblemPlan, eval_tasks: Sequence) -> list[str]:
    """Why a model cannot be evaluated as the plan says, a sentence each."""
    found = _evaluation_problems(plan, eval_tasks)
    if found_model := refusals(resolve_model, plan.model):
        return found + found_model
    return found + refusals(resolve_adapter, plan.adapter, resolve_model(plan.model))


def _evaluation_problems(plan: ProblemPlan, eval_tasks: Sequence) -> list[str]:
    missing = [] if plan.n_predictions else ["evaluate_only needs n_predictions above 0"]
    return [*plan.subject.problems(eval_tasks), *missing]


def _shown(words: list[str]) -> str:
    return shlex.join(["python", *words[1:]])
