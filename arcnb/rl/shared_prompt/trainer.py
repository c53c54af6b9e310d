"""GRPO that pays for a prompt once a group: TRL's trainer with its log-probabilities from packed rows.

    trainer = shared_prefix_trainer(GRPOTrainer)(model=..., args=..., ...)

Everything TRL's `GRPOTrainer` computes from the model passes through one method, the log-probabilities
and entropies of a batch's completions: for the policy, the old policy and the reference alike. That method
is replaced; sampling, rewards, advantages, importance ratios and losses stay TRL's. A group must arrive in
one micro-batch for its prompt to be paid once, so a generation batch of several prompts is shuffled by
groups and not by completions.

Exact for decoder-only models whose attention is plain scaled dot product attention with full context and
whose positions are rotary (Llama, Qwen 2 and 3, Mistral, ...); whatever is not, is refused.
"""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError
from arcnb.models.lora.precision import input_casting
from arcnb.rl.shared_prompt.attention import NAME, register
from arcnb.rl.shared_prompt.packing import TOKEN_BUDGET, PackedRow, pack

if TYPE_CHECKING:
    import torch


def shared_prefix_trainer(
    base: type, token_budget: int | None = TOKEN_BUDGET, kernel: str = "auto", offload: bool = False
) -> type:
    """A subclass of TRL's GRPOTrainer (or of a subclass of it) that shares prompts within groups.

    token_budget: most tokens of a packed row. kernel: see arcnb.rl.shared_prompt.kernels. offload: what the
    backward pass needs, a hidden state a layer and token, waits in the host's memory.
    Use `gradient_accumulation_steps=1` and one group a device batch: accumulation that splits a group pays
    its prompt once a part, and the budget bounds memory instead.
    """
    import torch
    from trl.trainer.utils import split_tensor_dict

    class SharedPrefixTrainer(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            if self.aux_loss_enabled:
                raise ArcnbError(
                    "shared-prompt training does not support the load-balancing loss of a mixture of experts"
                )
            prepare_model(self.accelerator.unwrap_model(self.model))
            if self.ref_model is not None:
                prepare_model(self.accelerator.unwrap_model(self.ref_model))

        def _build_accelerator_args(self, **kwargs):
            # DDP sends buffers (constants of rotary embeddings, equal everywhere) before each forward pass,
            # and processes run unequal numbers of rows: one would wait for ever for the other's next.
            self.args.ddp_broadcast_buffers = False
            return super()._build_accelerator_args(**kwargs)

        def training_step(self, *args, **kwargs):
            autocast = self.accelerator.mixed_precision in ("bf16", "fp16")
            with input_casting(self.model, enabled=not autocast):
                return super().training_step(*args, **kwargs)

        def _generate(self, prompts):
            # Else the engine's small tensors could lie in the large blocks that training left, and the next
            # pass would have to reserve others: an 8B model's 50 GB became 55 at the second round of samples.
            torch.cuda.empty_cache()
            with input_casting(self.model, enabled=True):  # transformers generates outside of autocast
                return super()._generate(prompts)

        def _prepare_inputs(self, generation_batch):
            """TRL's, with groups kept together when a generation batch is split into micro-batches."""
            if not self.model.training:
                return super()._prepare_inputs(generation_batch)
            per_generation = self.args.steps_per_generation
            if self._step % (per_generation * self.num_iterations) == 0 or self._buffered_inputs is None:
                batch = self._generate_and_score_completions(generation_batch)
                self._buffered_inputs = split_tensor_dict(shuffle_groups(batch), per_generation)
            return self._buffered_inputs[self._step % per_generation]

        def _get_per_token_logps_and_entropies(
            self,
            model,
            input_ids,
            attention_mask,
            logits_to_keep,
            batch_size=None,
            compute_entropy=False,
            compute_aux_loss=False,
            **multimodal,
        ):
            """TRL's, from packed rows; `token_budget` bounds memory in place of batch_size."""
            given = [name for name, value in multimodal.items() if value is not None]
            if given:
                raise ArcnbError(f"shared-prompt training is for text alone, not for {given[0]}")
            found = self._log_probs(model, input_ids, attention_mask, logits_to_keep)
            return found[0], found[1] if compute_entropy else None, None

        def _log_probs(self, model, input_ids, attention_mask, n_completion):
            rows = pack(input_ids, attention_mask, n_completion, token_budget, kernel)
            on_host = torch.autograd.graph.save_on_cpu(pin_memory=True) if offload else nullcontext()
            with self.accelerator.autocast(), on_host:
                return row_log_probs(model, rows, len(input_ids), n_completion)

    SharedPrefixTrainer.__name__ = f"SharedPrefix{base.__name__}"
    return SharedPrefixTrainer


def let_segments_grow() -> None:
    """Torch's GPU allocator reserves memory in segments that grow, unless the environment gives it settings.

    Rows differ in length from step to step, and segments of fixed size end up broken: whole steps of an 8B
    model reserved 53 GB, with these 49.5, of which 47 were in use (docs/explanation/shared_prefix.md).
    """
    import torch

    if {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} & os.environ.keys():
        return
    # By its older name vLLM knows of it, too, and switches it off for what it lays to sleep.
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if torch.cuda.is_available():  # which may have read the environment already
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            torch.cuda.memory._set_allocator_settings(os.environ["PYTORCH_CUDA_ALLOC_CONF"])


def prepare_model(model) -> None:
    """Give a transformers model (or a PEFT model around one) the attention that shares prompts."""
    register()
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "chunked_attention" in (getattr(inner.config.get_text_config(), "layer_types", None) or ()):
        raise ArcnbError("shared-prompt attention does not support the model's chunked attention")
    inner.set_attn_implementation(NAME)
    if inner.config._attn_implementation != NAME:
        raise ArcnbError(f"{type(inner).__name__} does not take its attention from transformers' interface")


def row_log_probs(
    model, rows: list[PackedRow], n_rows: int, n_completion: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities and entropies, float32 (n_rows, n_completion), 0 where a completion has no token.

    model must have TRL's fused head (`trl.trainer.utils.add_fused_lm_head`), which projects onto the
    vocabulary in tiles, so that logits are never whole; entropies are None if its outputs leave them out.
    Raises ArcnbError for a model in which some layer does not use the attention given.
    """
    import torch

    log_probs, entropies = [], []
    for row in rows:
        row.layout.calls = 0
        outputs = model(
            input_ids=row.input_ids,
            position_ids=row.position_ids,
            # of four dimensions: taken by transformers as ready made, and not looked at by our attention
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=row.input_ids.device),
            shift_labels=row.labels,
            fused_lm_head=True,
            shared_prefix=row.layout,
        )
        _check_all_layers(model, row.layout.calls)
        log_probs.append(outputs.log_probs[0, row.layout.n_prefix :])
        entropies.append(None if outputs.entropy is None else outputs.entropy[0, row.layout.n_prefix :])
    targets = torch.cat([row.targets for row in rows])

    def place(values):
        flat = torch.cat(values)
        return flat.new_zeros(n_rows * n_completion).index_copy(0, targets, flat).view(n_rows, n_completion)

    return place(log_probs), None if entropies[0] is None else place(entropies)


def _check_all_layers(model, calls: int) -> None:
    inner = getattr(model, "module", model)  # of a model that is spread over processes
    layers = inner.config.get_text_config().num_hidden_layers
    if calls != layers:
        raise ArcnbError(
            f"{calls} of the model's {layers} layers used shared-prompt attention; it cannot be packed"
        )


def shuffle_groups(batch: dict) -> dict:
    """The batch in TRL's random order of completions, with completions of a prompt brought together.

    Groups come in the order of their first completion. With one prompt it is TRL's order exactly, and the
    random generator is used as TRL does.
    """
    import torch

    permutation = torch.randperm(len(batch["prompt_ids"]))
    prompts = batch["prompt_ids"].cpu()
    first: dict[tuple, int] = {}
    rank = [
        first.setdefault(tuple(prompts[i].tolist()), place) for place, i in enumerate(permutation.tolist())
    ]
    order = permutation[torch.tensor(rank).argsort(stable=True)]

    def permute(values):
        if isinstance(values, torch.Tensor):
            return values if values.ndim == 0 else values[order.to(values.device)]
        return None if values is None else [values[i] for i in order.tolist()]

    return {name: permute(values) for name, values in batch.items()}
