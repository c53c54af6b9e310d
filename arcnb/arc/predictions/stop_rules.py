"""Which prediction sets were sampled with early stop, and what that means for their numbers.

A task that ends after its k-th success has as many predictions as it took: the share of them that is right is
then, on average, above the chance of one, and so is pass@k, which is computed from it. ((k - 1) / (n - 1)
would be unbiased if sampling stopped at the k-th success, but it stops at the end of that round.) The rule is
therefore kept beside a set's parts, and what rests on that share is left out of tables and curves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.machine.files import new_file

_FILES = "_early_stop-*.json"  # readers of Parquet folders leave out names that begin with an underscore


def record_rule(predictions: PredictionSet, early_stop: int, n_predictions: int) -> None:
    """Keep with the set that a stage samples it by this rule; nothing without early stop.

    A file for each rule, which all shards write alike: the same set may be resumed by another rule.
    """
    if not early_stop:
        return
    rule = {"early_stop": early_stop, "n_predictions": n_predictions}
    path = predictions.folder / _FILES.replace("*", f"{early_stop}-of-{n_predictions}")
    with new_file(path, same_is_fine=True) as file:
        file.write(json.dumps(rule).encode())


def early_stops(sets: Mapping[str, PredictionSet]) -> dict[str, str]:
    """{name: one sentence} of the sets in which tasks ended early; the others are not in it. ArcnbError names
    a damaged rule."""
    sentences = {}
    for name, predictions in sets.items():
        ended, n_tasks = _ended_of(predictions)
        if ended:
            sentences[name] = _sentence(name, len(set().union(*ended.values())), n_tasks, sorted(ended))
    return sentences


def ended_early(predictions: PredictionSet, task_ids: Iterable[str] | None = None) -> frozenset[str]:
    """The tasks that ended early.

    A task ended early when its first turns are fewer than a rule's n_predictions and at least its early_stop
    of them solve the train pairs. A set that was later filled up without early stop has no such task.
    """
    return frozenset().union(*_ended_of(predictions, task_ids)[0].values())


def _ended_of(
    predictions: PredictionSet, task_ids: Iterable[str] | None = None
) -> tuple[dict[int, frozenset[str]], int]:
    """({early_stop: tasks that it ended}, without rules that ended none; tasks of the set that was looked
    at, 0 for one without a rule)."""
    most: dict[int, int] = {}  # early_stop -> n_predictions
    for path in predictions.folder.glob(_FILES):
        k, asked = _rule(path)
        most[k] = max(asked, most.get(k, 0))
    if not most:
        return {}, 0
    frame = predictions.read(columns=["task_id", "turn", "train_is_correct"], task_ids=task_ids)
    right = frame[frame["turn"] == 0].groupby("task_id")["train_is_correct"]
    n, c = right.size(), right.sum()
    ended = {k: frozenset(n.index[(c >= k) & (n < asked)]) for k, asked in most.items()}
    return {k: tasks for k, tasks in ended.items() if tasks}, frame["task_id"].nunique()


def _rule(path: Path) -> tuple[int, int]:
    """early_stop and n_predictions of a file that `record_rule` left."""
    try:
        rule = json.loads(path.read_bytes())
        return int(rule["early_stop"]), int(rule["n_predictions"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArcnbError(
            f"{path} is damaged ({error!r}); it says when tasks of the predictions beside it ended"
        ) from None


def _sentence(name: str, n_ended: int, n_tasks: int, ks: list[int]) -> str:
    k = " or ".join(map(str, ks))
    return (
        f"{name}: {n_ended} of {n_tasks} tasks were stopped by stop_after={k}, with the round after which "
        f"{k} of their predictions solved the train pairs, so pass@k and every other mean over predictions "
        "of this set is too high, and is left out of curves and where - stands; solved tasks are counted "
        "as they are."
    )
