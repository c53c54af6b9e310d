"""Rounds of sampling that serve several optimizer steps: a checkpoint inside one keeps its samples.

TRL holds a round's samples in memory alone, and counts its parts from 0 in every `train()`. A run that is
resumed inside a round would sample its rows again, by another policy, and train them for a whole round more.
Kept beside the weights, with advantages and log-probabilities, the rest of the round is trained as it would
have been; nothing is sampled twice.
"""

from __future__ import annotations

from pathlib import Path

from arcnb.machine.files import replaced_file
from arcnb.models.training.checkpoints import step_of

# What says which numbers come with a round's samples, and how they are split: a run in which one of these is
# another samples anew.
SHAPE = (
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "num_iterations",
    "beta",
    "use_vllm",
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
)


def resuming_inside_rounds(trainer_class: type) -> type:
    """A subclass of a GRPO trainer whose checkpoints keep the round of sampling that they were saved in."""

    class RoundKeepingTrainer(trainer_class):
        def train(self, resume_from_checkpoint=None, **kwargs):
            # A rollback trains again with the same trainer: what the abandoned policy sampled is not its own.
            self._step, self._buffered_inputs = 0, None
            self._last_loaded_step = -1  # nor are the weights that the engine has
            ahead = getattr(self, "ahead", None)  # arcnb.rl.engine.async_sampling
            if ahead:
                ahead.start(Path(resume_from_checkpoint) if resume_from_checkpoint else None)
            if resume_from_checkpoint:
                checkpoint = Path(resume_from_checkpoint)
                self._step = step_of(checkpoint) * self.args.gradient_accumulation_steps
                self._buffered_inputs = restored_round(self, checkpoint)
                for column in getattr(self, "_logs", {}).values():  # of the table of completions
                    column.clear()
            try:
                return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
            finally:
                if ahead:
                    ahead.drop()

        def _save_checkpoint(self, *args, **kwargs):
            save_round(self)
            if ahead := getattr(self, "ahead", None):
                ahead.save(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")
            super()._save_checkpoint(*args, **kwargs)

    RoundKeepingTrainer.__name__ = trainer_class.__name__
    return RoundKeepingTrainer


def save_round(trainer) -> None:
    """Write this process's samples of the round under way where the checkpoint of this step will be.

    To be called before the rest is saved, so that a complete checkpoint has them. At the end of a round there
    is nothing to keep.
    """
    import torch

    args = trainer.args
    step = trainer.state.global_step
    inside = step * args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations)
    if not inside or trainer._buffered_inputs is None:
        return
    path = Path(args.output_dir) / f"checkpoint-{step}" / _name(args.process_index, args.world_size)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(path) as file:
        torch.save({"shape": _shape(args), "parts": trainer._buffered_inputs}, file)


def restored_round(trainer, checkpoint: Path) -> list[dict] | None:
    """This process's samples from a checkpoint inside a round; None where it was saved at the end of one.

    None as well where samples of a process are missing or are split otherwise than this run's: the processes
    sample together, so either all of them get theirs back or none does.
    """
    import torch

    args = trainer.args
    paths = [checkpoint / _name(process, args.world_size) for process in range(args.world_size)]
    if not all(path.is_file() for path in paths):
        return None
    kept = torch.load(paths[args.process_index], map_location=args.device, weights_only=True)
    return kept["parts"] if kept["shape"] == _shape(args) else None


def _name(process: int, n_processes: int) -> str:
    return f"round-{process}-of-{n_processes}.pt"


def _shape(args) -> dict:
    return {name: getattr(args, name, None) for name in SHAPE}
