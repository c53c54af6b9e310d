"""What hangs on a GRPO trainer: sampling seeds, run state, evaluation of the eval tasks, the collapse guard.

Each function returns a transformers TrainerCallback, made when called since transformers is slow to import.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from arcnb.arc.seeds import derive_seed
from arcnb.models.lora.compatibility import WEIGHTS
from arcnb.models.training.log import read_metrics
from arcnb.models.training.optimizer import set_learning_rate
from arcnb.rl.resuming.run_folder import keep_best, prune
from arcnb.rl.resuming.run_state import RunState
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.watching.diagnosis import write_diagnosis
from arcnb.rl.watching.held_out import HeldOut


def run_state_callback(state: RunState):
    """Keeps RunState inside trainer_state.json, so that every kind of checkpoint has it."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class RunStateCallback(TrainerCallback, ExportableState):  # named as identity.STATE_KEY says
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

            place = (state.rollbacks, state_.global_step, args.process_index)
            torch.manual_seed(derive_seed(seed, "sampling", *place))

    return Resuming()


def restore_adapter(model, checkpoint: Path) -> None:
    """Put the checkpoint's trained adapter into the model.

    transformers 5.17 loads only the sub-folders of a checkpoint where there are any. TRL's frozen copy "ref"
    of a starting adapter is such a one, so the trained adapter beside it would stay at its start.
    """
    if not hasattr(model, "peft_config") or not (checkpoint / WEIGHTS).is_file():
        return
    from peft import load_peft_weights, set_peft_model_state_dict

    weights = load_peft_weights(str(checkpoint), device="cpu")
    result = set_peft_model_state_dict(model, weights, adapter_name="default")
    if getattr(result, "unexpected_keys", None):
        raise ValueError(f"{checkpoint}: its adapter does not fit the model: {result.unexpected_keys[:3]}")


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
                keep_best(saved, state.output / "best")
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

    It is kept apart from checkpoints/, since a run that fails at once could otherwise only be resumed with
    the settings it failed with. transformers saves after steps alone; this is how it saves on signals.
    """
    trainer._save_checkpoint(trainer.model, trial=None)
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        saved = Path(trainer.args.output_dir) / "checkpoint-0"
        keep_best(saved, state.output / "best")
        shutil.rmtree(saved)


def _is_watched(row: Mapping) -> bool:
    """Whether a logged row is a step's or an evaluation's, which are what the guard looks at."""
    return "reward" in row or "held_out/pass@1" in row


def guard_callback(state: RunState, reward: ProgramReward):
    """Watches every logged step. An alarm leaves a page and, by the guard's action, ends this `train()`."""
    from accelerate.utils import broadcast_object_list
    from transformers import TrainerCallback

    class Guard(TrainerCallback):
        def on_log(self, args, state_, control, logs=None, **kwargs):
            if not _is_watched(logs or {}) or not state_.is_world_process_zero:
                return self._agree(control)
            alarms = state.monitor.update(state_.global_step, logs)
            if alarms:
                action = self._action()
                page = state.new_page(state_.global_step)
                history = [row for row in read_metrics(state.output / "metrics.jsonl") if _is_watched(row)]
                write_diagnosis(page, alarms, state.monitor, history, reward.latest, action, state.settings)
                state.pages.append(page)
                for alarm in alarms:
                    print(f"step {alarm.step}: {alarm.signal}: {alarm.sentence}; {action}", flush=True)
            return self._agree(control)

        def _action(self) -> str:
            options, best = state.monitor.options, state.best_checkpoint
            if options.action == "warn":
                return "warned"
            if options.action == "rollback" and best and state.rollbacks < options.max_rollbacks:
                state.rollback_wanted = True
                where = "the start" if best.name == "checkpoint-0" else best.name
                return f"back to {where} with a lower learning rate"
            state.collapsed = True
            if options.action == "stop":
                return "stopped"
            reason = f"{state.rollbacks} rollbacks were made" if best else "there is no best checkpoint yet"
            return f"stopped, since {reason}"

        def _agree(self, control):
            """What the first process decided, all do; a stop of one alone would leave the others waiting."""
            wish = broadcast_object_list([state.rollback_wanted, state.collapsed], from_process=0)
            state.rollback_wanted, state.collapsed = wish
            if any(wish):
                control.should_training_stop = True
                control.should_save = state.collapsed and not state.rollback_wanted
            return control

    return Guard()
