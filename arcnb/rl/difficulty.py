"""Tasks that a model solves now and then.

A group whose completions all fail, or all succeed, has no advantages and teaches nothing; to a small model
most ARC tasks are such. Predictions sampled before training (notebook 03) say which are not, and serve any
number of runs. (`signal_visits` finds out while training, anew in each run.)
"""

from __future__ import annotations

from arcnb.arc.prediction_files import PredictionSet
from arcnb.arc.tasks import TaskError
from arcnb.arc.tasksets import TaskSet

_COLUMNS = ["task_id", "task_fingerprint", "turn", "train_is_correct", "test_is_correct"]


def tasks_solved_between(tasks: TaskSet, predictions: PredictionSet, low: float, high: float) -> TaskSet:
    """The tasks, in their order, of which the predictions solve more than the share `low` and at most `high`.

    A sample solves a task if its program is right on all train pairs and on all test pairs whose outputs are
    known. Only first turns count. Tasks without predictions are left out. Raises TaskError for shares outside
    0 <= low < high <= 1, for predictions of another version of a task, and when no task is left.
    """
    if not 0 <= low < high <= 1:
        raise TaskError(f"shares of solving samples must be 0 <= low < high <= 1, not {low:g} and {high:g}")
    frame = predictions.read(columns=_COLUMNS)
    frame = frame[(frame["turn"] == 0) & frame["task_id"].isin(tasks.ids)]
    if frame.empty:
        raise TaskError(f"{predictions.folder} holds no first turns of the tasks of {tasks.name}")
    versions = frame[["task_id", "task_fingerprint"]].drop_duplicates().itertuples(index=False)
    if changed := sorted({id_ for id_, version in versions if tasks[id_].fingerprint != version}):
        raise TaskError(f"{predictions.folder}: predictions of another version of {', '.join(changed[:5])}")
    right = (frame["train_is_correct"] == 1) & (frame["test_is_correct"].fillna(1) == 1)
    shares = right.groupby(frame["task_id"].astype(object)).mean()
    chosen = shares.index[(shares > low) & (shares <= high)]
    if chosen.empty:
        raise TaskError(
            f"{predictions.folder}: no task is solved by more than {low:g} and at most {high:g} of its "
            f"samples; the largest share is {shares.max():.3g}"
        )
    kept = set(chosen)
    return tasks.subset([task_id for task_id in tasks.ids if task_id in kept])
