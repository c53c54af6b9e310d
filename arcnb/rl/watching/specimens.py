"""Completions of a training run worth reading: the best ones and the first that was cut off, with grids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task

_RANKING = [
    "test_is_correct",
    "train_is_correct",
    "test_correct_grids",
    "train_correct_grids",
    "train_pixel_score",
]


@dataclass(frozen=True)
class Specimens:
    """Named rollouts that draw themselves in a notebook."""

    tasks: Mapping[str, Task]
    chosen: list[tuple[str, Prediction]]

    def _repr_html_(self) -> str:
        return "".join(self._card(name, prediction) for name, prediction in self.chosen)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {prediction.id}, {prediction.status}" for name, prediction in self.chosen)

    def _card(self, name: str, prediction: Prediction) -> str:
        said = prediction.failure or prediction.status or ""
        head = (
            f"{name}: {prediction.id} · step {prediction.round + 1} · {prediction.n_tokens} tokens · {said}"
        )
        return prediction.card(self.tasks[prediction.task_id], head)


def specimens(rollouts: PredictionSet, tasks: Mapping[str, Task], n_best: int = 2) -> Specimens:
    """The n_best rollouts that came closest, each of another task, and the first that was truncated."""
    frame = rollouts.read(columns=["task_id", "round", "index", "turn", "status", "finish_reason", *_RANKING])
    good = frame[frame["status"] == "ok"]
    good = good.assign(**{name: good[name].astype(float).fillna(0.0) for name in _RANKING})
    best = good.sort_values(_RANKING, ascending=False, kind="stable").drop_duplicates("task_id").head(n_best)
    cut = frame[frame["finish_reason"] == "length"].sort_values(["round", "index"], kind="stable").head(1)
    wanted = [("best", row) for row in best.itertuples()] + [
        ("first truncated", row) for row in cut.itertuples()
    ]
    ids = {row.task_id for _, row in wanted}
    found = {row.key: row for row in rollouts.iter_predictions(task_ids=ids)} if ids else {}
    return Specimens(
        tasks, [(name, found[row.task_id, row.round, row.index, row.turn]) for name, row in wanted]
    )
