"""What hangs on a GRPO trainer: sampling seeds, run state, held-out evaluation, the collapse guard.

Each function returns a transformers TrainerCallback, made when called since transformers is slow to import.
`RunState` is what they share and what a checkpoint keeps of a run beside weights and optimizer.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from arcnb.arc.seeds import derive_seed
from arcnb.models.training.checkpoints import checkpoint_problem
from arcnb.models.training.log import read_metrics
from arcnb.rl.resuming.checkpoints import (
    PAGES,
    ROLLBACKS,
    evaluated_before,
    keep_best,
    prune,
    saved_state,
    step_of,
)
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.signal_history import SignalHistory
from arcnb.rl.watching.diagnosis import write_diagnosis
from arcnb.rl.watching.guard import CollapseMonitor
from arcnb.rl.watching.held_out import HeldOut


@dataclass
class RunState:
    """output: the run folder. best: {"step", "score"} of the best held-out evaluation so far. It is recorded
    before its checkpoint is saved and kept in best/; where that does not come about, `recall_best`.

    rollbacks: how often the run went back to its best checkpoint; it outlives checkpoints in a file of its
    own. rollback_wanted: the guard's wish, for whoever calls `train()`. collapsed: the guard stopped the run.
    notes: what a reader of the curves has to know about resumes so far.
    """

    output: Path
    settings: dict
    history: SignalHistory
    monitor: CollapseMonitor
    best: dict | None = None
    rollback_wanted: bool = False
    collapsed: bool = False
    pages: list[Path] = field(default_factory=list)
    resumed_from: Path | None = None
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict:
        """Plain values for a checkpoint."""
        return {
            "settings": json.loads(json.dumps(self.settings)),
            "groups": self.history.as_dict(),
            "monitor": self.monitor.as_dict(),
            "best": self.best,
            "notes": self.notes,
        }

    def restore(self, state: dict) -> None:
        """The inverse of as_dict, settings apart.

        A run that the guard stopped, run again in its folder, is watched afresh: if the collapse stands, the
        guard stops it again within a window. With what its checkpoint keeps, the standing signals would not
        alarm any more, and it would go on unguarded.
        """
        if state:
            self.history.restore(state["groups"])
            self.monitor.restore(state["monitor"])
            if self.monitor.crossed and self.monitor.options.action != "warn":
                self.monitor.forget()
            self.best = state["best"]
            self.notes = list(state.get("notes", []))  # checkpoints of earlier versions lack them

    def forget_held_out(self) -> None:
        """What was best so far was so on other tasks: the next evaluation is the first to compare with."""
        self.best = self.monitor.best_held_out = None

    def keep_recorded_best(self) -> None:
        """Keep the best's checkpoint if that was not done: a kill may come between saving and keeping it."""
        if self.best:
            saved = self.output / "checkpoints" / f"checkpoint-{self.best['step']}"
            if checkpoint_problem(saved) is None:
                keep_best(saved, self.best_folder)

    def recall_best(self) -> None:
        """Make `best` what best/ holds. Another one is of another run or of steps that were undone, and what
        comes to be saved at its step has other weights than those that earned its score."""
        kept = self.best_checkpoint
        if kept is None:
            self.best = None
        elif self.best and self.best["step"] != step_of(kept):
            other_tasks, _ = evaluated_before(kept, self.settings.get("eval_task_versions", {}))
            self.best = None if other_tasks else saved_state(kept).get("best")

    def find_pages(self) -> None:
        """Take over the pages of alarms that the run folder has, from before a resume."""
        self.pages = sorted(self.output.glob(PAGES), key=lambda page: page.stem)

    def new_page(self, step: int) -> Path:
        """Where an alarm's page goes: a step may have several, after a rollback or by an evaluation."""
        name = f"collapse-step{step:06d}"
        number = sum(page.name.startswith(name) for page in self.pages)
        return self.output / (f"{name}-{number + 1}.html" if number else f"{name}.html")

    @property
    def best_folder(self) -> Path:
        return self.output / "best"

    @property
    def best_checkpoint(self) -> Path | None:
        """The complete checkpoint that is kept as the best, if there is one."""
        kept = [p for p in self.best_folder.glob("checkpoint-*") if checkpoint_problem(p) is None]
        return kept[0] if kept else None

    @property
    def _rollback_file(self) -> Path:
        return self.output / "checkpoints" / ROLLBACKS

    @property
    def rollbacks(self) -> int:
        """Rollbacks so far, those before a resume included."""
        return (
            json.loads(self._rollback_file.read_text())["rollbacks"] if self._rollback_file.is_file() else 0
        )

    def count_rollback(self) -> None:
        """One more, written down before the run goes on."""
        self._rollback_file.write_text(json.dumps({"rollbacks": self.rollbacks + 1}))

    @property
    def learning_rate_factor(self) -> float:
        return self.monitor.options.learning_rate_factor**self.rollbacks


