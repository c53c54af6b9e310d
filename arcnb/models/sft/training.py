"""Supervised fine-tuning: the model learns to answer a task's prompt with the task's program.

    with row_stream(tasks, builder, run.path / "rows", rows_wanted) as rows:
        report = train_sft(plan, rows, run.path)

With num_processes the same training runs in so many processes, one a GPU, started by `accelerate launch`
(`python -m arcnb.models.sft.training FOLDER` is what each of them runs).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arcnb.arc.seeds import derive_seed
from arcnb.errors import ArcnbError
from arcnb.machine.files import write_whole
from arcnb.machine.imports import nothing_collected
from arcnb.machine.processes import leave
from arcnb.models.lora.precision import input_casting
from arcnb.models.registry import ModelPath, load_network, load_tokenizer, resolve_adapter, resolve_model
from arcnb.models.sft.packing_check import check_packing
from arcnb.models.sft.plan import PLAN, SftPlan, resumed_from
from arcnb.models.sft.row_stream import RowStream
from arcnb.models.sft.rows import SftRows, collator
from arcnb.models.sft.token_means import with_token_means
from arcnb.models.training.checkpoints import naming_what_is_whole, set_aside_log, step_of
from arcnb.models.training.log import (
    keep_asked_intervals,
    logged_as,
    metrics_log,
    read_metrics,
    reporting,
    steps_in,
    stop_printing,
)
from arcnb.models.training.optimizer import with_asked_optimizer
from arcnb.models.training.preemption import Stop, agreed_stop, can_listen, listen, saving_on_signals
from arcnb.models.training.processes import launch, write_pid
from arcnb.models.training.zero3 import release_recomputed_layers

LAUNCH = "launch"  # folder, under output, of what several processes read; job/ is a scheduler's
REPORT = "training.json"


@dataclass
class SftReport:
    """adapter: folder of the trained LoRA, or of the whole model without LoRA.

    status: "done", or "preempted": a signal came, and training again under the same output goes on. seconds:
    since this start, which was at step `resumed_at`.
    """

    adapter: Path
    steps: int
    seconds: float
    history: list[dict]
    status: str = "done"
    resumed_at: int = 0

    def write(self, output: Path) -> None:
        """Leave it under output for `read`."""
        saved = {name: getattr(self, name) for name in ("steps", "seconds", "status", "resumed_at")}
        write_whole(output / REPORT, json.dumps(saved))

    @classmethod
    def read(cls, output: Path) -> SftReport:
        """The report of a training that ran in other processes."""
        saved = json.loads((output / REPORT).read_text())
        return cls(output / "adapter", **saved, history=read_metrics(output / "metrics.jsonl"))

    @property
    def took(self) -> str:
        """Its steps and seconds, see `steps_in`."""
        return steps_in(self.steps, self.seconds, self.resumed_at)

    @property
    def headline(self) -> str:
        """How far it came and where the loss went, in one sentence."""
        losses = [row["loss"] for row in self.history if "loss" in row]
        lost = f": loss {losses[0]:.2f} at first, {losses[-1]:.2f} at the end" if losses else ""
        stopped = "" if self.status == "done" else f", {self.status}"
        return f"{self.took}{lost}{stopped}."

    def outcome(self) -> dict:
        """Plain values for the run's manifest."""
        last = {
            name: [row[name] for row in self.history if name in row][-1:] for name in ("loss", "eval_loss")
        }
        losses = {name: values[0] for name, values in last.items() if values}
        return {"training": self.status, "steps": self.steps, "seconds": self.seconds, **losses}


