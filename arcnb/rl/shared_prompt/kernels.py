"""Attention kernels that give and take softmax statistics, for arcnb.rl.shared_prompt.attention.

A kernel has `forward(query, key, value, blocks, scale) -> (out, lse)` and
`backward(grad, query, key, value, out, lse, blocks, scale) -> (dq, dk, dv)`. query, out: (T, H, D); key,
value: (S, H or a divisor of it, D); lse: float32 (H, T), the log-sum-exp of the scaled scores. `out` and
`lse` may belong to a larger attention of which `blocks` is a part.

The operators are PyTorch's own, so nothing is compiled and no package is needed beyond it:

| name  | where                 | operators                                                          |
|-------|-----------------------|--------------------------------------------------------------------|
| cpu   | CPU                   | its flash attention, run by run                                    |
| flash | CUDA, half precision  | flash attention 2 for variable lengths                             |
| cudnn | CUDA, half precision  | own part as flash; completions against prompts by cuDNN            |
| math  | anywhere, any dtype   | matrix products, in pieces of 1,024 queries                        |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from arcnb.errors import ArcnbError
from arcnb.rl.shared_prompt.packing import Blocks

if TYPE_CHECKING:
    import torch

_MATH_QUERIES = 1024
# cuDNN is a third faster on large runs, but seems to plan anew for each new length, and every step has some:
# its calls took 35 to 43% of the embedded model's steps (docs/results/log/2026-11-21_first_grpo_arms.md).
# An estimate of what pays for a plan.
_CUDNN_PAIRS = 2**24


class Kernel(NamedTuple):
    forward: object
    backward: object


def kernel_for(name: str, query: torch.Tensor, shared: Blocks | None = None) -> tuple[Kernel, Kernel]:
    """Kernels for the own segments and for the shared prefix. `auto`: by device, dtype and size."""
    if name == "auto":
        name = best_kernel(query.device.type, query.dtype, shared)
    if name not in KERNELS:
        raise ArcnbError(f"there is no attention kernel {name!r}; there are auto, {', '.join(KERNELS)}")
    return KERNELS[name]


def best_kernel(device: str, dtype: torch.dtype, shared: Blocks | None) -> str:
    """Name of the fastest exact kernel. shared: the completions' attention to their prompts, if any."""
    import torch

    if device == "cpu":
        return "cpu"
    if device != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return "math"
    pairs = [n * m for n, m in zip(shared.queries, shared.keys, strict=True)] if shared else []
    return "cudnn" if pairs and sum(pairs) >= _CUDNN_PAIRS * len(pairs) else "flash"


def _batch(x: torch.Tensor) -> torch.Tensor:
    """(T, H, D) seen as (1, H, T, D)."""
    return x.transpose(0, 1).unsqueeze(0)


def _run_by_run(forward_one, backward_one) -> Kernel:
    """A kernel from operators on one run of queries and keys: (1, H, T, D) in and out, lse (1, H, T)."""

    def forward(query, key, value, blocks, scale):
        import torch

        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        lse = torch.empty(query.size(1), query.size(0), dtype=torch.float32, device=query.device)
        for q, k in blocks.spans():
            part, part_lse = forward_one(
                _batch(query[q]), _batch(key[k]), _batch(value[k]), blocks.causal, scale
            )
            out[q] = part[0].transpose(0, 1)
            lse[:, q] = part_lse[0]
        return out, lse

    def backward(grad, query, key, value, out, lse, blocks, scale):
        import torch

        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
        for q, k in blocks.spans():
            parts = backward_one(
                _batch(grad[q]),
                _batch(query[q]),
                _batch(key[k]),
                _batch(value[k]),
                _batch(out[q]),
                lse[:, q].unsqueeze(0),
                blocks.causal,
                scale,
            )
            for whole, span, part in zip((dq, dk, dv), (q, k, k), parts, strict=True):
                whole[span] = part[0].transpose(0, 1)
        return dq, dk, dv

    return Kernel(forward, backward)


def _cpu_forward(query, key, value, causal, scale):
    import torch

    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, scale=scale
    )


def _cpu_backward(grad, query, key, value, out, lse, causal, scale):
    import torch

    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, out, lse, 0.0, causal, scale=scale
    )


def _cudnn_forward(query, key, value, causal, scale):
    import torch

    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, None, True, 0.0, causal, False, scale=scale
    )
    return out, lse.reshape(query.shape[:3])


