"""TRL's trainer with advantages by name: the one override of `_generate_and_score_completions`."""

from __future__ import annotations

import numpy as np

from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.rewards.advantages import ADVANTAGES, AdvantageContext, k_at
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.trainer.self_teacher import teacher_gap, told_prompts


def crediting(trainer_class: type, plan: GrpoPlan, reward: ProgramReward, context: int) -> type:
    """A subclass of a GRPO trainer (TRL 1.15, 1.16) whose advantages are computed as the plan says, of the
    groups and rewards that the reward function has for all processes (`ProgramReward.credit`).

    TRL's own, which know groups of one size and three ways, are replaced in what it hands to the loss and in
    its table of completions; everything else of the method stays. With `self_teacher` they are advantages of
    tokens, (B, T), which TRL's losses take as well. context: tokens of the longest sequence.
    """
    import torch

    class CreditingTrainer(trainer_class):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            rewards, groups = reward.credit
            k = k_at(plan.pass_at_k, plan.pass_at_k_last, self.state.global_step, self.state.max_steps)
            log_probs = self._sums(batch) if plan.advantages == "unlikely" else None
            numbers = np.unique(groups, return_inverse=True)[1]
            among = getattr(self, "chosen", np.ones(len(rewards), bool))  # of arcnb.rl.trainer.lean
            asked = AdvantageContext(k, None if log_probs is None else log_probs[among])
            made = np.zeros(len(rewards))
            made[among] = ADVANTAGES[plan.advantages](np.array(rewards)[among], numbers[among], asked)
            if "advantages" in getattr(self, "_logs", {}):
                self._logs["advantages"].clear()
                self._logs["advantages"].extend(made.tolist())
            if plan.advantages == "pass_at_k":
                self._metrics["train"]["pass_at_k/k"].append(k)
            start = self.accelerator.process_index * len(inputs)
            own = torch.tensor(made[start : start + len(inputs)])
            batch["advantages"] = own.to(batch["advantages"])
            if plan.self_teacher:
                self._add_teacher(batch)
            return batch

        def _add_teacher(self, batch) -> None:
            longest = context - batch["completion_ids"].size(1)
            told = told_prompts(plan, reward, self.processing_class, longest)
            gap = teacher_gap(self, batch, self._drawn(batch), told.prompts)
            right, failed = (
                torch.tensor([[ids is not None] for ids in prompts], device=gap.device)
                * batch["completion_mask"]
                for prompts in (told.right, told.failed)
            )
            sums = [(gap * right).sum(), right.sum(), (gap.abs() * failed).sum(), failed.sum()]
            sums += [gap.new_tensor(sum(map(bool, told.failed))), gap.new_tensor(len(told.failed))]
            sums = self.accelerator.reduce(torch.stack(sums))
            gained, n_right, size, n_failed, n_told, n_all = sums.tolist()
            gain = gained / max(n_right, 1)
            weight = plan.self_teacher if gain > 0 else 0.0
            batch["advantages"] = batch["advantages"].unsqueeze(1) + weight * gap * failed
            metrics = {
                "told": n_told / n_all,
                "gap": size / max(n_failed, 1),
                "gain": gain,
                "counts": float(gain > 0),
            }
            for name, value in metrics.items():
                self._metrics["train"][f"self_teacher/{name}"].append(value)

        def _sums(self, batch) -> np.ndarray:
            """Log-probability of every process's completions as they were drawn, nats."""
            mask = batch["completion_mask"] * batch.get("tool_mask", 1)
            sums = (self._drawn(batch).nan_to_num() * mask).sum(dim=1)
            return self.accelerator.gather(sums).double().cpu().numpy()

        def _drawn(self, batch):
            """Of this process's tokens, (B, T), by a pass of their own where nobody has computed them; NaN
            where the sampler could not say it."""
            known = batch.get("sampling_per_token_logps", batch.get("old_per_token_logps"))
            if known is None:
                ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
                seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
                with torch.no_grad():
                    known = self._get_per_token_logps_and_entropies(
                        self.model,
                        ids,
                        seen,
                        batch["completion_ids"].size(1),
                        self.args.per_device_train_batch_size,
                    )[0]
            return known

    CreditingTrainer.__name__ = trainer_class.__name__
    return CreditingTrainer
