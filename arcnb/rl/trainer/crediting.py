"""TRL's trainer with advantages by name: the one override of `_generate_and_score_completions`."""

from __future__ import annotations

import numpy as np

from arcnb.rl.plan import GrpoPlan
from arcnb.rl.rewards.advantages import ADVANTAGES, Asked, k_at
from arcnb.rl.rewards.function import ProgramReward


def crediting(trainer_class: type, plan: GrpoPlan, reward: ProgramReward) -> type:
    """A subclass of a GRPO trainer (TRL 1.15, 1.16) whose advantages are those of the plan's name, of the
    groups and rewards that the reward function has for all processes (`ProgramReward.credit`).

    TRL's own, which know groups of one size and three ways, are replaced in what it hands to the loss and in
    its table of completions; everything else of the method stays.
    """
    import torch

    class CreditingTrainer(trainer_class):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            rewards, groups = reward.credit
            step, steps = self.state.global_step, self.state.max_steps
            k = k_at(plan.pass_at_k, plan.pass_at_k_last, step, steps)
            log_probs = self._log_probs_of(batch) if plan.advantages == "unlikely" else None
            numbers = np.unique(groups, return_inverse=True)[1]
            made = ADVANTAGES[plan.advantages](np.array(rewards), numbers, Asked(k, log_probs))
            if "advantages" in getattr(self, "_logs", {}):
                self._logs["advantages"].clear()
                self._logs["advantages"].extend(made.tolist())
            if plan.advantages == "pass_at_k":
                self._metrics["train"]["pass_at_k/k"].append(k)
            start = self.accelerator.process_index * len(inputs)
            own = torch.tensor(made[start : start + len(inputs)])
            batch["advantages"] = own.to(batch["advantages"])
            return batch

        def _log_probs_of(self, batch) -> np.ndarray:
            """Log-probability of every process's completions as they were drawn, nats; by a pass of their own
            where nobody has computed them."""
            mask = batch["completion_mask"] * batch.get("tool_mask", 1)
            known = batch.get("sampling_per_token_logps", batch.get("old_per_token_logps"))
            if known is None:
                ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
                seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
                with torch.no_grad():
                    known = self._get_per_token_logps_and_entropies(
                        self.model, ids, seen, mask.size(1), self.args.per_device_train_batch_size
                    )[0]
            sums = (known.nan_to_num() * mask).sum(dim=1)
            return self.accelerator.gather(sums).double().cpu().numpy()

    CreditingTrainer.__name__ = trainer_class.__name__
    return CreditingTrainer
