"""What the learner of a GRPO step leaves out: passes that say nothing new, completions that teach little.

    trainer = lean_trainer(GRPOTrainer, Learner(trained_part=0.5), seed=0)(model=..., args=..., ...)

TRL's `GRPOTrainer` (1.15, 1.16) scores a round of samples in one method: old and reference log-probabilities
of all completions, then rewards and advantages. Here rewards come first, so that passes are made for
completions that are trained alone. Five of its methods are extended, none is replaced: `_tokenize_prompts`,
`_generate`, `_calculate_rewards`, `_get_per_token_logps_and_entropies` and `compute_loss`; what is left out
is left out by masks. Losses and clipping stay TRL's; advantages among those trained are of
arcnb.rl.trainer.crediting, which goes around this trainer.
What each option changes: docs/reference/grpo.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from arcnb.arc.seeds import rng
from arcnb.rl.plan.settings import Learner
from arcnb.rl.trainer.choice import drawn_evenly, most_spread, silent
from arcnb.rl.trainer.ratios import correction, old_log_probs, share_of_sampler
from arcnb.rl.watching.sampler_gap import POLICY

if TYPE_CHECKING:
    import numpy as np
    import torch

# Losses that divide by the number of completions; the others divide by the number of trained tokens.
BY_COMPLETION = ("grpo", "dr_grpo", "sapo", "luspo")
TRLS = ("sampling/sampling_logp_difference/", "sampling/importance_sampling_ratio/")


@dataclass
class _Round:
    """Samples while TRL scores them. inputs: rows of this process. adapters: the policy's, see
    `adapter_state`. rewards: TRL's, of all processes.

    sampler: log-probabilities that the sampler gave, a list a completion. chosen, run, referred: which of all
    processes' completions, in their order, are trained, which of these run, and which of these by the
    reference, too.
    """

    inputs: list[dict]
    step: int
    adapters: tuple | None
    rewards: torch.Tensor | None = None
    sampler: list | None = None
    chosen: np.ndarray | None = None
    run: np.ndarray | None = None
    referred: np.ndarray | None = None


def lean_trainer(base: type, learner: Learner, seed: int = 0) -> type:
    """A subclass of TRL's GRPOTrainer (or of a subclass of it) whose learner leaves out what `learner` says.

    Without any option it still makes no pass of old log-probabilities where the loss computes the same
    numbers: where a round of samples serves one optimizer step. Completions are drawn by (seed, step).
    """
    import torch

    class LeanTrainer(base):
        _round: _Round | None = None
        _at_loss: dict | None = None
        ahead = None  # an `arcnb.rl.engine.async_sampling.AsyncSampling`, where the engine samples ahead

        @property
        def _on_policy(self) -> bool:
            """Whether a round of samples serves one optimizer step, so that the loss knows the old policy."""
            parts = self.args.steps_per_generation * self.num_iterations
            return self.args.gradient_accumulation_steps % parts == 0

        @property
        def _without_old_pass(self) -> bool:
            return self._on_policy or learner.old_log_probs != "pass"

        def _generate_and_score_completions(self, inputs):
            if not self.model.training:
                return super()._generate_and_score_completions(inputs)
            self._round = round_ = _Round(inputs, self.state.global_step, adapter_state(self.model))
            try:
                batch = super()._generate_and_score_completions(inputs)
            finally:
                self._round = None
            batch |= self._columns(batch, round_)
            if self.use_vllm and self.vllm_importance_sampling_correction:
                if self._without_old_pass:
                    self._forget_correction()
                elif not round_.run.all():
                    self._tell_correction(batch)
            return batch

        def _tokenize_prompts(self, prompts):
            """TRL's, of each text once: those of a group are the same, and long."""
            if not all(isinstance(prompt, str) for prompt in prompts):
                return super()._tokenize_prompts(prompts)
            texts = list(dict.fromkeys(prompts))
            ids, images, fields = super()._tokenize_prompts(texts)
            of_text = dict(zip(texts, ids, strict=True))
            return [list(of_text[prompt]) for prompt in prompts], images, fields

        def _generate(self, prompts):
            made = super()._generate(prompts)
            if self._round is not None:
                _, ids, _, completions, self._round.sampler, fields, *_ = made
                if learner.chooses:
                    for i, row in enumerate(self._round.inputs):  # as TRL does, before it asks for rewards
                        row |= {k: v[i] if isinstance(v, list) else v for k, v in fields.items()}
                    self._calculate_rewards(self._round.inputs, prompts, completions, ids)
                self._choose(len(prompts) * self.accelerator.num_processes)
            return made

        def _calculate_rewards(self, *given):
            if self._round is None:
                return super()._calculate_rewards(*given)
            if self._round.rewards is None:
                self._round.rewards = super()._calculate_rewards(*given)
            return self._round.rewards

        def _choose(self, n: int) -> None:
            """Which of all processes' n completions are trained, run and referred; all choose the same."""
            import numpy as np

            round_ = self._round
            groups = np.arange(n) // self.num_generations
            round_.chosen = round_.run = np.ones(n, bool)
            if learner.chooses:
                totals = round_.rewards.nansum(dim=1).double().cpu().numpy()
                if credit := getattr(self.reward_funcs[0], "credit", None):  # as ProgramReward has it
                    totals, groups = np.array(credit[0], float), np.unique(credit[1], return_inverse=True)[1]
                if learner.trained_part < 1:
                    draw = rng(seed, "trained part", round_.step)
                    round_.chosen = most_spread(totals, groups, learner.trained_part, draw)
                round_.run = round_.chosen & ~(learner.skip_silent & silent(totals, groups))
            self.chosen = round_.chosen
            self._metrics["train"]["learner/trained_share"].append(float(round_.run.mean()))
            draw = rng(seed, "reference part", round_.step)
            round_.referred = drawn_evenly(round_.run, groups, learner.reference_part, draw)

        def _own(self, of_all) -> torch.Tensor:
            """The part of this process of an array with a value a completion."""
            whole = torch.as_tensor(of_all, device=self.accelerator.device)
            return whole.chunk(self.accelerator.num_processes)[self.accelerator.process_index]

        def _columns(self, batch: dict, round_: _Round) -> dict:
            """What a scored batch gets: masks and weights of what is trained."""
            mask, device = batch["completion_mask"], batch["completion_mask"].device
            columns = {
                "sampled_at": torch.tensor(self.ahead.drawn_at if self.ahead else round_.step, device=device),
                "completion_mask": mask * self._own(round_.run).unsqueeze(1).to(mask.dtype),
            }
            if learner.trained_part < 1:
                own = self._own(round_.chosen)
                trained = mask * batch.get("tool_mask", 1) * own.unsqueeze(1)
                columns["num_items_in_batch"] = self.accelerator.gather(trained.sum()).sum()
                if self.loss_type in BY_COMPLETION:
                    weight = round_.chosen.size / round_.chosen.sum()
                    columns["loss_weight"] = torch.tensor(float(weight), device=device)
            if "ref_per_token_logps" in batch:
                some = round_.referred.any()  # else everything is masked
                weight = float(round_.run.sum() / round_.referred.sum()) if some else 1.0
                columns["kl_weight"] = torch.tensor(weight, device=device)
                columns["referred"] = self._own(round_.referred)
            return columns

        def _forget_correction(self) -> None:
            """Takes back what TRL logged of a correction that only the loss will know."""
            metrics = self._metrics["train"]
            for name in [name for name in metrics if name.startswith(TRLS)]:
                metrics[name].pop()
                if not metrics[name]:
                    del metrics[name]

        def _tell_correction(self, batch: dict) -> None:
            """Logs anew what TRL logged of its correction, of what is run alone: elsewhere the old policy has
            the sampler's numbers."""
            mask = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()
            gaps = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).abs()[mask]
            ratios = batch["importance_sampling_ratio"]
            ratios = ratios[mask] if ratios.size(1) == mask.size(1) else ratios[mask.any(dim=1)].flatten()
            gaps, ratios = (self._of_all(values) for values in (gaps[~gaps.isnan()], ratios))
            told = {f"{TRLS[0]}mean": gaps.mean, f"{TRLS[0]}max": gaps.max}
            told |= {f"{TRLS[1]}{name}": getattr(ratios, name) for name in ("min", "mean", "max")}
            self._forget_correction()
            for name, value in told.items() if len(gaps) and len(ratios) else ():
                self._metrics["train"][name].append(float(value()))

        def _of_all(self, values) -> torch.Tensor:
            """Of every process's values, (n,), float32 on the CPU; each has a number of its own of them."""
            from accelerate.utils import gather_object

            return torch.tensor(gather_object(values.float().tolist()))

        def _get_per_token_logps_and_entropies(
            self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        ):
            """TRL's, for the completions alone that are to be run."""
            round_, otherwise = self._round, None
            if round_ is None:
                rows = attention_mask[:, -logits_to_keep:].any(dim=1)
            elif model is not self.model or adapter_state(model) != round_.adapters:
                rows = self._own(round_.referred)
            else:
                rows = self._own(round_.run)
                if round_.sampler:  # where nothing is run TRL then finds nothing to correct
                    otherwise = padded(round_.sampler, input_ids, logits_to_keep)
                    if not self._without_old_pass:  # NaN would stay NaN where it is masked
                        otherwise = otherwise.nan_to_num()
                if self._without_old_pass:
                    return otherwise, None, None
            graph = torch.is_grad_enabled()
            if graph and not rows.any():  # the loss is 0, but has to be differentiated
                rows = torch.arange(len(rows), device=rows.device) == 0
            ask = partial(super()._get_per_token_logps_and_entropies, model)
            if not rows.all():
                ask = partial(_of_rows, ask, rows, otherwise)
            found = ask(input_ids, attention_mask, logits_to_keep, *args, **kwargs)
            if graph and self._at_loss is not None:
                self._complete(self._at_loss, found[0].detach())
            return found

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if "sampled_at" not in inputs:  # of an evaluation
                return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            self._at_loss, kl_weight = inputs, float(inputs.get("kl_weight", 1.0))
            self.beta = self.args.beta * kl_weight
            before = {name: len(values) for name, values in self._metrics["train"].items()}
            try:
                loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            finally:
                self.beta, self._at_loss = self.args.beta, None
            if self.beta:
                self._metrics["train"]["kl"][-1] *= kl_weight
            if learner.chooses and not self._runs_anywhere(inputs):
                self._forget_loss(before)
            return loss * inputs.get("loss_weight", 1.0)

        def _runs_anywhere(self, batch: dict) -> bool:
            mask = batch["completion_mask"] * batch.get("tool_mask", 1)
            return bool(self.accelerator.reduce(mask.sum()) > 0)

        def _forget_loss(self, before: dict[str, int]) -> None:
            """Takes back what TRL logged of a loss of nothing, which would count as 0 in the step's means."""
            metrics = self._metrics["train"]
            for name in [name for name in metrics if not name.startswith("sampling/")]:
                del metrics[name][before.get(name, 0) :]
                if not metrics[name]:
                    del metrics[name]

        def _complete(self, batch: dict, policy: torch.Tensor) -> None:
            """Puts into the batch what depends on the loss's own log-probabilities."""
            stale = self.state.global_step - int(batch["sampled_at"])
            if self.ahead or not self._on_policy:
                self._metrics["train"]["sampling/staleness"].append(float(stale))
            if (
                "sampling_per_token_logps" in batch
                and "old_per_token_logps" in batch
                and self._without_old_pass
            ):
                batch[POLICY], sampler = policy, batch["sampling_per_token_logps"]
                share = share_of_sampler(learner.old_log_probs, stale)
                batch["old_per_token_logps"] = old = old_log_probs(sampler, policy, share)
                if "importance_sampling_ratio" in batch:
                    mask = batch["completion_mask"] * batch.get("tool_mask", 1)
                    batch["importance_sampling_ratio"] = correction(old - sampler, mask, self.args)
            if "referred" in batch:  # elsewhere the estimate of the KL, and its gradient, are 0
                reference, where = batch["ref_per_token_logps"], batch["referred"].unsqueeze(1)
                batch["ref_per_token_logps"] = torch.where(where, reference, policy)

    LeanTrainer.__name__ = f"Lean{base.__name__}"
    return LeanTrainer


