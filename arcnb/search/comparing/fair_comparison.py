"""Is it better to refine than to sample again? Arms on equal budgets, with shared beginnings, paired tests.

    comparison = compare_arms(arms, tasks, first=64, budget=128)
    comparison.table()

Both arms of a pair hold the very same first predictions. Tasks are the unit: seeds of one task are averaged
before anything is tested, since they are no independent evidence. With one seed the exact sign-flip test used
here is McNemar's exact test; with several it goes on to tasks that one arm solves under more seeds than the
other. p-values of all pairs of a budget are adjusted by Holm's method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.predictions.prediction import KEY_COLUMNS
from arcnb.arc.scores.intervals import (
    holm,
    interval,
    mean_and_interval,
    resampled_weights,
    sampled_sign_flip_p,
    sign_flip_p,
)
from arcnb.arc.scores.tables import TABLE_COLUMNS, Counted, aggregate
from arcnb.arc.seeds import rng
from arcnb.errors import ArcnbError
from arcnb.search.comparing.arms import Arms

if TYPE_CHECKING:
    import pandas as pd

SIGNIFICANT = 0.05
_SHARED = [*KEY_COLUMNS, "status", "fingerprint", "n_tokens"]


@dataclass(frozen=True)
class Difference:
    """Arm b against arm a. Shares of tasks, means over seeds; low, high: 95% by bootstrap over tasks.

    only_a, only_b, p_seeds: for each seed, tasks that just one arm solves and McNemar's exact p. p_value: of
    all seeds together; p_holm: adjusted. unsolved: tasks that the shared first predictions left unsolved,
    mean over seeds; gain_a, gain_b: share of these that the arm solves, with gain_low, gain_high of b - a.
    unequal: tasks, of all seeds, with fewer completions in one arm although it had not solved their train
    pairs, as a set that was never finished has them.
    """

    budget: str
    a: str
    b: str
    n_tasks: int
    solved_a: float
    solved_b: float
    low: float
    high: float
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    p_seeds: tuple[float, ...]
    p_value: float
    unsolved: float
    gain_a: float
    gain_b: float
    gain_low: float
    gain_high: float
    completions: tuple[float, float]
    tokens: tuple[float, float]
    unequal: int = 0
    p_holm: float = 1.0

    @property
    def difference(self) -> float:
        return self.solved_b - self.solved_a

    @property
    def verdict(self) -> str:
        """Real: adjusted p below 0.05 and an interval without 0."""
        few = f" ({len(self.p_seeds)} of at least 3 seeds)" if len(self.p_seeds) < 3 else ""
        if self.unequal:
            few += f"; NOT EQUAL: {self.unequal} tasks lack completions in one arm"
        if self.p_holm < SIGNIFICANT and (self.low > 0 or self.high < 0):
            return f"real: {self.b if self.difference > 0 else self.a} solves more{few}"
        return f"not shown{few}"

    def row(self) -> dict[str, str]:
        """The line of the table."""
        return {
            "equal": self.budget,
            "a": self.a,
            "b": self.b,
            "tasks": f"{self.n_tasks}",
            "solved by a": f"{self.solved_a:.1%}",
            "solved by b": f"{self.solved_b:.1%}",
            "b - a, points": _points(self.difference, self.low, self.high),
            "only a, only b": " | ".join(f"{a}, {b}" for a, b in zip(self.only_a, self.only_b, strict=True)),
            "McNemar p of each seed": ", ".join(f"{p:.2g}" for p in self.p_seeds),
            "p": f"{self.p_value:.2g}",
            "p, adjusted": f"{self.p_holm:.2g}",
            "unsolved at first": f"{self.unsolved:.1f}",
            "of these a, b": f"{self.gain_a:.1%}, {self.gain_b:.1%}",
            "their difference, points": _points(self.gain_b - self.gain_a, self.gain_low, self.gain_high),
            "completions a task": "{:.1f}, {:.1f}".format(*self.completions),
            "tokens a task": "{:,.0f}, {:,.0f}".format(*self.tokens),
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class FairComparison:
    """differences: each arm against the first, and against the one before it, on each budget; without those
    of `unknown`, pairs that have no task in common whose test outputs are known. parts: see `parts_table`."""

    differences: list[Difference]
    parts: pd.DataFrame
    unknown: tuple[tuple[str, str], ...] = ()

    @property
    def note(self) -> str:
        """What is not compared, in a sentence; else ""."""
        pairs = ", ".join(f"{a} and {b}" for a, b in self.unknown)
        return pairs and f"Not compared, as no task's test outputs are known to both: {pairs}."

    def table(self) -> pd.DataFrame:
        """One line a pair and budget, with a verdict."""
        import pandas as pd

        return pd.DataFrame([difference.row() for difference in self.differences])

    def outcome(self) -> list[dict]:
        """Plain values for the run's manifest."""
        return [
            {**vars(one), "difference": one.difference, "verdict": one.verdict} for one in self.differences
        ]