def train_sft(
    plan: SftPlan,
    rows,
    output: Path,
    *,
    eval_rows=None,
    steps: int = 0,
    callbacks: Sequence = (),
) -> SftReport:
    """Train and leave `adapter/`, `checkpoints/` and `metrics.jsonl` under output.

    rows: a RowStream, SftRows, or a dataset of theirs, packed or not. eval_rows: of `sft_rows`. steps: of the
    schedule; 0: as the plan says, which a stream needs max_steps for. callbacks: of transformers, where one
    process trains. SIGTERM and the first SIGINT save a checkpoint and end the training as "preempted".
    ArcnbError: after a full disk it names the checkpoint to resume from; `resume` leads to none, or to one of
    other settings. What else is wrong with a plan `problems` says, which is not asked here.
    """
    if isinstance(rows, SftRows):
        rows = rows.dataset
    if isinstance(rows, RowStream) and not steps and plan.trl["max_steps"] < 1:
        raise ArcnbError("a stream of rows has no end: max_steps says how long to train")
    steps = steps or plan.steps(0 if isinstance(rows, RowStream) else len(rows))
    model = resolve_model(plan.model)
    checkpoint = resumed_from(plan, output)
    _begin(plan, output, checkpoint, steps)
    if plan.num_processes > 1:
        _save_job(output / LAUNCH, plan, model, rows, eval_rows, steps, checkpoint)
        log, pids = output / "processes.log", output / LAUNCH
        launch("arcnb.models.sft.training", [str(output)], plan.num_processes, log, pids=pids)
        return SftReport.read(output)
    return _train(plan, model, rows, output, eval_rows, steps, checkpoint, callbacks)


def _begin(plan: SftPlan, output: Path, checkpoint: Path | None, steps: int) -> None:
    """Set aside what the run folder has of steps after the checkpoint; note the settings of what comes."""
    checkpoints = output / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    own = checkpoint is not None and checkpoint.resolve().is_relative_to(output.resolve())
    step = step_of(checkpoint) if own else -1
    stale = output / "predictions"  # of the model of an earlier try
    set_aside_log(output, step, [(stale, stale.name)] if stale.exists() and step < steps else [])
    (output / REPORT).unlink(missing_ok=True)
    (output / "metrics.jsonl").touch()
    write_whole(checkpoints / PLAN, json.dumps(plan.identity(), indent=1))


