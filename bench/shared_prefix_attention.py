"""Ways to compute the attention of a packed row, one layer, forward and backward: milliseconds and error.

    python bench/shared_prefix_attention.py                                     # embedded shape, CPU
    python bench/shared_prefix_attention.py --device cuda --shape 8b --prompts 3800 8600

| way             | what                                                                                  |
|-----------------|---------------------------------------------------------------------------------------|
| cpu flash cudnn math | arcnb's merged attention with that kernel                                        |
| flex            | PyTorch's flex attention with a block mask                                            |
| concatenated    | prompt keys copied for every completion, SDPA aligned to the lower right              |
| prefix_grouper  | the package with the same SDPA; where it is installed                                 |
| unshared        | k whole sequences, causal SDPA: what a trainer does that does not share prompts       |

Error: largest relative error (norms) of output and gradients against `math` in float32. Unshared computes
another function's gradients (k prompts) and has none.
"""

import argparse
import statistics
import time

import torch

from arcnb.rl.shared_prompt.attention import attend
from arcnb.rl.shared_prompt.kernels import KERNELS
from arcnb.rl.shared_prompt.packing import PrefixLayout, pack

# heads, key heads, head size, prompt, completions, tokens
SHAPES = {
    "embedded": (9, 3, 64, 2000, 16, 128),
    "8b": (32, 8, 128, 3800, 32, 1024),
    "tiny": (4, 2, 16, 50, 3, 20),
}


def merged(kernel: str):
    def run(query, key, value, layout, scale):
        layout.kernel = kernel
        return attend(query, key, value, layout, scale)

    return run


def whole(x: torch.Tensor) -> torch.Tensor:
    """(T, H, D) as (1, H, T, D)."""
    return x.transpose(0, 1).unsqueeze(0)


def token_segments(layout: PrefixLayout, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each token, the segment and the group; int32 (T,)."""
    n_groups = len(layout.shared.keys)
    segments = torch.repeat_interleave(torch.tensor(layout.own.queries))
    groups = torch.cat(
        [
            torch.repeat_interleave(torch.tensor(layout.own.queries[:n_groups])),
            torch.repeat_interleave(torch.tensor(layout.shared.queries)),
        ]
    )
    return segments.int().to(device), groups.int().to(device)


def flex_block_mask(layout: PrefixLayout, device):
    """The row's attention as a block mask of flex attention."""
    from torch.nn.attention.flex_attention import create_block_mask

    segment, group = token_segments(layout, device)
    n = layout.n_prefix

    def allowed(b, h, q, k):
        own = (segment[q] == segment[k]) & (q >= k)
        return own | ((q >= n) & (k < n) & (group[q] == group[k]))

    total = len(segment)
    return create_block_mask(allowed, None, None, total, total, device=device)


def make_flex():
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    masks = {}

    def run(query, key, value, layout, scale):
        if id(layout) not in masks:
            masks[id(layout)] = flex_block_mask(layout, query.device)
        out = compiled(
            whole(query), whole(key), whole(value), block_mask=masks[id(layout)], scale=scale, enable_gqa=True
        )
        return out[0].transpose(0, 1)

    return run


def concatenated(query, key, value, layout, scale):
    """For one group whose completions are equally long."""
    from torch.nn.attention.bias import causal_lower_right

    n, (k, length) = layout.n_prefix, (len(layout.own.queries) - 1, layout.own.queries[-1])
    sdpa = torch.nn.functional.scaled_dot_product_attention
    prefix = sdpa(
        whole(query[:n]), whole(key[:n]), whole(value[:n]), is_causal=True, scale=scale, enable_gqa=True
    )[0].transpose(0, 1)
    share = query.size(1) // key.size(1)

    def stacked(x):
        own = x[n:].unflatten(0, (k, length)).transpose(1, 2)
        both = torch.cat([x[:n].transpose(0, 1).expand(k, -1, -1, -1), own], dim=2)
        return both.repeat_interleave(share, dim=1)

    queries = query[n:].unflatten(0, (k, length)).transpose(1, 2)
    bias = causal_lower_right(length, n + length)
    rest = sdpa(queries, stacked(key), stacked(value), attn_mask=bias, scale=scale)
    return torch.cat([prefix, rest.transpose(1, 2).flatten(0, 1)])


def make_prefix_grouper():
    from prefix_grouper import PrefixGrouper
    from torch.nn.attention.bias import causal_lower_right

    def sdpa(q, k, v, mask, scale):  # the mask is of padding, and there is none
        share = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        bias = causal_lower_right(q.size(2), k.size(2))
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, scale=scale
        ).transpose(1, 2)

    groupers = {}

    def run(query, key, value, layout, scale):
        if id(layout) not in groupers:
            groupers[id(layout)] = PrefixGrouper([list(layout.own.queries)], device=query.device)
        return groupers[id(layout)].forward(sdpa, whole(query), whole(key), whole(value), scale)[0]

    return run


