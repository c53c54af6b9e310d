"""A GRPO run from plain values: in this process, or in processes of its own for unsloth and several GPUs.

    report = run_grpo(GrpoPlan(model="default", tasks=task_set, output=run.path, settings={"max_steps": 8}))

unsloth has to be imported before transformers, and several GPUs need one process each: then the plan is
written to `launch.json` in the run folder and `python -m arcnb.rl.launch` (under `accelerate launch` for
several) carries it out; its output is printed here, and an interrupt here asks it for a checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from arcnb.arc.tasks import Task
from arcnb.models.adapter_sums import add_adapters, check_addable
from arcnb.models.gpu_choice import VARIABLE
from arcnb.models.gpu_memory import visible_gpus
from arcnb.models.launching import LaunchError, announce, launch, parallel_problem
from arcnb.models.merging import merged_model
from arcnb.models.registry import resolve_adapter, resolve_model
from arcnb.models.training_log import read_metrics
from arcnb.programs.executor import Executor
from arcnb.programs.service import usable_processors
from arcnb.rl.generation_server import generation_server, shared_out
from arcnb.rl.grpo import GrpoOptions, check_plan, check_run, train_grpo
from arcnb.rl.guard import GuardOptions, Thresholds
from arcnb.rl.options import check_options
from arcnb.rl.settings import (
    DEFAULTS,
    SHARE_OF_SERVER,
    SettingsError,
    check_free_memory,
    colocated,
    cpu_problem,
    vllm_environment,
)
from arcnb.rl.subject import subject_of
from arcnb.rl.training_report import ROLLED_BACK, TrainingReport


@dataclass(frozen=True)
class GrpoPlan:
    """Everything a run needs.

    model, adapter, template, encoding, refine_template: as in arcnb.models. workers: programs run at the same
    time over all processes (None: one a core); memory_mb: of one program. num_processes: GPUs, one process
    each, as `parallel` says: "ddp", or "zero3", which needs deepspeed. server_gpus: further GPUs for a vLLM
    server that is started for this run, where vllm_mode is "server" and no vllm_server_base_url is given.
    subject, subject_options: what the tasks are, where not ARC's, see arcnb.rl.subject.
    fold_adapter: train a fresh LoRA on the model with `adapter` folded in. Checkpoints then have that LoRA,
    which belongs to the folded model; `adapter/`, and `best/adapter/` beside a best checkpoint, are the sum
    of both, for the model itself.
    """

    tasks: Sequence[Task]
    output: Path
    model: str = "default"
    adapter: str = ""
    fold_adapter: bool = False
    template: str = "arc_code"
    encoding: str = ""
    refine_template: str = "refine"
    held_out_tasks: Sequence[Task] = ()
    settings: dict = field(default_factory=dict)
    lora: dict = field(default_factory=dict)
    options: GrpoOptions = field(default_factory=GrpoOptions)
    seed: int = 0
    workers: int | None = None
    memory_mb: int = 512
    num_processes: int = 1
    parallel: str = "ddp"
    server_gpus: int = 1
    subject: str = ""
    subject_options: dict = field(default_factory=dict)

    def write(self) -> Path:
        """`launch.json` with the tasks beside it, for another process to read."""
        folder = Path(self.output) / "launch"
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("tasks", "held_out_tasks", "options", "output")
        }
        values |= {"options": asdict(self.options), "output": str(Path(self.output).resolve())}
        subject = subject_of(self.subject, self.subject_options)
        for name in ("tasks", "held_out_tasks"):
            path = folder / f"{name}{subject.suffix}"
            if getattr(self, name):
                path.unlink(missing_ok=True)
                subject.write(getattr(self, name), path)
            values[name] = str(path.resolve()) if getattr(self, name) else ""
        path = folder / "launch.json"
        path.write_text(json.dumps(values, indent=1))
        return path

    @classmethod
    def read(cls, path: Path) -> GrpoPlan:
        """The inverse of write."""
        values = json.loads(Path(path).read_text())
        guard = values["options"].pop("guard")
        guard = GuardOptions(**(guard | {"thresholds": Thresholds(**guard["thresholds"])}))
        values["options"] = GrpoOptions(**values["options"], guard=guard)
        subject = subject_of(values["subject"], values["subject_options"])
        for name in ("tasks", "held_out_tasks"):
            values[name] = subject.read(values[name]) if values[name] else ()
        return cls(**(values | {"output": Path(values["output"])}))


def run_grpo(plan: GrpoPlan) -> TrainingReport:
    """Carry the plan out, where it has to be. SettingsError and the like as train_grpo raises them."""
    if plan.workers is not None and plan.workers < 1:
        raise SettingsError(f"workers must be at least 1, or 0 for one a core, not {plan.workers}")
    check_options(plan.options, plan.held_out_tasks)
    _check_gpu(plan)
    problem = parallel_problem(plan.num_processes, plan.parallel)
    if problem:
        raise SettingsError(problem)
    _check_plan(plan)
    if plan.fold_adapter:
        return _train_on_folded(plan)
    if _wants_server(plan):
        return _train_with_server(plan)
    if plan.options.trainer == "trl" and plan.num_processes == 1:
        return train_here(plan)
    return _train_in_processes(plan)


def _train_on_folded(plan: GrpoPlan) -> TrainingReport:
    model = resolve_model(plan.model)
    start = resolve_adapter(plan.adapter, model)
    if start is None:
        raise SettingsError("fold_adapter=True needs an adapter to fold into the model")
    check_addable(start)  # before anything is trained that it could not be added to
    folded = merged_model(model, start)
    report = run_grpo(replace(plan, model=str(folded.folder), adapter="", fold_adapter=False))
    add_adapters(start, report.adapter, report.adapter)
    for best in (Path(plan.output) / "best").glob("checkpoint-*"):
        add_adapters(start, best, best.with_name("adapter"))
    return report


def _check_gpu(plan: GrpoPlan) -> None:
    """SettingsError for vLLM in the training processes where there is no GPU, or too little of one is free:
    it would fail once it has loaded."""
    if not colocated(plan.settings):
        return
    gpus = visible_gpus(os.environ.get(VARIABLE))
    check_free_memory(plan.settings, gpus[: plan.num_processes])
    import torch

    if not torch.cuda.is_available() and (
        problem := cpu_problem(plan.settings, plan.options, plan.num_processes)
    ):
        raise SettingsError(problem)


def _check_plan(plan: GrpoPlan) -> None:
    """What training would refuse by its first look at the plan, before processes or a server start."""
    settings = DEFAULTS | plan.settings
    check_plan(resolve_model(plan.model), settings, plan.options, plan.num_processes, plan.held_out_tasks)
    subject_of(plan.subject, plan.subject_options).reward_plan(plan.options, settings)


def _wants_server(plan: GrpoPlan) -> bool:
    """Whether a vLLM server is to be started."""
    settings = plan.settings
    if not settings.get("use_vllm") or settings.get("vllm_mode", "colocate") != "server":
        return False
    return not settings.get("vllm_server_base_url") and not settings.get("vllm_server_host")


def _train_with_server(plan: GrpoPlan) -> TrainingReport:
    """Training on some GPUs, sampling by a server on others; both end with the run."""
    if plan.server_gpus < 1:
        raise SettingsError(
            "vllm_mode='server' needs a vllm_server_base_url, or vllm_server_gpus of at least 1 to start one"
        )
    model = resolve_model(plan.model)
    for_server, for_training = shared_out(plan.server_gpus, plan.num_processes)
    settings = DEFAULTS | plan.settings  # what training would refuse is refused before a server loads
    context = check_run(model, settings, plan.options, plan.num_processes, plan.held_out_tasks)
    check_free_memory(plan.settings, visible_gpus(",".join(for_server)), SHARE_OF_SERVER)
    share = plan.settings.get("vllm_gpu_memory_utilization", SHARE_OF_SERVER)
    log = Path(plan.output) / "vllm_server.log"
    cache = plan.options.vllm_kv_cache_dtype
    with generation_server(model, for_server, context, log, share, cache) as address:
        plan = replace(plan, settings=plan.settings | {"vllm_server_base_url": address})
        return _train_in_processes(plan, {"CUDA_VISIBLE_DEVICES": ",".join(for_training)})


def train_here(plan: GrpoPlan) -> TrainingReport:
    """Carry the plan out in this process."""
    model = resolve_model(plan.model)
    subject = subject_of(plan.subject, plan.subject_options)
    with Executor(workers_of(plan), subject.limits(plan.memory_mb)) as executor:
        return train_grpo(
            model,
            plan.tasks,
            subject.prompt_format(plan),
            executor,
            Path(plan.output),
            adapter=resolve_adapter(plan.adapter, model),
            settings=plan.settings,
            lora=plan.lora,
            options=plan.options,
            held_out_tasks=plan.held_out_tasks,
            seed=plan.seed,
            subject=subject,
        )


def workers_of(plan: GrpoPlan) -> int | None:
    """Programs that one of the plan's processes runs at the same time: its share of the workers, or of the
    processors that this process may use. None: all of them."""
    if plan.num_processes == 1:
        return plan.workers
    return max(1, (plan.workers or usable_processors()) // plan.num_processes)


def _train_in_processes(plan: GrpoPlan, environment: dict | None = None) -> TrainingReport:
    """Start the processes, and others after each rollback that they cannot go on from; their report."""
    seconds = 0.0
    while True:
        values = _one_launch(plan, environment)
        seconds += values["seconds"]
        if values["status"] != ROLLED_BACK:
            return _report(plan, values | {"seconds": seconds})
        plan = replace(plan, options=replace(plan.options, resume="auto"))


def _one_launch(plan: GrpoPlan, environment: dict | None) -> dict:
    """What the first process of a launch left."""
    path = plan.write()
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
            gradient_accumulation_steps=plan.settings.get("gradient_accumulation_steps", 1),
            environment=vllm_environment() | (environment or {}),
            pids=path.parent,
        )
    except LaunchError:
        if not report.is_file():
            raise
    if not report.is_file():
        raise LaunchError("the training processes ended without a report")
    values = json.loads(report.read_text())
    if "error" in values:
        raise SettingsError(values["error"])
    if interrupted and values["status"] == ROLLED_BACK:  # too late for the processes to say so
        values["status"] = "preempted"
    return values


def _report(plan: GrpoPlan, values: dict) -> TrainingReport:
    import pandas as pd

    output = Path(plan.output)
    config = pd.DataFrame(values.pop("config"))
    pages = [output / name for name in values.pop("pages")]
    history = read_metrics(output / "metrics.jsonl")
    return TrainingReport(output / "adapter", history=history, pages=pages, config=config, **values)


def main(path: str) -> None:
    """Carry out a written plan and leave `report.json` beside it."""
    plan = GrpoPlan.read(Path(path))
    rank = int(os.environ.get("RANK", "0"))
    folder = Path(path).parent
    announce(folder, rank)
    if plan.options.trainer == "unsloth":
        import unsloth  # noqa: F401  before transformers, which it patches
    _take_gpu()
    try:
        report = train_here(plan)
    except ValueError as error:
        _leave(folder, rank, {"error": str(error)})  # the first to fail; the launcher then ends the others
        raise
    if rank == 0:
        values = {
            "steps": report.steps,
            "seconds": report.seconds,
            "too_long": report.too_long,
            "status": report.status,
            "rollbacks": report.rollbacks,
            "best": report.best,
            "adapter_moved": report.adapter_moved,
            "trained": report.trained,
            "notes": report.notes,
            "pages": [page.name for page in report.pages],
            "config": report.config.to_dict("list"),
        }
        _leave(folder, rank, values)


def _take_gpu() -> None:
    """Of several processes each makes its own GPU the current one before it loads anything: transformers puts
    a base in four bits on the current one, and accelerate refuses to train what lies on another's."""
    import torch

    if "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def _leave(folder: Path, rank: int, values: dict) -> None:
    partial = folder / f"report.{rank}.partial"
    partial.write_text(json.dumps(values))
    partial.replace(folder / "report.json")


if __name__ == "__main__":
    os.environ |= vllm_environment()
    main(sys.argv[1])