def adapter_state(model) -> tuple | None:
    """(whether adapters are off, which are active): equal states compute the same. None without adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layer = next((module for module in model.modules() if isinstance(module, BaseTunerLayer)), None)
    return None if layer is None else (layer.disable_adapters, tuple(layer.active_adapters))


def padded(log_probs: list[list[float | None]], like: torch.Tensor, n_completion: int) -> torch.Tensor:
    """float32 (B, n_completion) on the device of `like`: NaN where a value is unknown, 0 behind the end."""
    import torch

    values = torch.zeros(len(log_probs), n_completion)
    for row, known in enumerate(log_probs):
        values[row, : len(known)] = torch.tensor([float("nan") if one is None else one for one in known])
    return values.to(like.device)


def _of_rows(ask, rows, otherwise, input_ids, attention_mask, n_completion, *args, **kwargs):
    """TRL's triple (log-probabilities, entropies, auxiliary loss) of these rows of the batch; of the others
    the log-probabilities `otherwise`, or 0."""
    import torch

    nothing = torch.zeros(len(rows), n_completion, device=input_ids.device)
    if not rows.any():
        return nothing if otherwise is None else otherwise, None, None
    log_probs, entropies, loss = ask(input_ids[rows], attention_mask[rows], n_completion, *args, **kwargs)
    places = rows.nonzero().squeeze(1)

    def placed(values, others=nothing):
        return None if values is None else others.to(values.dtype).index_copy(0, places, values)

    return placed(log_probs, nothing if otherwise is None else otherwise), placed(entropies), loss
