"""Predictions and prediction sets as they show themselves at the end of a notebook cell.

A prediction holds what a program produced, not what was asked. Where its task is at hand (loaded in this
process, see known_tasks) the card shows every pair; otherwise the produced grids alone.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from arcnb.arc.pictures.figures import framed, grid_svg, prediction_html
from arcnb.arc.tasks import known_tasks

if TYPE_CHECKING:
    from arcnb.arc.predictions.prediction import Prediction
    from arcnb.arc.predictions.prediction_set import PredictionSet
    from arcnb.arc.tasks.task import Task

_MOST = 4000  # characters of a completion that are shown
_TASKS = 12  # tasks that a set lists


def verdict(prediction: Prediction) -> str:
    """One line: which prediction this is and how right it is."""
    if prediction.status is None:
        return f"{prediction.id} · not judged yet"
    if prediction.train_correct_grids is None:
        return f"{prediction.id} · {error_line(prediction) or prediction.status}"
    train = f"{prediction.train_correct_grids:.0%} of train grids right"
    if prediction.test_correct_grids is None:
        test = "test outputs unknown"
    else:
        test = f"{prediction.test_correct_grids:.0%} of test grids right"
    solved = "solved: " if prediction.train_is_correct and prediction.test_is_correct else ""
    wrong = f" · {error_line(prediction)}" if prediction.status != "ok" else ""
    return f"{prediction.id} · {solved}{train}, {test}{wrong}"


def error_line(prediction: Prediction) -> str:
    """What went wrong with the program, on one line; empty where nothing did."""
    if prediction.status in (None, "ok"):
        return ""
    at = f" (line {prediction.error_line})" if prediction.error_line else ""
    what = ": ".join(filter(None, (prediction.error_type, prediction.error_message)))
    return " ".join(f"{prediction.status}{': ' if what else ''}{what}{at}".split())


def prediction_card(
    prediction: Prediction, task: Task | None = None, head: str = "", open: bool = False
) -> str:
    """Verdict, grids and, folded, program and completion of one prediction.

    task: the task it answers, looked for among those at hand if None. head replaces the verdict. open: the
    program is shown as it is, and the completion left out.
    """
    task = task or known_tasks.find(prediction.task_id, prediction.task_fingerprint)
    completion = prediction.completion_prefix + prediction.completion
    if open:
        text = f"<pre>{escape(_shortened(prediction.program or ''))}</pre>"
    else:
        text = _folded("program", prediction.program or "") + _folded("completion", completion)
    return f"<h4>{escape(head or verdict(prediction))}</h4>{_grids(prediction, task)}{text}"


def _folded(name: str, text: str) -> str:
    if not text.strip():
        return ""
    return f"<details><summary>{name}</summary><pre>{escape(_shortened(text))}</pre></details>"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]}\n... {len(text) - _MOST} more characters"


def prediction_set_card(predictions: PredictionSet) -> str:
    """How many predictions of how many tasks, how they ended, and the tasks that come closest."""
    columns = ["task_id", "status", "train_is_correct", "test_is_correct", "train_correct_grids"]
    frame = predictions.read(columns=columns)
    head = f"{escape(str(predictions.folder))}: {len(frame):,} predictions"
    if frame.empty:
        return framed(head, "")
    solving = frame["train_is_correct"].eq(1).fillna(False) & frame["test_is_correct"].eq(1).fillna(False)
    frame = frame.assign(solved=solving.astype(float), right=frame["train_correct_grids"].astype(float))
    by_task = frame.groupby("task_id").agg(
        n=("solved", "size"), solved=("solved", "mean"), right=("right", "max")
    )
    by_task = by_task.sort_values(["solved", "right"], ascending=False, kind="stable")
    statuses = frame["status"].fillna("not judged").value_counts()
    facts = " · ".join([
        f"{len(by_task)} tasks, {int((by_task['solved'] > 0).sum())} solved",
        *(f"{escape(str(name))} {count:,}" for name, count in statuses.items()),
    ])  # fmt: skip
    rows = "".join(
        f"<tr><td>{escape(str(task_id))}</td><td>{row.n}</td><td>{row.solved:.1%}</td>"
        f"<td>{'' if row.right != row.right else f'{row.right:.0%}'}</td></tr>"
        for task_id, row in zip(by_task.index[:_TASKS], by_task[:_TASKS].itertuples(), strict=True)
    )
    titles = "".join(
        f"<th>{name}</th>" for name in ("task", "predictions", "solve", "best: train grids right")
    )
    rest = (
        f'<div class="arcnb-note">and {len(by_task) - _TASKS} more tasks</div>'
        if len(by_task) > _TASKS
        else ""
    )
    table = f'<table class="dataframe"><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>'
    return framed(head, f'<div><div class="arcnb-note">{facts}</div>{table}{rest}</div>')


def _grids(prediction: Prediction, task: Task | None) -> str:
    if task is not None:
        return prediction_html(task, prediction.outputs)
    if prediction.outputs is None:
        return framed("no outputs", "")
    grids = "".join(
        grid_svg(grid) if grid is not None else '<div class="arcnb-unknown">no output</div>'
        for grid in prediction.outputs
    )
    return framed("produced (load the task set to see them beside what was expected)", grids)
