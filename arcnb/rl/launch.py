"""A GRPO run as its plan says: in this process, or in processes of its own for unsloth and several GPUs.

    report = run_grpo(GrpoPlan.of({"max_steps": 8}, output=run.path), tasks, eval_tasks)

unsloth has to be imported before transformers, and several GPUs need one process each: then the plan is
written to `launch.json` in the run folder and `python -m arcnb.rl.launch` (under `accelerate launch` for
several) carries it out; its output is printed here, and an interrupt here asks it for a checkpoint.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.files import write_whole
from arcnb.machine.gpus import VARIABLE, visible_gpus
from arcnb.machine.imports import nothing_collected
from arcnb.machine.processes import leave, usable_cores
from arcnb.machine.starts import free_port
from arcnb.models.lora.sums import add_adapters, check_addable
from arcnb.models.merging import merged_model
from arcnb.models.registry import resolve_adapter, resolve_model
from arcnb.models.training.log import read_metrics
from arcnb.models.training.nodes import n_nodes
from arcnb.models.training.processes import LaunchError, LostError, launch, write_pid
from arcnb.plans import refuse
from arcnb.programs.executor.executor import Executor
from arcnb.rl.checks.machine import context_of, free_memory_problems
from arcnb.rl.checks.problems import problems
from arcnb.rl.engine.options import vllm_environment
from arcnb.rl.engine.server import generation_server, shared_out
from arcnb.rl.plan.grpo import SHARE_OF_SERVER, GrpoPlan
from arcnb.rl.rewards.schemes import file_of
from arcnb.rl.trainer.training import train_grpo
from arcnb.rl.watching.report import ROLLED_BACK, TrainingReport


def run_grpo(plan: GrpoPlan, tasks: Sequence, eval_tasks: Sequence = ()) -> TrainingReport:
    """Carry the plan out, where it has to be. ArcnbError with all that the plan is refused for, or with
    what only training finds out, before anything heavy is loaded."""
    asked, plan = plan, decided(plan)
    refuse(problems(plan, tasks, eval_tasks))
    if file := file_of(plan.reward):
        write_whole(Path(plan.output) / "reward.py", file.read_bytes())
    if asked.use_vllm == "auto":
        print(f"use_vllm is auto: {'vLLM' if plan.samples_by_vllm else 'transformers'} samples")
    if plan.fold_adapter:
        return _train_on_folded(plan, tasks, eval_tasks)
    return _train(plan, tasks, eval_tasks)


def decided(plan: GrpoPlan) -> GrpoPlan:
    """The plan with use_vllm=True or False in place of "auto": what it means on this machine."""
    if plan.use_vllm != "auto":
        return plan
    gpus = bool(visible_gpus())
    return replace(plan, use_vllm=gpus and importlib.util.find_spec("vllm") is not None)


def _train(plan: GrpoPlan, tasks: Sequence, eval_tasks: Sequence) -> TrainingReport:
    if plan.by_server and not plan.server_address:
        return _train_with_server(plan, tasks, eval_tasks)
    if plan.trainer == "trl" and plan.num_processes == 1:
        return train_here(plan, tasks, eval_tasks)
    return _train_in_processes(plan, tasks, eval_tasks)


def _train_on_folded(plan: GrpoPlan, tasks: Sequence, eval_tasks: Sequence) -> TrainingReport:
    model = resolve_model(plan.model)
    start = resolve_adapter(plan.adapter, model)
    if start is None:
        raise ArcnbError("fold_adapter=True needs an adapter to fold into the model")
    check_addable(start)  # before anything is trained that it could not be added to
    folded = replace(plan, model=str(merged_model(model, start).folder), adapter="", fold_adapter=False)
    report = _train(folded, tasks, eval_tasks)
    add_adapters(start, report.adapter, report.adapter)
    for best in (Path(plan.output) / "best").glob("checkpoint-*"):
        add_adapters(start, best, best.with_name("adapter"))
    return report


def _train_with_server(plan: GrpoPlan, tasks: Sequence, eval_tasks: Sequence) -> TrainingReport:
    """Training on some GPUs, sampling by a server on others; both end with the run."""
    if n_nodes() > 1:
        remedy = "`arcnb submit --serve MODEL` puts one on a node of its own; or vllm_mode='colocate'"
        raise ArcnbError(f"a job of several nodes starts no server: {remedy}")
    model = resolve_model(plan.model)
    for_server, for_training = shared_out(plan.vllm.server_gpus, plan.num_processes)
    refuse(free_memory_problems(plan, visible_gpus(",".join(for_server)), SHARE_OF_SERVER))
    share = plan.trl.get("vllm_gpu_memory_utilization", SHARE_OF_SERVER)
    log = Path(plan.output) / "vllm_server.log"
    context = context_of(plan, model)
    with generation_server(model, for_server, context, log, share, plan.vllm.kv_cache_dtype) as server:
        # TRL's fixed port for the weights would be shared by all runs of a machine.
        ports = {"vllm_group_port": free_port()} | plan.trl
        served = replace(plan, trl=ports | {"vllm_server_base_url": server.address})
        gpus = {VARIABLE: ",".join(for_training)}
        report = _train_in_processes(served, tasks, eval_tasks, gpus, server.lost)
        if len(for_server) > 1:
            report.notes.append(server.shares())
        return report


def train_here(
    plan: GrpoPlan, tasks: Sequence, eval_tasks: Sequence, callbacks: Sequence = ()
) -> TrainingReport:
    """Carry the plan out in this process."""
    with Executor(workers_of(plan), plan.subject.limits) as executor:
        executor.warm()  # while model and engine load
        return train_grpo(plan, tasks, eval_tasks, executor, callbacks)


def workers_of(plan: GrpoPlan) -> int | None:
    """Programs that one of the plan's processes runs at the same time: its share of the workers, or of the
    processors that this process may use. None: all of them."""
    if plan.num_processes == 1:
        return plan.workers or None
    return max(1, (plan.workers or usable_cores()) // plan.num_processes)


def _train_in_processes(
    plan: GrpoPlan,
    tasks: Sequence,
    eval_tasks: Sequence,
    environment: dict | None = None,
    lost: Callable[[], str | None] | None = None,
) -> TrainingReport:
    """Start the processes, and others after each rollback that they cannot go on from; their report. lost:
    see `launch`."""
    seconds, resumed_at = 0.0, None
    while True:
        values = one_launch(plan, plan.write(tasks, eval_tasks), environment, lost)
        seconds += values["seconds"]
        resumed_at = values["resumed_at"] if resumed_at is None else resumed_at
        if values["status"] != ROLLED_BACK:
            return _report(plan, values | {"seconds": seconds, "resumed_at": resumed_at})
        plan = replace(plan, resume="auto")


def one_launch(
    plan: GrpoPlan, path: Path, environment: dict | None, lost: Callable[[], str | None] | None
) -> dict:
    """What the first process of a launch left."""
    report = path.with_name("report.json")
    report.unlink(missing_ok=True)
    interrupted = False
    try:
        interrupted = launch(
            "arcnb.rl.launch",
            [str(path)],
            plan.num_processes,
            Path(plan.output) / "processes.log",
            parallel=plan.parallel,
            gradient_accumulation_steps=plan.trl["gradient_accumulation_steps"],
            environment=vllm_environment() | (environment or {}),
            pids=path.parent,
            lost=lost,
        )
    except LaunchError as error:
        if not report.is_file():
            raise
        # Processes that lost their server or another node save what they have and say that they were stopped.
        # Why is known here alone.
        status = json.loads(report.read_text()).get("status")
        if isinstance(error, LostError) and status in (None, "preempted"):
            raise
    if not report.is_file():
        raise LaunchError("the training processes ended without a report")
    values = json.loads(report.read_text())
    if "error" in values:
        raise ArcnbError(values["error"])
    if interrupted and values["status"] == ROLLED_BACK:  # too late for the processes to say so
        values["status"] = "preempted"
    return values


def _report(plan: GrpoPlan, values: dict) -> TrainingReport:
    import pandas as pd

    output = Path(plan.output)
    values["config"] = pd.DataFrame(values["config"])
    values["pages"] = [output / name for name in values["pages"]]
    return TrainingReport(output / "adapter", history=read_metrics(output / "metrics.jsonl"), **values)


def main(path: str) -> None:
    """Carry out a written plan and leave `report.json` beside it."""
    plan, tasks, eval_tasks = GrpoPlan.read(Path(path))
    rank = int(os.environ.get("RANK", "0"))
    folder = Path(path).parent
    write_pid(folder, rank)
    if plan.trainer == "unsloth":
        import unsloth  # noqa: F401  before transformers, which it patches
    elif not plan.samples_by_vllm:
        sys.modules.setdefault("vllm", None)  # which TRL would import for nothing, a third of its own import
    _take_gpu()
    try:
        report = train_here(plan, tasks, eval_tasks)
    except ValueError as error:
        # The first to fail; the launcher then ends the others.
        write_whole(folder / "report.json", json.dumps({"error": str(error)}))
        raise
    if rank == 0:
        values = vars(report) | {
            "pages": [page.name for page in report.pages],
            "config": report.config.to_dict("list"),
        }
        del values["adapter"], values["history"]  # which the folder has
        write_whole(folder / "report.json", json.dumps(values))


def _take_gpu() -> None:
    """Of several processes each makes its own GPU the current one before it loads anything: transformers puts
    a base in four bits on the current one, and accelerate refuses to train what lies on another's."""
    with nothing_collected():
        import torch

    if "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


if __name__ == "__main__":
    os.environ |= vllm_environment()
    main(sys.argv[1])
    leave()
