"""Supervised fine-tuning: the model learns to answer a task's prompt with the task's program.

    with row_stream(tasks, builder, run.path / "rows", plan) as rows:
        report = train_sft(model, rows, run.path, settings={"max_steps": 500})

With num_processes the same training runs in so many processes, one a GPU, started by `accelerate launch`
(`python -m arcnb.models.sft FOLDER` is what each of them runs).
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from arcnb.models.adapter_casting import input_casting
from arcnb.models.checkpoints import newest_complete
from arcnb.models.launching import launch, parallel_problem
from arcnb.models.registry import ModelPath, load_tokenizer, resolve_model
from arcnb.models.row_stream import RowStream
from arcnb.models.sft_rows import SftError, SftRows, collator
from arcnb.models.training_log import (
    log_problem,
    logged_as,
    metrics_log,
    read_metrics,
    reporting,
    stop_printing,
)

JOB = "job"  # folder, under output, of what several processes read
REPORT = "training.json"

DEFAULTS = {
    "per_device_train_batch_size": 4,
    "learning_rate": 5e-4,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.03,
    "max_grad_norm": 1.0,
    "weight_decay": 0.0,
    "logging_steps": 10,
    "save_total_limit": 2,
    "train_sampling_strategy": "group_by_length",
    "gradient_checkpointing": False,
    "report_to": "none",
}
LORA_DEFAULTS = {
    "r": 32,
    "lora_alpha": 64,
    "use_rslora": True,
    "use_dora": False,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}


@dataclass
class SftReport:
    """adapter: folder of the trained LoRA, or of the whole model without LoRA."""

    adapter: Path
    steps: int
    seconds: float
    history: list[dict]

    def write(self, output: Path) -> None:
        """Leave steps and seconds under output for `read`."""
        (output / REPORT).write_text(json.dumps({"steps": self.steps, "seconds": self.seconds}))

    @classmethod
    def read(cls, output: Path) -> SftReport:
        """The report of a training that ran in other processes."""
        saved = json.loads((output / REPORT).read_text())
        return cls(output / "adapter", **saved, history=read_metrics(output / "metrics.jsonl"))

    def outcome(self) -> dict:
        """Plain values for the run's manifest."""
        last = {
            name: [row[name] for row in self.history if name in row][-1:] for name in ("loss", "eval_loss")
        }
        losses = {name: values[0] for name, values in last.items() if values}
        return {"steps": self.steps, "seconds": self.seconds, **losses}


def number_of_steps(max_steps: int, epochs: float, n_rows: int, rows_a_step: int, packing: bool) -> int:
    """Optimizer steps of a training: max_steps, or, where that is -1, so many rounds of n_rows rows.

    SftError where a step has no rows, or the number of steps cannot be known.
    """
    if rows_a_step < 1:
        raise SftError(
            "batch_size, gradient_accumulation_steps and num_processes must be at least 1: "
            f"their product is {rows_a_step} rows a step"
        )
    if max_steps > 0:
        return max_steps
    if packing:
        raise SftError("how many packed rows a round gives is not known beforehand: packing needs max_steps")
    if epochs <= 0:
        raise SftError(f"epochs must be positive where max_steps is not, it is {epochs}")
    return max(1, round(epochs * n_rows / rows_a_step))


def check_training(lora: dict | None, full: bool, settings: dict | None, num_processes: int = 1) -> None:
    """SftError for what `train_sft` could not train with, before rows are made and a model is loaded."""
    from transformers import SchedulerType

    lora = LORA_DEFAULTS | (lora or {})
    if not full and lora["r"] < 1:
        raise SftError(f"lora rank must be at least 1, not {lora['r']}")
    if not full and lora["lora_alpha"] <= 0:
        raise SftError(f"lora alpha must be positive, not {lora['lora_alpha']}: it scales what the lora adds")
    settings = DEFAULTS | (settings or {})
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "logging_steps", "eval_steps"):
        if settings.get(name, 1) < 1:
            raise SftError(f"{name} must be at least 1, not {settings[name]}")
    if settings["learning_rate"] <= 0:
        raise SftError(f"learning_rate must be positive, not {settings['learning_rate']}")
    if settings["warmup_steps"] < 0:
        raise SftError(f"warmup must not be negative, it is {settings['warmup_steps']}")
    schedules = [kind.value for kind in SchedulerType]
    if settings["lr_scheduler_type"] not in schedules:
        raise SftError(
            f"schedule {settings['lr_scheduler_type']!r} does not exist; there are {', '.join(schedules)}"
        )
    problem = log_problem(settings["report_to"]) or parallel_problem(num_processes, "ddp")
    if problem:
        raise SftError(problem)


