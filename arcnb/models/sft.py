"""Supervised fine-tuning: the model learns to answer a task's prompt with the task's program.

    rows = sft_rows(tasks, model, prompt_format, n_rows=2000, seed=0, max_tokens=4096)
    report = train_sft(model, rows.dataset, run.path, settings={"max_steps": 500})

Row i shows task i mod n through a view drawn from (seed, i): order of the train pairs and shown test input.
Augmentations that change the rule belong to data preparation, where the program is rewritten with them.
The loss counts completion tokens only. Rows that exceed max_tokens are left out and counted, never cut.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from arcnb.arc.tasks import Task
from arcnb.arc.views import View
from arcnb.models.prompt_format import PromptFormat
from arcnb.models.registry import ModelPath, load_tokenizer
from arcnb.models.training_log import metrics_log, read_metrics, stop_printing
from arcnb.progress import progress

IGNORED = -100  # label of a token that does not count in the loss

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
    "report_to": "none",
}
LORA_DEFAULTS = {
    "r": 32,
    "lora_alpha": 64,
    "use_rslora": True,
    "use_dora": False,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}


@cache
def _tokenizer(model: ModelPath):
    return load_tokenizer(model)


class SftError(ValueError):
    """Fine-tuning that cannot start; the message names the parameter or the tasks."""


@dataclass
class SftRows:
    """dataset: columns input_ids, labels, length. too_long: task id -> tokens, of the rows left out."""

    dataset: object
    too_long: dict[str, int] = field(default_factory=dict)
    n_without_program: int = 0

    def __str__(self) -> str:
        return (
            f"{len(self.dataset):,} rows of {sum(self.dataset['length']):,} tokens; left out: rows of "
            f"{len(self.too_long)} tasks as too long, {self.n_without_program} tasks without a program"
        )


@dataclass(frozen=True)
class RowBuilder:
    """Makes row i. A plain picklable object, so that worker processes can be forked or spawned."""

    tasks: Sequence[Task]
    model: ModelPath
    prompt_format: PromptFormat
    seed: int

    def __call__(self, indices: Sequence[int]) -> list[tuple[str, np.ndarray, int]]:
        """(task id, int32 token ids, number of prompt tokens) of the rows with these indices."""
        tokenizer = _tokenizer(self.model)
        rows = []
        for index in indices:
            task = self.tasks[index % len(self.tasks)]
            view = View.sample(task, self.seed, "sft", index, augment="none")
            prompt = self.prompt_format.prompt_ids(tokenizer, view.apply(task))
            answer = self.prompt_format.completion_ids(tokenizer, task.program)
            rows.append((task.task_id, np.array(prompt + answer, dtype=np.int32), len(prompt)))
        return rows


def sft_rows(
    tasks: Sequence[Task],
    model: ModelPath,
    prompt_format: PromptFormat,
    *,
    n_rows: int,
    seed: int,
    max_tokens: int,
    workers: int = 1,
    start_method: str | None = None,
) -> SftRows:
    """Tokenised rows 0..n_rows-1 of the tasks that have a program. SftError when none is left."""
    import pyarrow as pa
    from datasets import Dataset

    with_program = [task for task in tasks if task.program]
    if not with_program:
        raise SftError(f"none of the {len(tasks)} tasks has a program to learn from")
    builder = RowBuilder(with_program, model, prompt_format, seed)
    chunks = [range(start, min(start + 256, n_rows)) for start in range(0, n_rows, 256)]
    columns: dict[str, list] = {"input_ids": [], "labels": [], "length": []}
    too_long: Counter = Counter()
    for rows in progress(_mapped(builder, chunks, workers, start_method), "tokenising", len(chunks), "chunk"):
        for task_id, ids, n_prompt in rows:
            if len(ids) > max_tokens:
                too_long[task_id] = max(too_long[task_id], len(ids))
                continue
            labels = ids.copy()
            labels[:n_prompt] = IGNORED
            columns["input_ids"].append(ids)
            columns["labels"].append(labels)
            columns["length"].append(len(ids))
    if not columns["length"]:
        raise SftError(
            f"every row exceeds max_tokens={max_tokens}; the shortest has {min(too_long.values())}"
        )
    return SftRows(Dataset(pa.table(columns)), dict(too_long), len(tasks) - len(with_program))


def _mapped(builder: RowBuilder, chunks, workers: int, start_method: str | None):
    if workers <= 1:
        yield from map(builder, chunks)
        return
    # The builder holds all tasks: it goes to each process once, not along with every chunk.
    with ProcessPoolExecutor(
        workers, mp_context=get_context(start_method), initializer=_set_builder, initargs=(builder,)
    ) as pool:
        yield from pool.map(_build, chunks)


_builder: RowBuilder | None = None


def _set_builder(builder: RowBuilder) -> None:
    global _builder
    _builder = builder


def _build(indices: Sequence[int]) -> list[tuple[str, np.ndarray, int]]:
    return _builder(indices)


@dataclass
class SftReport:
    """adapter: folder of the trained LoRA, or of the whole model without LoRA."""

    adapter: Path
    steps: int
    seconds: float
    history: list[dict]

    def outcome(self) -> dict:
        """Plain values for the run's manifest."""
        last = {
            name: [row[name] for row in self.history if name in row][-1:] for name in ("loss", "eval_loss")
        }
        losses = {name: values[0] for name, values in last.items() if values}
        return {"steps": self.steps, "seconds": self.seconds, **losses}


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
) -> SftReport:
    """Train and leave `adapter/`, `checkpoints/` and `metrics.jsonl` under output.

    adapter: go on training this LoRA. full: train all weights instead. settings: SFTConfig's names.
    max_seconds, stop_after: stop early, after so much wall time or so many steps of the schedule.
    """
    lora = LORA_DEFAULTS | (lora or {})
    if not full and lora["r"] < 1:
        raise SftError(f"lora rank must be at least 1, not {lora['r']}")
    import torch
    from peft import LoraConfig, PeftModel
    from transformers import AutoModelForCausalLM
    from trl import SFTConfig, SFTTrainer

    tokenizer = load_tokenizer(model)
    on_gpu = torch.cuda.is_available()
    config = SFTConfig(
        output_dir=str(output / "checkpoints"),
        seed=seed,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        max_length=None,  # rows were measured; nothing may be cut
        gradient_checkpointing=False,
        disable_tqdm=True,
        **(DEFAULTS | (settings or {})),
    )
    policy = AutoModelForCausalLM.from_pretrained(
        model.path, dtype=torch.bfloat16 if on_gpu and not full else torch.float32
    )
    peft_config = None
    if adapter:
        policy = PeftModel.from_pretrained(policy, str(adapter), is_trainable=True)
    elif not full:
        peft_config = LoraConfig(task_type="CAUSAL_LM", **lora)
    callbacks = [metrics_log(output / "metrics.jsonl")]
    if max_seconds or stop_after:
        callbacks.append(_early_stop(max_seconds or float("inf"), stop_after or float("inf")))
    trainer = SFTTrainer(
        model=policy,
        args=config,
        train_dataset=dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        data_collator=_collator(tokenizer.pad_token_id),
        peft_config=peft_config,
        callbacks=callbacks,
    )
    stop_printing(trainer)
    started = time.monotonic()
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(str(output / "adapter"))
    history = read_metrics(output / "metrics.jsonl")
    return SftReport(output / "adapter", trainer.state.global_step, time.monotonic() - started, history)


def _collator(pad_token_id: int):
    """Right padding without an attention mask.

    Under causal attention no real token sees the padding on its right and padding has no label, so the
    mask changes nothing but the kernel: without it, attention runs as plain causal flash attention.
    """
    import torch
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    collate = DataCollatorForLanguageModeling(pad_token_id=pad_token_id)

    def without_mask(examples):
        batch = collate([{name: row[name] for name in ("input_ids", "labels")} for row in examples])
        del batch["attention_mask"]
        rows, length = batch["input_ids"].shape
        batch["position_ids"] = torch.arange(length).repeat(rows, 1)  # TRL counts tokens by these
        return batch

    return without_mask


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
