"""The plan of a fine-tuning, and what cannot be carried out of it.

plan = SftPlan.of(run.parameters)
refuse(problems(plan, run.path))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from arcnb.arc.encodings import encoding_option
from arcnb.errors import ArcnbError
from arcnb.machine.gpus import visible_gpus
from arcnb.machine.reading import named_errors, read_object
from arcnb.models.lora.compatibility import (
    adapter_rank,
    adapter_settings,
    check_starting,
    check_targets,
    weights_digest,
)
from arcnb.models.lora.options import Lora
from arcnb.models.memory.fitting import weight_bytes
from arcnb.models.memory.shape import Shape, shape_of
from arcnb.models.memory.training import Layout, check_fit, estimate, memory_of_a_gpu
from arcnb.models.prompts.conversation_files import conversation_problems
from arcnb.models.prompts.format import prompt_format
from arcnb.models.prompts.rendering import template_digest
from arcnb.models.registry import name_problems, resolve_adapter, resolve_model
from arcnb.models.sampling.backends import LOCAL_BACKENDS
from arcnb.models.sft.row_stream import RowPlan
from arcnb.models.sft.rows import LEARNT, check_max_length
from arcnb.models.training.checkpoints import checkpoint_to_resume, refuse_differences
from arcnb.models.training.log import log_problem
from arcnb.models.training.processes import parallel_problem
from arcnb.plans import Library, Plan, Settings, branch, library, option, refusals
from arcnb.values import COUNT, NOT_NEGATIVE, POSITIVE, SEED, KeysOf

if TYPE_CHECKING:
    import pandas as pd

PLAN = "plan.json"  # beside the checkpoints: the settings that they are of

RESERVED = frozenset((
    "output_dir", "run_name", "project", "seed", "bf16", "fp16", "use_cpu", "disable_tqdm", "max_length",
    "packing", "eval_packing", "packing_strategy", "padding_free", "pad_to_multiple_of", "truncation_mode",
    "completion_only_loss", "assistant_only_loss", "dataset_text_field", "dataset_kwargs", "dataset_num_proc",
    "eos_token", "pad_token", "chat_template_path", "model_init_kwargs", "trust_remote_code",
    "accelerator_config", "ddp_find_unused_parameters", "eval_strategy", "save_strategy",
    "enable_jit_checkpoint", "resume_from_checkpoint", "logging_nan_inf_filter", "logging_strategy",
    "save_only_model",  # a second start would find nothing to go on from, and undo a finished training
))  # fmt: skip
SFT_CONFIG = Library(
    (
        "transformers/training_args.py:TrainingArguments",
        "trl/trainer/base_config.py:_BaseConfig",
        "trl/trainer/sft_config.py:SFTConfig",
    ),
    defaults={
        "max_steps": 4,
        "num_train_epochs": 1.0,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.03,
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
        "gradient_checkpointing": False,
        "train_sampling_strategy": "group_by_length",
        "save_steps": 100,
        "eval_steps": 100,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": "none",
    },
    reserved=RESERVED,
    within={
        **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps"), COUNT),
        **dict.fromkeys(("logging_steps", "save_steps", "eval_steps", "save_total_limit"), COUNT),
        **dict.fromkeys(("warmup_steps", "max_grad_norm", "weight_decay"), NOT_NEGATIVE),
        "learning_rate": POSITIVE,
        "lr_scheduler_type": KeysOf("arcnb.machine.library_source:schedules"),
        "loss_type": ("nll", "dft", "chunked_nll"),
        "optim": KeysOf("arcnb.machine.library_source:optimizers"),
    },
    free=frozenset({"logging_steps", "report_to", "save_steps", "save_total_limit"}),
)

# They save memory that the estimate counts, so nothing is refused with them.
SAVING = ("activation_offloading", "auto_find_batch_size", "deepspeed", "fsdp", "optim", "use_liger_kernel")
REMEDY = (
    "lower per_device_train_batch_size and raise gradient_accumulation_steps, set "
    "gradient_checkpointing=True, or lower max_length"
)


@dataclass(frozen=True)
class SftLora(Lora):
    """With what fine-tuning alone can do."""

    use_dora: bool = option(False, "weight-decomposed LoRA")

    @property
    def config(self) -> dict:
        return super().config | {"use_dora": self.use_dora}


@dataclass(frozen=True)
class SftPlan(Plan):
    """What notebook 02 is asked to do."""

    checks: ClassVar[str] = "arcnb.models.sft.plan:plan_problems"

    tasks: str = option(
        "dsl*40",
        "tasks with programs: a tasks.parquet, or a recipe such as rearc*1000 + dsl*500 (numbers are shares)",
    )
    fresh: bool = option(
        True,
        "sources that never end go on making new tasks; False makes so many once and goes round them",
    )
    sft_conversations: str = option(
        "", "sft.parquet of notebook 04: learn its last answers, whole turns before them, and not the tasks"
    )
    train_on_held_out: bool = option(
        False, "learn reserved tasks and the evaluation sets, too, which are left out otherwise"
    )
    eval_tasks: str = option(
        "", 'eval tasks with programs, for the evaluation loss, left out of training: a task set; "" for none'
    )
    augment_programs: bool = option(
        False, "turn and recolor RE-ARC tasks, rewriting the program; another way each time round"
    )
    max_cells: int = option(4500, "all grids of a RE-ARC task together", "cells", within=COUNT)
    model: str = option("default", "model to train: default, a folder or a hub id")
    adapter: str = option("", 'LoRA to go on training; "" starts a fresh one')
    full: bool = option(False, "train all weights instead of a LoRA")
    lora: SftLora = branch(SftLora)
    template: str = option("arc_code", "prompt template: a name or a path to a Jinja file")
    encoding: str = encoding_option()
    max_length: int = option(
        2048, "longest row (prompt and program); longer ones are counted and left out", "tokens"
    )
    packing: bool = option(False, "several short rows in one of max_length, each blind to the others")
    block_rows: int = option(64, "rows that are shuffled (and packed) together", within=COUNT)
    num_processes: int = option(
        1, "processes that train together, one a GPU (accelerate launch)", within=COUNT
    )
    max_seconds: float = option(0.0, "wall time after which training ends; 0: no limit", "s", free=True)
    resume: str = option(
        "auto",
        "auto: go on where this run folder stands; never; or a run or checkpoint folder",
        free=True,
    )
    accept_other_settings: bool = option(False, "resume from a checkpoint of other settings", free=True)
    n_shown: int = option(4, "tasks to sample programs for at the end; 0: none", free=True)
    backend: str = option(
        "auto",
        "engine that samples the programs shown (n_shown): auto, vllm or transformers",
        free=True,
        within=LOCAL_BACKENDS,
    )
    gpu_memory_gib: float = option(
        0.0, "memory of a GPU, for the estimate before a start; 0: of those here, or 80", "GiB", free=True
    )
    workers: int = option(2, "processes that make rows while the training runs", free=True, within=COUNT)
    seed: int = option(0, "rows, order and initial weights derive from it", within=SEED)
    trl: Settings = library(SFT_CONFIG)

    @property
    def rows_a_step(self) -> int:
        batch = self.trl["per_device_train_batch_size"] * self.trl["gradient_accumulation_steps"]
        return batch * self.num_processes

    def said_of_reserved(self, n_left_out: int) -> str:
        """What the page says of tasks left out; "" where none was met."""
        kinds = {"reserved": not self.train_on_held_out, "eval": bool(self.eval_tasks)}
        named = " and ".join(f"{kind} tasks" for kind, asked in kinds.items() if asked)
        said = [f"{named.capitalize()} left out: {n_left_out:,}."] if n_left_out else []
        if self.train_on_held_out:
            said.append("train_on_held_out: reserved tasks were learnt, too; results on them are memory.")
        return " ".join(said)

    def steps(self, n_rows: int) -> int:
        """Optimizer steps of the training: max_steps, or so many rounds of n_rows rows."""
        if self.trl["max_steps"] > 0:
            return self.trl["max_steps"]
        return max(1, round(self.trl["num_train_epochs"] * n_rows / self.rows_a_step))

    def identity(self) -> dict[str, Any]:
        """The options that a resumed run must share, and what is behind the names of model, template and
        conversations."""
        digests = {"model_sha256": weights_digest(resolve_model(self.model).folder)}
        if self.sft_conversations:
            path = Path(self.sft_conversations).expanduser()
            with named_errors(path), path.open("rb") as file:
                digests["conversations_sha256"] = file_digest(file, "sha256").hexdigest()
        else:
            digests["template_sha256"] = template_digest(self.template)
        return super().identity() | digests

    @property
    def layout(self) -> Layout:
        """What a GPU holds, with rows of max_length. The head is TRL's, which makes no whole logits unless
        labels are smoothed."""
        model = resolve_model(self.model)
        rank, trained = self.lora.r, self.lora.target_modules
        if adapter := resolve_adapter(self.adapter, model):
            rank, trained = adapter_rank(adapter), adapter_settings(adapter).get("target_modules")
        quantized = read_object(model.folder / "config.json").get("quantization_config")
        return Layout(
            processes=self.num_processes,
            zero3=False,
            rank=0 if self.full else rank,
            batch=self.trl["per_device_train_batch_size"],
            prompt=0,
            completion=self.max_length,
            context=self.max_length,
            checkpointing=self.trl["gradient_checkpointing"],
            trained=tuple(trained) if isinstance(trained, list) and not self.full else None,
            fused_head=not self.trl.get("label_smoothing_factor"),
            packed=self.packing,
            quantized=weight_bytes(model.folder) if quantized else None,
        )

    def needed_memory(self) -> pd.DataFrame:
        """The estimate of a GPU's memory as a table, GiB; empty where the model's sizes are not known."""
        import pandas as pd

        shape, room = _shape(self), memory_of_a_gpu(self.gpu_memory_gib)
        return pd.DataFrame() if shape is None else estimate(shape, self.layout, room)

    def row_plan(self, steps: int) -> RowPlan:
        """What becomes of the rows that so many steps take."""
        n_rows = steps * self.rows_a_step
        given = (self.max_length, self.packing, self.block_rows, self.rows_a_step, self.workers)
        return RowPlan(n_rows, *given)


def problems(plan: SftPlan, output: Path | None = None) -> list[str]:
    """Every reason why the plan cannot be carried out, a sentence each. No weights are loaded, nothing is
    made. What tasks a recipe names is not looked at here.

    output: the run folder, in which the training may have begun.
    """
    return list(dict.fromkeys([*plan_problems(plan), *_machine(plan), *_model(plan, output)]))


def plan_problems(plan: SftPlan) -> list[str]:
    """Those of them that the plan itself and the names in it tell, without this machine and a tokenizer."""
    return [*_numbers(plan), *_together(plan), *_names(plan)]


def _numbers(plan: SftPlan) -> Iterator[str]:
    if plan.trl["max_steps"] < 1 and plan.trl["num_train_epochs"] <= 0:
        epochs = plan.trl["num_train_epochs"]
        yield f"num_train_epochs must be positive where max_steps is not, it is {epochs}"


def _machine(plan: SftPlan) -> Iterator[str]:
    for problem in (log_problem(plan.trl["report_to"]), parallel_problem(plan.num_processes, "ddp")):
        if problem:
            yield problem


def _together(plan: SftPlan) -> Iterator[str]:
    if plan.packing and not plan.sft_conversations and plan.trl["max_steps"] < 1:
        yield "how many packed rows a round gives is not known beforehand: packing needs max_steps"
    if plan.full and plan.adapter:
        yield f"full=True trains all weights, so adapter={plan.adapter!r} cannot be trained on"


def _names(plan: SftPlan) -> Iterator[str]:
    yield from refusals(prompt_format, plan.template, plan.encoding)
    yield from name_problems(plan.model, [plan.adapter])
    if asked := plan.sft_conversations:
        yield from conversation_problems("sft_conversations", asked, LEARNT)


def _model(plan: SftPlan, output: Path | None) -> Iterator[str]:
    """What only the model itself tells, which may have to be fetched."""
    yield from (found := refusals(resolve_model, plan.model))
    if found:
        return
    model = resolve_model(plan.model)
    yield from (adapter_problems := refusals(resolve_adapter, plan.adapter, model))
    adapter = None if adapter_problems else resolve_adapter(plan.adapter, model)
    if not (plan.full or plan.adapter):
        yield from refusals(check_targets, plan.lora.target_modules, model.folder, model.name)
    elif adapter:
        yield from refusals(check_starting, adapter, model.folder)
    if not adapter_problems:
        yield from refusals(_check_memory, plan)
    if not plan.sft_conversations and not refusals(prompt_format, plan.template, plan.encoding):
        yield from refusals(
            check_max_length, model, plan.max_length, prompt_format(plan.template, plan.encoding)
        )
    if output is not None:
        yield from refusals(resumed_from, plan, output, lambda sentence: None)


def _check_memory(plan: SftPlan) -> None:
    """ArcnbError where the training cannot fit the GPUs here, or those that the plan names."""
    asked, shape = plan.gpu_memory_gib, _shape(plan)
    if shape is not None and (asked or visible_gpus()) and not any(map(plan.trl.get, SAVING)):
        check_fit(plan.model, shape, plan.layout, memory_of_a_gpu(asked), REMEDY)


def _shape(plan: SftPlan) -> Shape | None:
    try:
        return shape_of(plan.model, resolve_model(plan.model).folder)
    except ArcnbError:
        return None


def resumed_from(plan: SftPlan, output: Path, announce: Callable[[str], Any] = print) -> Path | None:
    """The checkpoint that the training goes on from, if any. ArcnbError where `resume` leads to no
    checkpoint, or to a checkpoint of other settings, which are not accepted."""
    checkpoint = checkpoint_to_resume(plan.resume, output / "checkpoints", announce)
    if checkpoint is None:
        return None
    kept = checkpoint.parent / PLAN
    before = read_object(kept) if kept.is_file() else None
    refuse_differences(checkpoint, before, plan.identity(), plan.accept_other_settings, announce)
    return checkpoint