def _cudnn_backward(grad, query, key, value, out, lse, causal, scale):
    import torch

    philox = torch.zeros((), dtype=torch.int64, device=query.device)  # without dropout, never read
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        grad,
        query,
        key,
        value,
        out,
        lse.unsqueeze(-1).contiguous(),
        philox,
        philox,
        None,
        None,
        None,
        query.size(2),
        key.size(2),
        0.0,
        causal,
        scale=scale,
    )


def _flash_forward(query, key, value, blocks, scale):
    import torch

    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        blocks.query_bounds,
        blocks.key_bounds,
        max(blocks.queries),
        max(blocks.keys),
        0.0,
        blocks.causal,
        False,
        scale=scale,
    )
    return out, lse


def _flash_backward(grad, query, key, value, out, lse, blocks, scale):
    import torch

    return torch.ops.aten._flash_attention_backward(
        grad,
        query,
        key,
        value,
        out,
        lse,
        blocks.query_bounds,
        blocks.key_bounds,
        max(blocks.queries),
        max(blocks.keys),
        0.0,
        blocks.causal,
        torch.zeros(2, dtype=torch.uint64, device=query.device),  # random state of dropout, never read
        torch.empty(0, device=query.device),
        scale=scale,
    )


def _scores(query, key, start, causal, scale):
    """(G, H, T, S) scores of (G, H, T, D) queries, the first of which is its run's number `start`."""
    import torch

    scores = (query * scale) @ key.transpose(-1, -2)
    if causal:
        places = torch.arange(key.size(-2), device=query.device)
        ahead = places > torch.arange(start, start + query.size(-2), device=query.device).unsqueeze(-1)
        scores.masked_fill_(ahead, float("-inf"))
    return scores


def _pieces(query, key):
    """(first, query piece) with heads that share a key head side by side: (key heads, sharing, T, D)."""
    grouped = query[0].unflatten(0, (key.size(1), -1))
    for start in range(0, query.size(2), _MATH_QUERIES):
        yield slice(start, start + _MATH_QUERIES), grouped[:, :, start : start + _MATH_QUERIES]


def _math_forward(query, key, value, causal, scale):
    import torch

    out = torch.empty_like(query)
    lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    with torch.autocast(query.device.type, enabled=False):
        for span, piece in _pieces(query, key):
            scores = _scores(piece.float(), key[0].unsqueeze(1).float(), span.start, causal, scale)
            piece_lse = scores.logsumexp(-1)
            probabilities = (scores - piece_lse.unsqueeze(-1)).exp_()
            out[0, :, span] = (probabilities @ value[0].unsqueeze(1).float()).flatten(0, 1).to(out.dtype)
            lse[0, :, span] = piece_lse.flatten(0, 1)
    return out, lse


def _math_backward(grad, query, key, value, out, lse, causal, scale):
    import torch

    dq = torch.empty_like(query)
    dk, dv = (torch.zeros(x.shape[1:], dtype=torch.float32, device=x.device) for x in (key, value))
    keys, values = key[0].unsqueeze(1).float(), value[0].unsqueeze(1).float()
    delta = (grad.float() * out.float()).sum(-1)
    with torch.autocast(query.device.type, enabled=False):
        for span, piece in _pieces(query, key):
            piece = piece.float()
            piece_grad, piece_lse, piece_delta = (
                x[0, :, span].float().unflatten(0, (key.size(1), -1)) for x in (grad, lse, delta)
            )
            scores = _scores(piece, keys, span.start, causal, scale)
            probabilities = (scores - piece_lse.unsqueeze(-1)).exp_()
            d_scores = (
                (piece_grad @ values.transpose(-1, -2) - piece_delta.unsqueeze(-1)) * probabilities * scale
            )
            dq[0, :, span] = (d_scores @ keys).flatten(0, 1).to(dq.dtype)
            dk += (d_scores.transpose(-1, -2) @ piece).sum(1)
            dv += (probabilities.transpose(-1, -2) @ piece_grad).sum(1)
    return dq, dk.unsqueeze(0).to(key.dtype), dv.unsqueeze(0).to(value.dtype)


_CPU = _run_by_run(_cpu_forward, _cpu_backward)
_CUDNN = _run_by_run(_cudnn_forward, _cudnn_backward)
_FLASH = Kernel(_flash_forward, _flash_backward)
_MATH = _run_by_run(_math_forward, _math_backward)

# name -> kernels for (own segments, shared prefix); runs of the former are many and short
KERNELS = {"cpu": (_CPU, _CPU), "flash": (_FLASH, _FLASH), "cudnn": (_FLASH, _CUDNN), "math": (_MATH, _MATH)}
