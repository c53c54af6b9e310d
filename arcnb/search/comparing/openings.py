"""The sentences and the picture that pages about predictions open with (arcnb.lab.opening)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.intervals import share_text
from arcnb.arc.scores.tables import aggregate
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.search.comparing.showcase import Showcase, highlights
from arcnb.search.learning.plan import ARMS

if TYPE_CHECKING:
    import pandas as pd

MOST = 3  # sets that get a sentence of their own


def solved_opening(
    frames: Mapping[str, pd.DataFrame], sets: Mapping[str, PredictionSet], tasks: TaskSet, said: str = ""
) -> tuple[str, Showcase]:
    """(how many tasks are solved by which set, tasks that the set with the most solves and misses).

    frames: what was read of the sets, by the same names. said: what to say instead of how many are solved.
    """
    counts = {name: _solved(frame, tasks) for name, frame in frames.items()}
    best = max(counts, key=lambda name: counts[name][0])
    told = sorted(counts, key=lambda name: -counts[name][0])[:MOST] if len(counts) > MOST else list(counts)
    by = {name: f" by {ARMS.get(name, name)}" if len(counts) > 1 else "" for name in told}
    texts = [share_text(*counts[name][:2], "tasks") + by[name] for name in told]
    rest = f", no more by {len(counts) - len(told)} other sets" if len(told) < len(counts) else ""
    known = any(known for _, _, known in counts.values())
    how = "train and test pairs by one program" if known else "train pairs only; test outputs are unknown"
    if all(frame.empty for frame in frames.values()):
        said = said or "There are no predictions yet."
    missed = _missed(next(iter(frames.values())), tasks) if len(frames) == 1 and known else ""
    return said or f"Solved: {', '.join(texts)}{rest}; {how}.{missed}", highlights(tasks, sets[best])


def _missed(frame: pd.DataFrame, tasks: TaskSet) -> str:
    """Of the tasks that no program solves, how far their best programs came; "" where there is none."""
    solved = aggregate(frame, list(tasks))["is_correct"]
    if not (solved == 0).any():
        return ""
    best = frame.groupby(frame["task_id"].astype(object))["train_correct_grids"].max()
    best = best.reindex(solved.index[solved == 0]).fillna(0)
    ends = {"all": best == 1, "some": best.between(0, 1, "neither"), "none": best == 0}
    told = ", ".join(f"{much} in {int(of.sum())}" for much, of in ends.items() if of.any())
    which = f"{len(best)} {'others' if (solved == 1).any() else 'tasks'}"
    return f" Train pairs that the best program gets right: {told} of the {which}."


def _solved(frame: pd.DataFrame, tasks: TaskSet) -> tuple[int, int, bool]:
    """(tasks solved, of how many, whether test outputs are known; without any, train pairs count)."""
    table = aggregate(frame, list(tasks))
    known = bool(table["is_correct"].notna().any())
    column = table["is_correct" if known else "train_is_correct"].dropna()
    return int(column.sum()), len(column), known
