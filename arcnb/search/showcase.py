"""Predictions worth a look: the one that came closest on each task, drawn with its program."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from arcnb.arc.predictions import Prediction, PredictionSet
from arcnb.arc.tasks import Task
from arcnb.arc.tasksets import TaskSet
from arcnb.models.generation import Sampling
from arcnb.models.prompt_format import PromptFormat
from arcnb.programs.executor import Executor
from arcnb.search.inference import RoundPlan, predict

_RANKING = [
    "train_is_correct",
    "test_is_correct",
    "train_correct_grids",
    "test_correct_grids",
    "train_pixel_score",
]


def best_predictions(predictions: PredictionSet, n: int) -> list[Prediction]:
    """The best prediction of each of the n tasks that came closest to being solved, best first.

    Solved train pairs count before solved test pairs, then shares of right grids, then similarity.
    """
    frame = predictions.read(columns=["task_id", "round", "index", "turn", "status", *_RANKING])
    frame = frame[frame["status"] == "ok"]
    frame = frame.assign(**{name: frame[name].astype(float).fillna(0.0) for name in _RANKING})
    ranked = frame.sort_values(_RANKING, ascending=False, kind="stable").drop_duplicates("task_id").head(n)
    keys = list(zip(ranked["task_id"], ranked["round"], ranked["index"], ranked["turn"], strict=True))
    found = {row.key: row for row in predictions.iter_predictions(task_ids=set(ranked["task_id"]))}
    return [found[key] for key in keys]


def sample_tasks(
    tasks: TaskSet, engine, folder: Path, executor: Executor, prompt_format: PromptFormat, seed: int
) -> PredictionSet:
    """Four unaugmented predictions of each task, to see what a model writes; the set is left in folder."""
    predictions = PredictionSet(folder)
    plan = RoundPlan(4, 4, seed, augment="none")
    sampling = Sampling(max_tokens=min(512, engine.context // 2))
    predict(list(tasks), engine, predictions, executor, plan, prompt_format, sampling)
    return predictions


@dataclass(frozen=True)
class Showcase:
    """Predictions that draw themselves in a notebook: verdict, grids, program."""

    tasks: TaskSet
    predictions: list[Prediction]

    def _repr_html_(self) -> str:
        if not self.predictions:
            return "<p>No program gave valid outputs.</p>"
        return "".join(_card(self.tasks[p.task_id], p) for p in self.predictions)

    def write(self, path: Path) -> Path:
        """The pictures as a fragment of HTML, for the index of runs."""
        path.write_text(self._repr_html_(), encoding="utf-8")
        return path

    def __repr__(self) -> str:
        return "\n".join(verdict(p) for p in self.predictions) or "No program gave valid outputs."


def show_predictions(tasks: TaskSet, predictions: Iterable[Prediction]) -> Showcase:
    """The predictions as the last line of a cell."""
    return Showcase(tasks, list(predictions))


def verdict(prediction: Prediction) -> str:
    """One line: how right the prediction is."""
    train = f"{prediction.train_correct_grids:.0%} of train grids right"
    if prediction.test_correct_grids is None:
        test = "test outputs unknown"
    else:
        test = f"{prediction.test_correct_grids:.0%} of test grids right"
    solved = "solved: " if prediction.train_is_correct and prediction.test_is_correct else ""
    return f"{prediction.id} · {solved}{train}, {test}"


def _card(task: Task, prediction: Prediction) -> str:
    from arcnb.arc.drawing import prediction_html

    program = html.escape(prediction.program or "")
    return (
        f"<h4>{html.escape(verdict(prediction))}</h4>"
        f"{prediction_html(task, prediction.outputs)}"
        f"<details><summary>program</summary><pre>{program}</pre></details>"
    )
