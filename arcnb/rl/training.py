"""One GRPO run from its parts: trained, rolled back where the guard wants it, reported."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arcnb.arc.tasks import Task
from arcnb.models.compatibility import WEIGHTS
from arcnb.models.preemption import Stop, listen
from arcnb.models.registry import ModelPath
from arcnb.models.training_log import read_metrics
from arcnb.programs.executor import Executor
from arcnb.rl.callbacks import RunState, restore_adapter
from arcnb.rl.checkpoints import keep_best_copy, set_aside, step_of
from arcnb.rl.options import GrpoOptions
from arcnb.rl.policies import has_moved
from arcnb.rl.reward_terms import RewardPlan
from arcnb.rl.rows import PromptRows
from arcnb.rl.subject import ARC, Subject
from arcnb.rl.trainers import make_trainer
from arcnb.rl.training_report import ROLLED_BACK, TrainingReport


@dataclass
class Training:
    """One run: the parts of train_grpo that need a trainer."""

    model: ModelPath
    rows: PromptRows
    executor: Executor
    output: Path
    adapter: Path | None
    settings: dict
    lora: dict | None
    options: GrpoOptions
    held_out_tasks: Sequence[Task]
    seed: int
    plan: RewardPlan
    state: RunState
    context: int
    subject: Subject = ARC

    def train(self, resumed: Path | None, callbacks: Sequence) -> TrainingReport:
        trainer, config = make_trainer(self, callbacks)
        try:
            return self._train(trainer, config, resumed)
        finally:
            if close := getattr(getattr(trainer, "vllm_generation", None), "close", None):
                close()  # an engine in a process of its own

    def _train(self, trainer, config, resumed: Path | None) -> TrainingReport:
        stop = Stop()
        listen(trainer, stop)
        started = time.monotonic()
        main = trainer.accelerator.is_main_process
        if main:
            (self.output / "checkpoints").mkdir(parents=True, exist_ok=True)
            own = resumed is not None and resumed.resolve().is_relative_to(self.output.resolve())
            set_aside(self.output, step_of(resumed) if own else -1)
            self.state.keep_recorded_best()
        trainer.accelerator.wait_for_everyone()
        self.state.find_pages()
        self.state.recall_best()
        went_back = None
        while True:
            self.state.resumed_from = resumed
            trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
            if not self.state.rollback_wanted:
                break
            resumed = self._roll_back(main)
            trainer.accelerator.wait_for_everyone()
            listen(trainer, stop)
            if stop.asked or trainer.is_deepspeed_enabled:  # deepspeed trains once in a process
                went_back = resumed
                break
        if went_back:
            _go_back(trainer, went_back)
        _save_adapter(trainer, self.output / "adapter", went_back)
        trainer.accelerator.wait_for_everyone()
        status = "done" if trainer.state.global_step >= trainer.state.max_steps else "preempted"
        if self.state.collapsed:
            status = "collapsed"
        elif went_back and not stop.asked:
            status = ROLLED_BACK
        return TrainingReport(
            adapter=self.output / "adapter",
            steps=trainer.state.global_step,
            seconds=time.monotonic() - started,
            history=read_metrics(self.output / "metrics.jsonl"),
            status=status,
            rollbacks=self.state.rollbacks,
            best=self.state.best,
            pages=self.state.pages,
            config=config,
            adapter_moved=has_moved(self.output / "adapter", self.adapter),
        )

    def _roll_back(self, main: bool) -> Path:
        """Make the best checkpoint the newest one; it is resumed from by whoever goes on."""
        best = self.state.best_checkpoint
        target = self.output / "checkpoints" / best.name
        if main:
            if not target.exists():
                keep_best_copy(best, target)
            set_aside(self.output, step_of(best))
            self.state.count_rollback()
        self.state.recall_best()
        self.state.monitor.forget()
        self.state.rollback_wanted = False
        return target


def _go_back(trainer, checkpoint: Path) -> None:
    """Leave the trainer as it was at the checkpoint, without a step more. The rollback is on disk, and
    whoever resumes goes on from it."""
    if not trainer.is_deepspeed_enabled:
        restore_adapter(trainer.model, checkpoint)
    trainer.state.global_step = step_of(checkpoint)


def _save_adapter(trainer, folder: Path, went_back: Path | None) -> None:
    """The trained adapter alone, without the frozen copy of its start; to be called by every process.

    went_back: the checkpoint that the trainer was left at.
    """
    weights = {}
    if trainer.is_deepspeed_enabled:  # ZeRO-3: no process has them whole
        weights = {"state_dict": trainer.accelerator.get_state_dict(trainer.deepspeed)}
    if trainer.accelerator.is_main_process:
        policy = trainer.accelerator.unwrap_model(trainer.model)
        policy.save_pretrained(folder, selected_adapters=["default"], **weights)
        trainer.processing_class.save_pretrained(folder)
        if trainer.is_deepspeed_enabled and went_back:  # where they are of later steps still
            shutil.copy(went_back / WEIGHTS, folder / WEIGHTS)
