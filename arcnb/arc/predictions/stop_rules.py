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

from arcnb.arc.predictions.normal_form import normal_form
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.machine.files import new_file

_FILES = "_early_stop-*.json"  # readers of Parquet folders leave out names that begin with an underscore


def record_rule(
    predictions: PredictionSet, early_stop: int, n_predictions: int, distinct: bool = False
) -> None:
    """Keep with the set that a stage samples it by this rule; nothing without early stop.

    distinct: equal programs count once, comments and layout aside. A file for each rule, which all shards
    write alike: the same set may be resumed by another rule.
    """
    if not early_stop:
        return
    rule = {"early_stop": early_stop, "n_predictions": n_predictions}
    rule |= {"distinct": True} if distinct else {}
    name = f"{early_stop}{'-distinct' * distinct}-of-{n_predictions}"
    path = predictions.folder / _FILES.replace("*", name)
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
    of them, or of their distinct programs, solve the train pairs. A set that was later filled up without
    early stop has no such task.
    """
    return frozenset().union(*_ended_of(predictions, task_ids)[0].values())


def _ended_of(
    predictions: PredictionSet, task_ids: Iterable[str] | None = None
) -> tuple[dict[int, frozenset[str]], int]:
    """({early_stop: tasks that it ended}, without rules that ended none; tasks of the set that was looked
    at, 0 for one without a rule)."""
    most: dict[tuple[int, bool], int] = {}  # early_stop, distinct -> n_predictions
    for path in predictions.folder.glob(_FILES):
        k, distinct, asked = _rule(path)
        most[k, distinct] = max(asked, most.get((k, distinct), 0))
    if not most:
        return {}, 0
    programs = ["program"] * any(distinct for _, distinct in most)  # most of a set, so only where they count
    frame = predictions.read(columns=["task_id", "turn", "train_is_correct", *programs], task_ids=task_ids)
    first = frame[frame["turn"] == 0]
    n, right = first.groupby("task_id").size(), first[first["train_is_correct"] == 1]
    ended: dict[int, frozenset[str]] = {}
    for (k, distinct), asked in most.items():
        solving = right
        if distinct:
            normal = right.assign(program=right["program"].map(normal_form))
            solving = normal.drop_duplicates(["task_id", "program"])
        c = solving.groupby("task_id").size().reindex(n.index, fill_value=0)
        ended[k] = ended.get(k, frozenset()).union(n.index[(c >= k) & (n < asked)])
    return {k: tasks for k, tasks in ended.items() if tasks}, frame["task_id"].nunique()


def _rule(path: Path) -> tuple[int, bool, int]:
    """early_stop, distinct and n_predictions of a file that `record_rule` left."""
    try:
        rule = json.loads(path.read_bytes())
        return int(rule["early_stop"]), bool(rule.get("distinct")), int(rule["n_predictions"])
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
