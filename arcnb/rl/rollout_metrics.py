"""Numbers about one batch of rollouts that reveal learning and collapse: reward, truncation, repetition.

Names and formulas are those of the reference study, so curves can be laid side by side. Values of a
group (truncated or not) exist only when the group is not empty, hence averages over steps of such a
name are conditional means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

NGRAM_SIZES = (3, 4)
LOGGED = ("unique_ngram_ratio", "most_repeated_ngram_count", "most_repeated_ngram_frequency")


def ngram_statistics(tokens: Sequence[int], n: int) -> dict[str, float]:
    """How many n-grams, how many distinct, their share, count and frequency of the commonest.

    All 0 for fewer than n tokens.
    """
    total = max(len(tokens) - n + 1, 0)
    counts = Counter(zip(*(tokens[i:] for i in range(n)), strict=False)) if total else Counter()
    commonest = max(counts.values(), default=0)
    return {
        "n": n,
        "total_ngrams": total,
        "unique_ngrams": len(counts),
        "unique_ngram_ratio": len(counts) / total if total else 0.0,
        "most_repeated_ngram_count": commonest,
        "most_repeated_ngram_frequency": commonest / total if total else 0.0,
    }


def rollout_metrics(
    rewards: Sequence[float],
    completion_ids: Sequence[Sequence[int]],
    solved: Sequence[bool],
    memory_errors: Sequence[bool],
    max_completion_length: int,
) -> dict[str, list[float]]:
    """{name: values} for one batch: one value a name, or one a completion of its group.

    A completion is truncated when it has max_completion_length tokens. `solved` and `memory_errors`
    are flags of the judged predictions, not read off the reward.
    """
    lengths = [len(ids) for ids in completion_ids]
    truncated = [length >= max_completion_length for length in lengths]
    n = len(rewards)
    values: dict[str, list[float]] = {
        "reward_max": [max(rewards)],
        "reward_min": [min(rewards)],
        "truncated_completions_ratio": [sum(truncated) / n],
        "solved_tasks_ratio": [sum(solved) / n],
        "memory_errors_ratio": [sum(memory_errors) / n],
        "is_solved_task": [float(any(solved))],
    }
    solved_lengths = [length for length, right in zip(lengths, solved, strict=True) if right]
    if solved_lengths:
        values["solved_tasks_completion_length_mean"] = [sum(solved_lengths) / len(solved_lengths)]
        values["solved_tasks_completion_length_max"] = [max(solved_lengths)]
    for group, member in (("truncated_completions", True), ("non_truncated_completions", False)):
        chosen = [i for i in range(n) if truncated[i] is member]
        if chosen:
            values |= _group_metrics(group, [rewards[i] for i in chosen], [completion_ids[i] for i in chosen])
    return values


def _group_metrics(
    group: str, rewards: list[float], completions: list[Sequence[int]]
) -> dict[str, list[float]]:
    values = {
        f"{group}_reward_mean": [sum(rewards) / len(rewards)],
        f"{group}_reward_max": [max(rewards)],
        f"{group}_unique_tokens_ratio": [len(set(ids)) / len(ids) if ids else 0.0 for ids in completions],
    }
    for size in NGRAM_SIZES:
        statistics = [ngram_statistics(ids, size) for ids in completions]
        for name in LOGGED:
            values[f"{group}_ngram_{size}_{name}"] = [row[name] for row in statistics]
    return values
