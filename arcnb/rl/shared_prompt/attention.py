"""Attention over a packed row: a prompt's tokens are keys for all its completions, without copies of them.

A completion position attends to its own segment (causally) and to its prompt. The two parts are computed
apart and merged by their softmax statistics: with l_i the log-sum-exp of part i, l = log(sum_i exp(l_i)) and
out = sum_i exp(l_i - l) out_i. The gradient needs no merging: flash attention's backward recomputes the
probabilities as exp(score - l), so each part's backward called with the merged output and the merged l
gives exactly its share of the whole gradient.

Installed as transformers' attention implementation `arcnb_shared_prefix` (`register`), which is plain SDPA
for calls without a layout, such as generation:

    register()
    model.set_attn_implementation(NAME)
    model(input_ids=row.input_ids, position_ids=row.position_ids, shared_prefix=row.layout, ...)
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError
from arcnb.rl.shared_prompt.kernels import kernel_for
from arcnb.rl.shared_prompt.packing import PrefixLayout

if TYPE_CHECKING:
    import torch

NAME = "arcnb_shared_prefix"
# What models hand to attention beyond plain scaled dot products; the merge is not exact with these.
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


def register() -> None:
    """Make NAME an attention implementation of transformers, with the masks of `sdpa`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attention_forward(
    module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    shared_prefix: PrefixLayout | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. query: (1, H, T, D); key, value: (1, H or fewer, T, D).

    Returns (1, T, H, D). The mask is not looked at when a layout is given.
    Raises ArcnbError for dropout, a sliding window shorter than the sequences, soft caps, sinks.
    """
    if shared_prefix is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    _check(kwargs, dropout, shared_prefix)
    shared_prefix.calls += 1
    scale = query.size(-1) ** -0.5 if scaling is None else scaling
    query, key, value = (x[0].transpose(0, 1) for x in _same_dtype(query, key, value))
    return attend(query, key, value, shared_prefix, scale).unsqueeze(0), None


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: PrefixLayout, scale: float
) -> torch.Tensor:
    """query: (T, H, D); key, value: (T, H or a divisor of it, D). Returns (T, H, D), differentiable."""
    return _merged_attention().apply(query, key, value, layout, scale)


@cache
def _merged_attention():
    import torch

    class MergedAttention(torch.autograd.Function):
        """Own segment and shared prefix, merged; see the module's docstring for why backward is exact."""

        @staticmethod
        def forward(ctx, query, key, value, layout, scale):
            own, shared = kernel_for(layout.kernel, query, layout.shared)
            out, lse = own.forward(query, key, value, layout.own, scale)
            if layout.shared is not None:
                n = layout.n_prefix
                prefix_out, prefix_lse = shared.forward(query[n:], key[:n], value[:n], layout.shared, scale)
                own_lse = lse[:, n:]
                weight = torch.sigmoid(own_lse - prefix_lse).t().unsqueeze(-1)
                out[n:] = torch.lerp(prefix_out.float(), out[n:].float(), weight)
                lse[:, n:] = torch.logaddexp(own_lse, prefix_lse)
            ctx.save_for_backward(query, key, value, out, lse)
            ctx.layout, ctx.scale, ctx.kernels = layout, scale, (own, shared)
            return out

        @staticmethod
        def backward(ctx, grad):
            query, key, value, out, lse = ctx.saved_tensors
            layout, scale = ctx.layout, ctx.scale
            own, shared = ctx.kernels
            grad = grad.contiguous()
            dq, dk, dv = own.backward(grad, query, key, value, out, lse, layout.own, scale)
            if layout.shared is not None:
                n = layout.n_prefix
                prefix_dq, prefix_dk, prefix_dv = shared.backward(
                    grad[n:],
                    query[n:],
                    key[:n],
                    value[:n],
                    out[n:],
                    lse[:, n:].contiguous(),
                    layout.shared,
                    scale,
                )
                dq[n:] += prefix_dq
                dk[:n] += prefix_dk
                dv[:n] += prefix_dv
            return dq, dk, dv, None, None

    return MergedAttention


def _same_dtype(query, key, value):
    """In one dtype: under autocast the rotary embedding leaves query and key wider than value."""
    import torch

    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else value.dtype
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _check(kwargs: dict, dropout: float, layout: PrefixLayout) -> None:
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ArcnbError(f"shared-prompt attention does not support the model's {name}")
    window = kwargs.get("sliding_window")
    if window is not None and layout.longest > window:
        raise ArcnbError(
            f"shared-prompt attention does not support sequences of {layout.longest} tokens "
            f"with the model's sliding_window={window}"
        )
    if dropout:
        raise ArcnbError(f"shared-prompt attention does not support attention_dropout={dropout}")