@dataclass(frozen=True)
class PairedShares:
    """Arm b against arm a, means over tasks.

    low, high: of the difference, 95% by bootstrap over tasks. p_value: two-sided sign-flip test,
    by draws of the signs. n_more, n_fewer: tasks whose share b raises, lowers.
    """

    n_tasks: int
    a: float
    b: float
    low: float
    high: float
    p_value: float
    n_more: int
    n_fewer: int

    @property
    def difference(self) -> float:
        return self.b - self.a

    def __str__(self) -> str:
        return (
            f"{self.a:.2%} and {self.b:.2%} of {self.n_tasks} tasks' ({100 * self.difference:+.2f} points "
            f"[{100 * self.low:+.2f}, {100 * self.high:+.2f}], p {self.p_value:.2g}; more in {self.n_more} "
            f"tasks, fewer in {self.n_fewer})"
        )


def paired_shares(a: Sequence[float], b: Sequence[float], seed: int = 0) -> PairedShares:
    """Of shares (0..1), one a task, in the same order."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    difference, draws = b - a, rng(seed, "paired shares")
    low, high = interval(resampled_weights(len(difference), draws) @ difference)
    return PairedShares(
        n_tasks=len(difference),
        a=float(a.mean()),
        b=float(b.mean()),
        low=low,
        high=high,
        p_value=sampled_sign_flip_p(difference, draws),
        n_more=int((difference > 0).sum()),
        n_fewer=int((difference < 0).sum()),
    )


def compare_arms(
    arms: Arms, tasks: Counted, first: int = 64, budget: int = 128, seed: int = 0
) -> FairComparison:
    """Arms of `read_arms` compared at `budget` completions a task, and at equal generated tokens.

    first: how many predictions of each task the arms share; ArcnbError when they do not. Equal tokens:
    a task gets as many as the arm spent least on it among those that used up its completions. An arm that
    stopped because it had solved the train pairs sets no limit, but is held to that of the others.
    """
    if not 0 < first < budget:
        raise ArcnbError(f"arms: first is {first} and budget {budget}; what they share has to be a part")
    _check_shared(arms, first)
    by_completions = {
        name: [frame[frame["place"] < budget] for frame in frames] for name, frames in arms.items()
    }
    budgets = {"completions": by_completions, "tokens": _equal_tokens(by_completions, budget)}
    names = list(arms)
    pairs = dict.fromkeys([(names[0], name) for name in names[1:]] + list(pairwise(names)))
    beginning = [_solved(frame[frame["place"] < first], tasks) for frame in arms[names[0]]]
    differences: list[Difference] = []
    unknown: dict[tuple[str, str], None] = {}
    for kind, cut in budgets.items():
        of_pairs = {pair: _difference(kind, *pair, cut, beginning, tasks, seed) for pair in pairs}
        unknown |= {pair: None for pair, one in of_pairs.items() if one is None}
        found = [one for one in of_pairs.values() if one is not None]
        differences += [
            replace(one, p_holm=p, unequal=_unequal(by_completions[one.a], by_completions[one.b]))
            for one, p in zip(found, holm([one.p_value for one in found]), strict=True)
        ]
    return FairComparison(differences, parts_table(by_completions, tasks, first, seed), tuple(unknown))


def parts_table(arms: Arms, tasks: Counted, first: int, seed: int = 0) -> pd.DataFrame:
    """The columns of the aggregate table for the shared beginning, what each arm added, and all of each arm.

    "mean [low, high]": means over seeds, 95% by bootstrap over tasks; no interval where all tasks are alike.
    """
    import pandas as pd

    parts = {"initial": [frame[frame["place"] < first] for frame in next(iter(arms.values()))]}
    for name, frames in arms.items():
        parts[f"{name}: after the initial ones"] = [frame[frame["place"] >= first] for frame in frames]
        parts[f"{name}: all"] = frames
    rows = {}
    for name, frames in parts.items():
        tables = [aggregate(frame, list(tasks)) for frame in frames]
        rows[name] = {
            column: _interval(np.mean([table[column].to_numpy(float) for table in tables], axis=0), seed)
            for column in TABLE_COLUMNS
        }
    return pd.DataFrame(rows).T


def _check_shared(arms: Arms, first: int) -> None:
    (name, reference), *others = arms.items()
    for other, frames in others:
        for number, (a, b) in enumerate(zip(reference, frames, strict=True)):
            a, b = (frame.loc[frame["place"] < first, _SHARED].reset_index(drop=True) for frame in (a, b))
            a, b = (f.sort_values([*KEY_COLUMNS], kind="stable").reset_index(drop=True) for f in (a, b))
            if a.equals(b):
                continue
            odd = set(a["task_id"]) ^ set(b["task_id"])
            same = a.merge(b, how="outer", indicator=True)
            odd |= set(same.loc[same["_merge"] != "both", "task_id"])
            raise ArcnbError(
                f"arms {name!r} and {other!r} do not share their first {first} predictions (seed {number}, "
                f"{len(odd)} tasks, the first {min(odd)}); compare arms that refine the same first turns"
            )


def _equal_tokens(arms: Arms, budget: int) -> Arms:
    cut: Arms = {name: [] for name in arms}
    for seed in range(len(next(iter(arms.values())))):
        limits: dict[str, float] = {}
        for frames in arms.values():
            groups = frames[seed].groupby("task_id")["n_tokens"]
            full = groups.sum()[groups.size() >= budget]
            for task_id, tokens in full.items():
                limits[task_id] = min(tokens, limits.get(task_id, np.inf))
        for name, frames in arms.items():
            frame = frames[seed]
            spent = frame["n_tokens"].fillna(0).groupby(frame["task_id"]).cumsum()
            limit = frame["task_id"].map(limits).astype(float).fillna(np.inf)
            cut[name].append(frame[spent <= limit])
    return cut


def _unequal(a: Sequence[pd.DataFrame], b: Sequence[pd.DataFrame]) -> int:
    """Tasks of all seeds with fewer rows in one arm, none of which solves the train pairs."""
    count = 0
    for pair in zip(a, b, strict=True):
        groups = [frame.groupby(frame["task_id"].astype(object))["train_is_correct"] for frame in pair]
        ids = groups[0].size().index.union(groups[1].size().index)
        sizes = [group.size().reindex(ids, fill_value=0) for group in groups]
        solved = [group.max().reindex(ids).fillna(0) == 1 for group in groups]
        for i, j in ((0, 1), (1, 0)):
            count += int(((sizes[i] < sizes[j]) & ~solved[i]).sum())
    return count


def _solved(frame: pd.DataFrame, tasks: Counted) -> np.ndarray:
    """1 or 0 for each task, NaN where the test outputs are unknown."""
    return aggregate(frame, list(tasks))["is_correct"].to_numpy(float)


def _difference(kind, name_a, name_b, arms: Arms, beginning, tasks, seed: int) -> Difference | None:
    """None where no task's test outputs are known to both."""
    a, b = (np.array([_solved(frame, tasks) for frame in arms[name]]) for name in (name_a, name_b))
    start = np.array(beginning)
    known = ~np.isnan(a).any(axis=0) & ~np.isnan(b).any(axis=0)
    if not known.any():
        return None
    a, b, start = a[:, known], b[:, known], start[:, known]
    draws = rng(seed, "fair comparison", kind, name_a, name_b)
    weights = resampled_weights(a.shape[1], draws)
    low, high = interval(weights @ (b - a).mean(axis=0))
    open_ = 1 - np.nan_to_num(start)
    gains = [(part * open_).mean(axis=0) for part in (a, b)]
    left = open_.mean(axis=0)
    total = max(left.sum(), 1e-12)
    gain_low, gain_high = interval(weights @ (gains[1] - gains[0]) / np.maximum(weights @ left, 1e-12))
    return Difference(
        budget=kind,
        a=name_a,
        b=name_b,
        n_tasks=a.shape[1],
        solved_a=float(a.mean()),
        solved_b=float(b.mean()),
        low=low,
        high=high,
        only_a=tuple(int(n) for n in ((a == 1) & (b == 0)).sum(axis=1)),
        only_b=tuple(int(n) for n in ((b == 1) & (a == 0)).sum(axis=1)),
        p_seeds=tuple(sign_flip_p(row) for row in (b - a)),
        p_value=sign_flip_p((b - a).sum(axis=0)),
        unsolved=float(open_.sum(axis=1).mean()),
        gain_a=float(gains[0].sum() / total),
        gain_b=float(gains[1].sum() / total),
        gain_low=gain_low,
        gain_high=gain_high,
        completions=tuple(_per_task(arms[name], tasks) for name in (name_a, name_b)),
        tokens=tuple(_per_task(arms[name], tasks, "n_tokens") for name in (name_a, name_b)),
    )


def _per_task(frames: Sequence[pd.DataFrame], tasks: Counted, column: str = "") -> float:
    totals = [frame[column].sum() if column else len(frame) for frame in frames]
    return float(np.mean(totals)) / len(tasks)


def _points(value: float, low: float, high: float) -> str:
    """A difference with its interval; without one where no task tells the arms apart."""
    if low == high:
        return f"{100 * value:+.1f}"
    return f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _interval(values: np.ndarray, seed: int) -> str:
    values = values[~np.isnan(values)]
    if not len(values):
        return "unknown"
    if np.all(values == values[0]):  # no width, which would look like certainty
        return f"{values[0]:.3f}"
    weights = resampled_weights(len(values), rng(seed, "fair comparison", "study table"))
    mean, low, high = mean_and_interval(values, weights)
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"
