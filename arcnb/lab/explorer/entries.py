"""What an explorer shows: tasks with what they can be filtered by, and their best predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from arcnb.arc.grids import MAX_SIDE
from arcnb.arc.predictions.prediction import KEY_COLUMNS, Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.tables import RANKING, best_first, solving
from arcnb.arc.tasks.task import Task


@dataclass(frozen=True)
class Entry:
    """A task and what it is filtered by.

    side: its longest, cells. colors: the values that occur. rate: share of its predictions that solve it;
    None without predictions, or where the test outputs are unknown. predictions: (name of the set,
    prediction), best first. changed: whether there are predictions of another version of it, which are left
    out.
    """

    task: Task
    side: int
    colors: frozenset[int]
    rate: float | None = None
    predictions: tuple[tuple[str, Prediction], ...] = ()
    changed: bool = False


@dataclass(frozen=True)
class TaskFilter:
    """Which entries are wanted; the default is all of them.

    text: part of the task id. sides: shortest and longest `side`. colors: all of them must occur. rates:
    lowest and highest solve rate; a task of unknown rate passes the full range only. predicted: only tasks
    with predictions.
    """

    text: str = ""
    sides: tuple[int, int] = (1, MAX_SIDE)
    colors: frozenset[int] = field(default_factory=frozenset)
    rates: tuple[float, float] = (0.0, 1.0)
    predicted: bool = False

    def __call__(self, entry: Entry) -> bool:
        known = entry.rate is not None
        return (
            self.text.strip().lower() in entry.task.task_id.lower()
            and self.sides[0] <= entry.side <= self.sides[1]
            and self.colors <= entry.colors
            and (bool(entry.predictions) or not self.predicted)
            and (self.rates[0] <= entry.rate <= self.rates[1] if known else self.rates == (0.0, 1.0))
        )


def entries(tasks: Iterable[Task], sets: Mapping[str, PredictionSet] | None = None) -> list[Entry]:
    """An entry a task, in order, with the 8 best predictions of it in all sets together; of predictions with
    the same outputs the first. Predictions of another version of a task do not count; of one whose test
    outputs were hidden they do."""
    tasks = {task.task_id: task for task in tasks}
    rates, best, changed = _best(sets or {}, {id_: task.fingerprints for id_, task in tasks.items()})
    return [
        Entry(task, *_facts(task), rates.get(id_), tuple(best.get(id_, ())), id_ in changed)
        for id_, task in tasks.items()
    ]


def _facts(task: Task) -> tuple[int, frozenset[int]]:
    colors = frozenset(value for grid in task.grids for value in set(grid.flat))
    return max(max(grid.shape) for grid in task.grids), colors


def _best(
    sets: Mapping[str, PredictionSet], versions: Mapping[str, tuple[str, str]]
) -> tuple[dict[str, float], dict[str, list[tuple[str, Prediction]]], set[str]]:
    """(rates, best predictions, ids of the tasks of which there are predictions of another version)."""
    import pandas as pd

    columns = [*KEY_COLUMNS, "task_fingerprint", "status", "fingerprint", *RANKING]
    frames = [one.read(columns=columns, task_ids=versions).assign(set=name) for name, one in sets.items()]
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return {}, {}, set()
    frame = pd.concat(frames, ignore_index=True)
    answered = zip(frame["task_id"], frame["task_fingerprint"], strict=True)
    same = pd.Series([version in versions[id_] for id_, version in answered], dtype=bool)
    changed, frame = set(frame["task_id"][~same]), frame[same]
    of_task = frame["task_id"].astype(object)
    known = frame["test_is_correct"].notna().groupby(of_task).any()
    rates = solving(frame).groupby(of_task).mean()[known].to_dict()
    ranked = best_first(frame).sort_values("status", key=lambda status: status != "ok", kind="stable")
    repeated = ranked.duplicated(["task_id", "fingerprint"]) & ranked["fingerprint"].notna()
    chosen = ranked[~repeated].groupby("task_id", sort=False).head(8)
    keys = list(chosen[["set", *KEY_COLUMNS]].itertuples(index=False, name=None))
    rows = {
        (name, *key): row
        for name, one in sets.items()
        for key, row in one.get(key[1:] for key in keys if key[0] == name).items()
    }
    best: dict[str, list[tuple[str, Prediction]]] = {}
    for key in keys:
        if key in rows:
            best.setdefault(key[1], []).append((key[0], rows[key]))
    return rates, best, changed