def _save_job(folder: Path, plan: SftPlan, model: ModelPath, rows, eval_rows, steps: int, checkpoint) -> None:
    """Everything a process needs to train, on disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stream = str(rows.folder) if isinstance(rows, RowStream) else None
    if stream is None:
        rows.save_to_disk(folder / "rows")
    if eval_rows is not None:
        eval_rows.save_to_disk(folder / "eval_rows")
    job = {"model": str(model.folder), "stream": stream, "steps": steps, "plan": plan.values()}
    job["checkpoint"] = str(checkpoint) if checkpoint else None
    write_whole(folder / "launch.json", json.dumps(job))


def main(output: Path) -> None:
    """One process of a training that several share."""
    sys.modules.setdefault("vllm", None)  # which TRL would import for nothing, a third of its own import
    with nothing_collected():
        from datasets import load_from_disk

    folder = output / LAUNCH
    write_pid(folder, int(os.environ.get("RANK", "0")))
    job = json.loads((folder / "launch.json").read_text())
    eval_rows = load_from_disk(folder / "eval_rows") if (folder / "eval_rows").exists() else None
    rows = RowStream(Path(job["stream"])) if job["stream"] else load_from_disk(folder / "rows")
    checkpoint = Path(job["checkpoint"]) if job["checkpoint"] else None
    model = resolve_model(job["model"])
    _train(SftPlan.of(job["plan"]), model, rows, output, eval_rows, job["steps"], checkpoint)


def _train(
    plan: SftPlan, model: ModelPath, rows, output: Path, eval_rows, steps: int, checkpoint, callbacks=()
) -> SftReport:
    started = time.monotonic()
    limit = _time_limit(plan.max_seconds)
    with saving_on_signals():
        trainer = _trainer(plan, model, rows, output, eval_rows, steps, [*callbacks, limit])
        listen(trainer, Stop())
        with naming_what_is_whole(output, trainer):
            with (
                input_casting(trainer.model, enabled=trainer.args.use_cpu),  # on a GPU all is under autocast
                reporting(output, plan.trl["report_to"]),
            ):
                if checkpoint and step_of(checkpoint) >= steps:  # it would train a step more
                    trainer._load_from_checkpoint(str(checkpoint))
                    trainer.state.global_step = step_of(checkpoint)
                else:
                    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
            trainer.save_model(str(output / "adapter"))
    trainer.accelerator.wait_for_everyone()  # the first process alone writes the log that all of them read
    report = SftReport(
        output / "adapter",
        trainer.state.global_step,
        time.monotonic() - started,
        read_metrics(output / "metrics.jsonl"),
        "done" if trainer.state.global_step >= steps or limit.reached else "preempted",
        step_of(checkpoint) if checkpoint else 0,
    )
    if trainer.is_world_process_zero():
        report.write(output)
    return report


def _trainer(plan: SftPlan, model: ModelPath, rows, output: Path, eval_rows, steps: int, callbacks: list):
    with nothing_collected():
        import torch
        from peft import LoraConfig, PeftModel
        from trl import SFTConfig, SFTTrainer

    tokenizer = load_tokenizer(model)
    on_gpu = torch.cuda.is_available()
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    settings = dict(plan.trl)
    if isinstance(rows, RowStream):
        rows = rows.dataset()
        # Every process reads all rows and takes its own; they come shuffled, and grouped by length.
        settings |= {
            "accelerator_config": {"dispatch_batches": False},
            "train_sampling_strategy": "sequential",
        }
    settings |= {"max_steps": steps, "eval_strategy": "no" if eval_rows is None else "steps"}
    config = SFTConfig(
        output_dir=str(output / "checkpoints"),
        **logged_as(output),
        seed=plan.seed,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        max_length=None,  # rows were measured; nothing may be cut
        ddp_find_unused_parameters=False,  # every trained weight is used; looking for others takes time
        disable_tqdm=True,
        logging_nan_inf_filter=False,  # it shows a loss that is no number as 0
        enable_jit_checkpoint=can_listen() and alone,
        **settings,
    )
    policy = load_network(model, dtype=torch.bfloat16 if on_gpu and not plan.full else torch.float32)
    peft_config = None
    if adapter := resolve_adapter(plan.adapter, model):
        policy = PeftModel.from_pretrained(policy, str(adapter), is_trainable=True)
    elif not plan.full:
        peft_config = LoraConfig(task_type="CAUSAL_LM", **plan.lora.config)
    if can_listen() and not alone:
        callbacks.append(agreed_stop())
    log = metrics_log(output / "metrics.jsonl", without=["num_tokens"])  # TRL counts one row a batch
    trainer = with_asked_optimizer(_in_known_orders(with_token_means(SFTTrainer)))(
        model=policy,
        args=config,
        train_dataset=rows,
        eval_dataset=eval_rows,
        processing_class=tokenizer,
        data_collator=collator(tokenizer.pad_token_id),
        peft_config=peft_config,
        callbacks=[log, *callbacks],
    )
    if plan.packing and trainer.is_deepspeed_enabled:  # where weights may lie in parts until it trains
        print("packing=True: with deepspeed it is not asked whether packed rows are blind to each other")
    elif plan.packing:
        check_packing(trainer.model, model.name)
    stop_printing(trainer)
    keep_asked_intervals(trainer)
    release_recomputed_layers(trainer)
    return trainer


def _in_known_orders(trainer_class: type) -> type:
    """A subclass whose rows, where they are grouped by length, come in an order of (seed, round): a training
    that is resumed in a later round would else draw another order, and skip rows of that."""
    import torch
    from torch.utils.data import Sampler
    from transformers.trainer_pt_utils import LengthGroupedSampler

    class Ordered(Sampler):
        def __init__(self, grouped: LengthGroupedSampler, seed: int):
            self.grouped, self.seed, self.epoch = grouped, seed, 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return len(self.grouped)

        def __iter__(self):
            seed = derive_seed(self.seed, "order of rows", self.epoch)
            self.grouped.generator = torch.Generator().manual_seed(seed)
            return iter(self.grouped)

    class InKnownOrders(trainer_class):
        def _get_train_sampler(self, train_dataset=None):
            found = super()._get_train_sampler(train_dataset)
            return Ordered(found, self.args.seed) if isinstance(found, LengthGroupedSampler) else found

    InKnownOrders.__name__ = trainer_class.__name__
    return InKnownOrders


def _time_limit(seconds: float):
    """A callback that saves and ends the training after so many seconds, if that is not 0."""
    from accelerate.utils import broadcast_object_list
    from transformers import TrainerCallback

    class TimeLimit(TrainerCallback):
        reached = False

        def on_train_begin(self, args, state, control, **kwargs):
            self.end = time.monotonic() + seconds

        def on_step_end(self, args, state, control, **kwargs):
            if not seconds:
                return
            # The first process decides for all: one that stopped alone would leave the others waiting.
            stop = [time.monotonic() > self.end]
            if args.world_size > 1:
                broadcast_object_list(stop)
            if stop[0]:
                self.reached = control.should_save = control.should_training_stop = True

    return TimeLimit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave()
