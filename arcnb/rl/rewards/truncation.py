"""When a completion is truncated: its last token is none that ends an answer.

TRL says so, too (`clipped_ratio`, `mask_truncated_completions`). An answer that ends exactly at
max_completion_length is whole, whatever its length says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def is_truncated(ids: Sequence[int], ends: Collection[int]) -> bool:
    """ids: of one completion. ends: the tokens that end an answer, the trainer's `eos_token_ids`."""
    return not ids or ids[-1] not in ends


def finish_reason(ids: Sequence[int], ends: Collection[int]) -> str:
    """The same as a prediction record says it."""
    return "length" if is_truncated(ids, ends) else "stop"
