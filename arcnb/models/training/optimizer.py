"""The optimizer of a resumed training: its moments are the checkpoint's, its settings are those asked for.

torch keeps the settings with the moments, so that a checkpoint of other settings (`accept_other_settings`)
would bring its own along, with no word said.
"""

from __future__ import annotations

SETTINGS = ("weight_decay", "betas", "eps")  # of a group of weights, beside the learning rate


def with_asked_optimizer(trainer_class: type) -> type:
    """A subclass of a transformers trainer that resumes with the learning rate (its peak), weight decay and
    Adam's constants that it is asked for."""

    class AskedOptimizer(trainer_class):
        def _load_optimizer_and_scheduler(self, checkpoint):
            groups = self.optimizer.param_groups
            asked = [{name: group[name] for name in SETTINGS if name in group} for group in groups]
            super()._load_optimizer_and_scheduler(checkpoint)
            groups = self.optimizer.param_groups
            for group, own in zip(groups, asked, strict=True):
                group.update(own)
            if all("initial_lr" in group for group in groups):  # else the schedule goes by evaluations
                set_learning_rate(self.optimizer, self.lr_scheduler, self.args.learning_rate)

    AskedOptimizer.__name__ = trainer_class.__name__
    return AskedOptimizer


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