def train_sft(
    model: ModelPath,
    dataset,
    output: Path,
    *,
    eval_dataset=None,
    adapter: Path | None = None,
    lora: dict | None = None,
    full: bool = False,
    settings: dict | None = None,
    seed: int = 0,
    resume: bool = False,
    max_seconds: float | None = None,
    stop_after: int | None = None,
    num_processes: int = 1,
) -> SftReport:
    """Train and leave `adapter/`, `checkpoints/` and `metrics.jsonl` under output.

    dataset: a RowStream, SftRows, or a dataset of theirs, packed or not. A stream ends with max_steps.
    eval_dataset: of `sft_rows`. adapter: go on training this LoRA. full: train
    all weights instead. settings: SFTConfig's names; batch sizes are a process's. resume: go on from the
    newest complete checkpoint under output, if there is one, with the same order of rows. max_seconds,
    stop_after: stop early, after so much wall time or so many steps of the schedule. SftError names what is
    wrong, or, after a full disk, the checkpoint to resume from.
    """
    check_training(lora, full, settings, num_processes)
    lora = LORA_DEFAULTS | (lora or {})
    if isinstance(dataset, SftRows):
        dataset = dataset.dataset
    if isinstance(dataset, RowStream) and (settings or {}).get("max_steps", -1) < 1:
        raise SftError("a stream of rows has no end: max_steps says how long to train")
    options = {
        "adapter": adapter and str(adapter),
        "lora": lora,
        "full": full,
        "settings": settings or {},
        "seed": seed,
        "resume": resume,
        "max_seconds": max_seconds,
        "stop_after": stop_after,
    }
    if num_processes > 1:
        _save_job(output / JOB, model, dataset, eval_dataset, options)
        launch("arcnb.models.sft", [str(output)], num_processes, output / "processes.log")
        return SftReport.read(output)
    return _train(model, dataset, output, eval_dataset, **options)


def _save_job(folder: Path, model: ModelPath, dataset, eval_dataset, options: dict) -> None:
    """Everything a process needs to train, on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = str(dataset.folder) if isinstance(dataset, RowStream) else None
    if stream is None:
        dataset.save_to_disk(folder / "rows")
    if eval_dataset is not None:
        eval_dataset.save_to_disk(folder / "eval_rows")
    (folder / "options.json").write_text(
        json.dumps({"model": str(model.folder), "stream": stream, **options})
    )


def _run_job(output: Path) -> None:
    """One process of a training that several share."""
    from datasets import load_from_disk

    folder = output / JOB
    options = json.loads((folder / "options.json").read_text())
    evaluated = load_from_disk(folder / "eval_rows") if (folder / "eval_rows").exists() else None
    model, stream = resolve_model(options.pop("model")), options.pop("stream")
    dataset = RowStream(Path(stream)) if stream else load_from_disk(folder / "rows")
    _train(model, dataset, output, evaluated, **options)


def _train(
    model: ModelPath,
    dataset,
    output: Path,
    eval_dataset,
    *,
    adapter: str | None,
    lora: dict,
    full: bool,
    settings: dict,
    seed: int,
    resume: bool,
    max_seconds: float | None,
    stop_after: int | None,
) -> SftReport:
    import torch
    from peft import LoraConfig, PeftModel
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from trl import SFTConfig, SFTTrainer

    tokenizer = load_tokenizer(model)
    on_gpu = torch.cuda.is_available()
    settings = DEFAULTS | settings
    if isinstance(dataset, RowStream):
        dataset = dataset.dataset()
        # Every process reads all rows and takes its own; they come shuffled, and grouped by length.
        settings |= {
            "accelerator_config": {"dispatch_batches": False},
            "train_sampling_strategy": "sequential",
        }
    config = SFTConfig(
        output_dir=str(output / "checkpoints"),
        **logged_as(output),
        seed=seed,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        max_length=None,  # rows were measured; nothing may be cut
        ddp_find_unused_parameters=False,  # every trained weight is used; looking for others takes time
        disable_tqdm=True,
        **settings,
    )
    policy = AutoModelForCausalLM.from_pretrained(
        model.path, dtype=torch.bfloat16 if on_gpu and not full else torch.float32
    )
    peft_config = None
    if adapter:
        policy = PeftModel.from_pretrained(policy, str(adapter), is_trainable=True)
    elif not full:
        peft_config = LoraConfig(task_type="CAUSAL_LM", **lora)
    callbacks = [metrics_log(output / "metrics.jsonl", without=["num_tokens"])]  # TRL counts one row a batch
    if max_seconds or stop_after:
        callbacks.append(_early_stop(max_seconds or float("inf"), stop_after or float("inf")))
    trainer = SFTTrainer(
        model=policy,
        args=config,
        train_dataset=dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        data_collator=collator(tokenizer.pad_token_id),
        peft_config=peft_config,
        callbacks=callbacks,
    )
    stop_printing(trainer)
    started = time.monotonic()
    checkpoint = newest_complete(output / "checkpoints") if resume else None
    try:
        with (
            input_casting(trainer.model, enabled=not on_gpu),  # on a GPU all of it is under autocast
            reporting(output, settings["report_to"]),
        ):
            trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        trainer.save_model(str(output / "adapter"))
    except (OSError, SafetensorError) as error:  # a full disk, above all
        kept = newest_complete(output / "checkpoints")
        raise SftError(
            f"training under {output} ended at step {trainer.state.global_step}: {error}; "
            + (f"{kept.name} is complete, resume from it" if kept else "there is no complete checkpoint")
        ) from error
    trainer.accelerator.wait_for_everyone()  # the first process alone writes the log that all of them read
    seconds = time.monotonic() - started
    report = SftReport(
        output / "adapter", trainer.state.global_step, seconds, read_metrics(output / "metrics.jsonl")
    )
    if trainer.is_world_process_zero():
        report.write(output)
    return report


def _early_stop(seconds: float, steps: float):
    from accelerate.utils import broadcast_object_list
    from transformers import TrainerCallback

    class EarlyStop(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.end = time.monotonic() + seconds

        def on_step_end(self, args, state, control, **kwargs):
            # The first process decides for all: one that stopped alone would leave the others waiting.
            stop = [time.monotonic() > self.end or state.global_step >= steps]
            if args.world_size > 1:
                broadcast_object_list(stop)
            if stop[0]:
                control.should_save = control.should_training_stop = True

    return EarlyStop()


if __name__ == "__main__":
    _run_job(Path(sys.argv[1]))