def unshared(query, key, value, layout, scale):
    n, (k, length) = layout.n_prefix, (len(layout.own.queries) - 1, layout.own.queries[-1])

    def sequences(x):
        own = x[n:].unflatten(0, (k, length)).transpose(1, 2)
        return torch.cat([x[:n].transpose(0, 1).expand(k, -1, -1, -1), own], dim=2)

    out = torch.nn.functional.scaled_dot_product_attention(
        sequences(query), sequences(key), sequences(value), is_causal=True, scale=scale, enable_gqa=True
    )
    return out[:, :, n:].transpose(1, 2).flatten(0, 1)


def ways(device: str) -> dict:
    """name -> maker of the function, for this device."""
    kernels = ["flash", "cudnn"] if device == "cuda" else ["cpu"]
    found = {name: lambda name=name: merged(name) for name in kernels if name in KERNELS}
    found |= {"flex": make_flex} if device == "cuda" else {}
    return found | {
        "concatenated": lambda: concatenated,
        "prefix_grouper": make_prefix_grouper,
        "unshared": lambda: unshared,
    }


def inputs(shape, device: str, dtype, seed: int = 0):
    """(query, key, value, output's gradient, layout) of one group of equally long completions."""
    heads, key_heads, size, prompt, completions, tokens = shape
    generator = torch.Generator(device).manual_seed(seed)
    ids = torch.ones(completions, prompt + tokens, dtype=torch.int64)
    row = pack(ids.to(device), torch.ones_like(ids).to(device), tokens)[0]
    total = row.input_ids.size(1)

    def random(n):
        return torch.randn(total, n, size, generator=generator, device=device, dtype=torch.float32).to(dtype)

    query, key, value = (random(n).requires_grad_() for n in (heads, key_heads, key_heads))
    return query, key, value, random(heads), row.layout


def run_once(function, query, key, value, grad, layout) -> tuple:
    """(output, three gradients)."""
    out = function(query, key, value, layout, query.size(-1) ** -0.5)
    return out.detach(), *torch.autograd.grad(out, (query, key, value), grad[-len(out) :])


def clock(function, device: str, seconds: float, most: int = 20) -> float:
    """Median milliseconds of calls after a first one, for about `seconds`."""
    times, began = [], time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - began < seconds and len(times) < most):
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def relative_errors(found, expected) -> list[float]:
    return [((a.float() - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)]


def measure(make, batch, truth, device: str, seconds: float, compare: bool) -> str:
    """Forward and forward-and-backward milliseconds and the error of one way, as a table's columns."""
    function = make()
    found = run_once(function, *batch)
    error = f"{max(relative_errors(found, truth)):.1e}" if compare else ""
    del found

    def forward():
        with torch.no_grad():
            function(*batch[:3], batch[4], batch[0].size(-1) ** -0.5)

    times = [clock(forward, device, seconds), clock(lambda: run_once(function, *batch), device, seconds)]
    return f"{times[0]:12.2f}{times[1]:12.2f}{error:>12}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=list(SHAPES), default="embedded")
    parser.add_argument("--prompts", nargs="+", type=int)
    parser.add_argument("--seconds", type=float, default=2, help="for timing one way")
    args = parser.parse_args()
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    for prompt in args.prompts or [SHAPES[args.shape][3]]:
        heads, key_heads, size, _, completions, tokens = SHAPES[args.shape]
        batch = inputs((heads, key_heads, size, prompt, completions, tokens), args.device, dtype)
        exact = [x.detach().float().requires_grad_() for x in batch[:3]]
        truth = run_once(merged("math"), *exact, batch[3].float(), batch[4])
        print(
            f"\nheads {heads}/{key_heads} of {size}, prompt {prompt}, {completions} completions of {tokens}"
        )
        print(f"{'way':16}{'forward ms':>12}{'both ms':>12}{'error':>12}")
        for name, make in ways(args.device).items():
            try:
                line = measure(make, batch, truth, args.device, args.seconds, compare=name != "unshared")
            except Exception as problem:  # a way that is not installed or does not run here is a result too
                line = f"  {type(problem).__name__}: {str(problem).splitlines()[0][:80]}"
            print(f"{name:16}{line}", flush=True)


if __name__ == "__main__":
    main()
