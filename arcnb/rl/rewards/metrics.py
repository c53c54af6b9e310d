"""Numbers about one batch of rollouts that reveal learning and collapse: reward, truncation, repetition.

Names and formulas of `rollout_metrics` are those of ironbar/arc25, so curves can be laid side by side.
Values of a group (truncated or not) exist only when the group is not empty, hence averages over steps of such
a name are conditional means. `batch_metrics` adds what arc25 lacks: quantiles of the reward, verdicts of
the executor by class, exceptions by name, groups without spread, repetition over all completions, unique
outputs (of all completions, and of those that solve nothing), cheats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from arcnb.programs.executor.limits import STATUSES
from arcnb.rl.rewards.rollout import Rollout

QUANTILES = (10, 25, 50, 75, 90)  # percent, of the reward
NGRAM_SIZES = (3, 4)
# The commonest exceptions of programs for ARC tasks. Programs raise exceptions of any name, their own too: a
# log of these alone, every one each time, stays narrow, and means over steps are shares again.
ERRORS = (
    "AssertionError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "ModuleNotFoundError",
    "NameError",
    "TypeError",
    "UnboundLocalError",
    "ValueError",
    "ZeroDivisionError",
)
OTHER = "other"
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
    truncated: Sequence[bool],
) -> dict[str, list[float]]:
    """{name: values} for one batch: one value a name, or one a completion of its group.

    `solved`, `memory_errors` and `truncated` are flags of the judged predictions, not read off the reward.
    """
    lengths = [len(ids) for ids in completion_ids]
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


def batch_metrics(
    verdicts: Sequence[tuple[str, str | None]],
    rollouts: Sequence[Rollout],
    rewards: Sequence[float],
    rows: Sequence[int],
) -> dict[str, float]:
    """{name: value} for the completions of one step, of all processes. verdicts: the executor's status and
    the fingerprint of the outputs of each; rows: which row, hence group, each belongs to.

    `status/...` are shares of completions by the executor's verdict, every verdict each time, so that their
    means over steps are shares again. `unique_wrong_outputs` is what the collapse guard looks at: distinct
    outputs / completions, of those in a group that do not solve their task, absent where all do. Right ones
    agree, so that the same of all completions falls while a policy learns.
    """
    solved = [rollout.solved for rollout in rollouts]
    memory = [status == "memory" for status, _ in verdicts]
    ids = [rollout.tokens for rollout in rollouts]
    truncated = [rollout.truncated for rollout in rollouts]
    lists = rollout_metrics(rewards, ids, solved, memory, truncated)
    values = {name: sum(numbers) / len(numbers) for name, numbers in lists.items()}
    for percent in QUANTILES:
        values[f"reward_q{percent}"] = float(np.percentile(rewards, percent))
    n = len(verdicts)
    statuses = Counter(status for status, _ in verdicts)
    values |= {f"status/{status}": statuses[status] / n for status in STATUSES}
    values["unique_3gram_ratio"] = _mean(
        ngram_statistics(t, 3)["unique_ngram_ratio"] for t in ids if len(t) > 2
    )
    values["unique_tokens_ratio"] = _mean(len(set(t)) / len(t) for t in ids if t)
    values["cheating_ratio"] = sum(rollout.cheating is not None for rollout in rollouts) / n
    groups = groups_of(rows).values()
    flat = [max(rewards[i] for i in g) - min(rewards[i] for i in g) < 1e-9 for g in groups]
    values["groups_without_spread"] = sum(flat) / len(flat)
    values["groups_all_solved"] = _mean(all(solved[i] for i in g) for g in groups)
    values["unique_outputs"] = _mean(_unique_outputs(verdicts, g) for g in groups)
    wrong = [[i for i in g if not solved[i]] for g in groups]
    if any(wrong):
        values["unique_wrong_outputs"] = _mean(_unique_outputs(verdicts, g) for g in wrong if g)
    return values


def guided_metrics(solved: Sequence[bool], lines: Sequence[int]) -> dict[str, float]:
    """{"guided/...": value}: share of completions that began with lines of a known solution, how many lines,
    and the shares of these and of the free ones that solve their task, absent where there are none."""
    guided = [right for right, n in zip(solved, lines, strict=True) if n]
    free = [right for right, n in zip(solved, lines, strict=True) if not n]
    values = {"guided/ratio": len(guided) / len(solved)}
    if guided:
        values |= {"guided/solved": _mean(guided), "guided/lines": sum(lines) / len(guided)}
    return values | ({"guided/free_solved": _mean(free)} if free else {})


def groups_of(rows: Sequence[int]) -> dict[int, list[int]]:
    """row -> places of its completions, in the order in which rows first appear."""
    groups: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row, []).append(i)
    return groups


def error_classes(verdicts: Sequence[tuple[str, str | None]]) -> dict[str, float]:
    """{"error/NAME": share of all completions}; together they are `status/error`.

    verdicts: the executor's status and the name of the exception, of each completion. Other verdicts than
    "error" are classes of their own, `status/...`, whatever exception came with them.
    """
    raised = Counter(name if name in ERRORS else OTHER for status, name in verdicts if status == "error")
    return {f"error/{name}": raised[name] / len(verdicts) for name in (*ERRORS, OTHER)}


def _unique_outputs(verdicts: Sequence[tuple[str, str | None]], members: Sequence[int]) -> float:
    return len({verdicts[i][1] for i in members} - {None}) / len(members)


def _mean(values) -> float:
    values = [float(value) for value in values]
    return sum(values) / len(values) if values else 0.0


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