def run_state_callback(state: RunState):
    """Keeps RunState inside trainer_state.json, so that every kind of checkpoint has it."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class RunStateCallback(TrainerCallback, ExportableState):  # the name stands in checkpoints.STATE_KEY
        def state(self) -> dict:
            return {"args": {}, "attributes": state.as_dict()}

    return RunStateCallback()


def resuming_callback(state: RunState, seed: int):
    """At the start of training, the checkpoint's adapter and the lowered learning rate are put in place. At
    each step, sampling derives from (seed, rollbacks, step, process), so that a resumed run samples the
    same."""
    from transformers import TrainerCallback

    class Resuming(TrainerCallback):
        def on_train_begin(
            self, args, state_, control, model=None, optimizer=None, lr_scheduler=None, **kwargs
        ):
            if state.resumed_from is not None and args.deepspeed_plugin is None:  # it restores its own parts
                restore_adapter(model, state.resumed_from)
            set_learning_rate(optimizer, lr_scheduler, args.learning_rate * state.learning_rate_factor)

        def on_step_begin(self, args, state_, control, **kwargs):
            import torch

            torch.manual_seed(
                derive_seed(seed, "sampling", state.rollbacks, state_.global_step, args.process_index) % 2**63
            )

    return Resuming()


def restore_adapter(model, checkpoint: Path) -> None:
    """Put the checkpoint's trained adapter into the model.

    transformers 5.17 loads only the sub-folders of a checkpoint where there are any. TRL's frozen copy "ref"
    of a starting adapter is such a one, so the trained adapter beside it would stay at its start.
    """
    if not hasattr(model, "peft_config") or not (checkpoint / "adapter_model.safetensors").is_file():
        return
    from peft import load_peft_weights, set_peft_model_state_dict

    weights = load_peft_weights(str(checkpoint), device="cpu")
    result = set_peft_model_state_dict(model, weights, adapter_name="default")
    if getattr(result, "unexpected_keys", None):
        raise ValueError(f"{checkpoint}: its adapter does not fit the model: {result.unexpected_keys[:3]}")


def set_learning_rate(optimizer, lr_scheduler, base: float) -> None:
    """Make `base` the peak learning rate of a running optimizer and its schedule, wherever it stands."""
    groups = optimizer.param_groups
    for group in groups:
        before = group.get("initial_lr", group["lr"])
        group["lr"] *= base / before if before else 0.0
        group["initial_lr"] = base
    rates = [group["lr"] for group in groups]
    lr_scheduler.load_state_dict(
        lr_scheduler.state_dict() | {"base_lrs": [base] * len(groups), "_last_lr": rates}
    )


def keeping_callback(state: RunState, budget_gb: float):
    """After each save the best checkpoint is set apart, and the oldest are deleted beyond the disk budget; at
    the end once more, since a checkpoint that a signal asked for is saved without telling callbacks."""
    from transformers import TrainerCallback

    class Keeping(TrainerCallback):
        def on_save(self, args, state_, control, **kwargs):
            if not state_.is_world_process_zero:
                return
            folder = Path(args.output_dir)
            saved = folder / f"checkpoint-{state_.global_step}"
            if state.best and state.best["step"] == state_.global_step and saved.is_dir():
                keep_best(saved, state.best_folder)
            prune(folder, budget_gb)

        def on_train_end(self, args, state_, control, **kwargs):
            if state_.is_world_process_zero:
                prune(Path(args.output_dir), budget_gb)

    return Keeping()


def held_out_callback(state: RunState, held_out: HeldOut):
    """Evaluates every `held_out.every` steps, and before the first. The best by pass@1 is saved; until a
    later one is better, that is the start."""
    from transformers import TrainerCallback

    class HeldOutCallback(TrainerCallback):
        trainer = None  # set once the trainer exists: its generation is what is evaluated

        def on_train_begin(self, args, state_, control, **kwargs):
            if state.resumed_from is None:
                self._evaluate(state_, control)
                keep_start(self.trainer, state)

        def on_step_end(self, args, state_, control, **kwargs):
            if state_.global_step % held_out.every == 0 or state_.global_step == state_.max_steps:
                self._evaluate(state_, control)

        def _evaluate(self, state_, control):
            trainer = self.trainer
            was_training, should_log = trainer.model.training, control.should_log
            trainer.model.eval()
            try:
                values = held_out.evaluate(trainer, state_.global_step)
            finally:
                trainer.model.train(was_training)
            trainer.log(dict(values))
            control.should_log = should_log  # logging has taken the step's own line for written
            score = values["held_out/pass@1"]
            if state.best is None or score > state.best["score"]:
                state.best = {"step": state_.global_step, "score": score}
                control.should_save = True

    return HeldOutCallback()


def keep_start(trainer, state: RunState) -> None:
    """Save the run as it is before its first step, as the best so far.

    Among the other checkpoints it would bind a run that failed at once to the settings it failed with.
    transformers saves only after steps; its own checkpoints on signals are made by this method, too.
    """
    trainer._save_checkpoint(trainer.model, trial=None)
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        saved = Path(trainer.args.output_dir) / "checkpoint-0"
        keep_best(saved, state.best_folder)
        shutil.rmtree(saved)


def is_watched(row: Mapping) -> bool:
    """Whether a logged row is a step's or an evaluation's, which are what the guard looks at."""
    return "reward" in row or "held_out/pass@1" in row


def guard_callback(state: RunState, reward: ProgramReward):
    """Watches every logged step. An alarm leaves a page and, by the guard's action, ends this `train()`."""
    from transformers import TrainerCallback

    class Guard(TrainerCallback):
        def on_log(self, args, state_, control, logs=None, **kwargs):
            if not is_watched(logs or {}) or not state_.is_world_process_zero:
                return self._agree(args, control)
            alarms = state.monitor.update(state_.global_step, logs)
            if alarms:
                action = self._action(state_)
                page = state.new_page(state_.global_step)
                history = [row for row in read_metrics(state.output / "metrics.jsonl") if is_watched(row)]
                state.pages.append(
                    write_diagnosis(
                        page, alarms, state.monitor, history, reward.latest, action, state.settings
                    )
                )
                for alarm in alarms:
                    print(f"step {alarm.step}: {alarm.signal}: {alarm.sentence}; {action}", flush=True)
            return self._agree(args, control)

        def _action(self, state_) -> str:
            options = state.monitor.options
            if options.action == "warn":
                return "warned"
            possible = state.best_checkpoint is not None and state.rollbacks < options.max_rollbacks
            if options.action == "rollback" and possible:
                state.rollback_wanted = True
                best = state.best_checkpoint.name
                where = "the start" if best == "checkpoint-0" else best
                return f"back to {where} with a lower learning rate"
            state.collapsed = True
            if options.action == "rollback":
                reason = (
                    f"{state.rollbacks} rollbacks were made"
                    if state.best_checkpoint is not None
                    else "there is no best checkpoint yet"
                )
                return f"stopped, since {reason}"
            return "stopped"

        def _agree(self, args, control):
            """What the first process decided, all do; a stop of one alone would leave the others waiting."""
            wish = [state.rollback_wanted, state.collapsed]
            if args.world_size > 1:
                from accelerate.utils import broadcast_object_list

                wish = broadcast_object_list(wish, from_process=0)
            state.rollback_wanted, state.collapsed = wish
            if any(wish):
                control.should_training_stop = True
                control.should_save = state.collapsed and not state.rollback_wanted
            return control

    return Guard()
