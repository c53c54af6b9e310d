"""Groups of completions as packed rows: every prompt once, its completions behind it.

A row of one group of k completions is `[prefix, completion 1, ..., completion k]`; of several groups, all
prefixes and then all completions. The prefix is the prompt without its last token, and a completion's
segment is that last token followed by the completion without its own last token: the segment's n-th
position then predicts the completion's n-th token, so every position has at most one label and no token
is run whose prediction nobody asks for.

    rows = pack(input_ids, attention_mask, n_completion=completion_ids.size(1), token_budget=32768)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError

if TYPE_CHECKING:
    import torch

# Bounds what a pass through one layer needs at once; at 8B shape about 0.3 MB a token.
TOKEN_BUDGET = 65536


@dataclass(frozen=True)
class Blocks:
    """Attention of consecutive runs of queries to consecutive runs of keys, run i to run i.

    queries, keys: lengths of the runs. causal: a query sees its run's keys up to its own place (runs are
    equally long then). query_bounds, key_bounds: the runs' starts and the last end, int32 on the device.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    causal: bool
    query_bounds: torch.Tensor
    key_bounds: torch.Tensor

    @classmethod
    def of(cls, queries, keys, causal: bool, device) -> Blocks:
        import torch

        def bounds(lengths):
            return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)

        queries, keys = tuple(queries), tuple(keys)
        return cls(queries, keys, causal, bounds(queries), bounds(keys))

    def spans(self):
        """(query slice, key slice) of each run."""
        query_start = key_start = 0
        for n_queries, n_keys in zip(self.queries, self.keys, strict=True):
            yield slice(query_start, query_start + n_queries), slice(key_start, key_start + n_keys)
            query_start += n_queries
            key_start += n_keys


@dataclass
class PrefixLayout:
    """Who sees whom in a packed row, in two parts that together are the whole attention.

    own: causal attention inside every segment (prefixes and completions).
    shared: the completions' positions (`n_prefix` onwards) to their group's prefix; None without completions.
    kernel: name of the attention kernel, see arcnb.rl.shared_prompt.attention.
    calls: how many attention layers have used this layout, so that a model that loses it is noticed.
    """

    n_prefix: int
    longest: int
    own: Blocks
    shared: Blocks | None
    kernel: str = "auto"
    calls: int = field(default=0, compare=False)


@dataclass(frozen=True)
class PackedRow:
    """Model inputs of one packed row, each int64 of shape (1, T), on the batch's device.

    labels: the token that a position predicts, -100 in prefixes. targets: shape (T - n_prefix,), where each
    completion position belongs in the flattened (B, C) matrix of completion tokens.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    labels: torch.Tensor
    targets: torch.Tensor
    layout: PrefixLayout


@dataclass(frozen=True)
class _Group:
    """Completions (row of the batch, token ids without padding) of one prompt (token ids)."""

    prompt: list[int]
    completions: list[tuple[int, list[int]]]

    @property
    def prefix(self) -> int:
        return len(self.prompt) - 1

    @property
    def tokens(self) -> int:
        return self.prefix + sum(len(ids) for _, ids in self.completions)


def pack(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    n_completion: int,
    token_budget: int | None = None,
    kernel: str = "auto",
) -> list[PackedRow]:
    """The rows for a batch as TRL builds it: prompts padded on the left, completions on the right.

    input_ids, attention_mask: (B, P + C), C = n_completion. Prompts with the same tokens form a group,
    wherever they are in the batch; completions without a token are left out.
    token_budget: most tokens of a row; a larger group is spread over several rows and its prompt repeated
    in each. A row holds at least a prompt and one completion, whatever the budget. None: one row.
    A batch without any completion token gives one row of one token, to keep a graph to differentiate.
    Raises ArcnbError: a prompt of fewer than two tokens, a completion with masked tokens inside.
    """
    groups = _groups(input_ids, attention_mask, n_completion)
    device = input_ids.device
    rows, current, used = [], [], 0
    for part in chain.from_iterable(_split(group, token_budget) for group in groups):
        if current and token_budget is not None and used + part.tokens > token_budget:
            rows.append(current)
            current, used = [], 0
        current.append(part)
        used += part.tokens
    if current:
        rows.append(current)
    if not rows:
        first = input_ids[:1, -n_completion - 1].tolist()
        rows = [[_Group([*first, 0], [])]]
    return [_row(parts, n_completion, kernel, device) for parts in rows]


def _groups(input_ids, attention_mask, n_completion: int) -> list[_Group]:
    ids, mask = input_ids.cpu(), attention_mask.cpu().bool()
    n_prompt = ids.size(1) - n_completion
    groups: dict[tuple[int, ...], _Group] = {}
    for row in range(ids.size(0)):
        prompt = ids[row, :n_prompt][mask[row, :n_prompt]].tolist()
        length = int(mask[row, n_prompt:].sum())
        if not mask[row, n_prompt : n_prompt + length].all():
            raise ArcnbError(f"completion {row} of the batch has masked tokens before its end")
        if len(prompt) < 2:
            raise ArcnbError(f"prompt {row} of the batch has {len(prompt)} tokens; at least 2 are needed")
        if length:
            group = groups.setdefault(tuple(prompt), _Group(prompt, []))
            group.completions.append((row, ids[row, n_prompt : n_prompt + length].tolist()))
    return list(groups.values())


def _split(group: _Group, token_budget: int | None):
    """The group as parts within the budget, about equally long, in the order of its completions."""
    if token_budget is None or group.tokens <= token_budget:
        yield group
        return
    total = group.tokens - group.prefix
    room = max(token_budget - group.prefix, 1)
    share = total / -(-total // room)
    part, used = [], 0
    for completion in group.completions:
        length = len(completion[1])
        if part and (used >= share or used + length > room):
            yield _Group(group.prompt, part)
            part, used = [], 0
        part.append(completion)
        used += length
    yield _Group(group.prompt, part)


def _row(groups: list[_Group], n_completion: int, kernel: str, device) -> PackedRow:
    import torch

    ids, positions, labels, targets = [], [], [], []
    for group in groups:
        ids += group.prompt[:-1]
        positions += range(group.prefix)
    n_prefix = len(ids)
    for group in groups:
        for row, completion in group.completions:
            ids += [group.prompt[-1], *completion[:-1]]
            positions += range(group.prefix, group.prefix + len(completion))
            labels += completion
            targets += range(row * n_completion, row * n_completion + len(completion))
    prefixes = [group.prefix for group in groups]
    lengths = [[len(completion) for _, completion in group.completions] for group in groups]
    segments = [*prefixes, *chain.from_iterable(lengths)]
    layout = PrefixLayout(
        n_prefix=n_prefix,
        longest=max(positions) + 1,
        own=Blocks.of(segments, segments, True, device),
        shared=Blocks.of(map(sum, lengths), prefixes, False, device) if labels else None,
        kernel=kernel,
    )

    def tensor(values):
        return torch.tensor(values, dtype=torch.int64, device=device)

    return PackedRow(
        input_ids=tensor([ids]),
        position_ids=tensor([positions]),
        labels=tensor([[-100] * n_prefix + labels]),
        targets=tensor(targets),
        layout=layout,
    )
