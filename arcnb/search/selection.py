"""Choosing the predictions of one task that are worth refining.

Rivals sit in `CHOOSERS`, each a function (predictions of one task, k, generator) -> at most k of them,
most promising first; an evaluation runs them side by side. Ties keep the order of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from arcnb.arc.predictions import Prediction


class SelectionError(ValueError):
    """A chooser that does not exist, or k that is not positive."""


def refinable(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Those with valid outputs that miss some train pair, closest to the goal first."""
    wrong = [p for p in predictions if p.status == "ok" and not p.train_is_correct]
    return sorted(wrong, key=lambda p: (-p.train_correct_grids, -p.train_pixel_score))


def best(predictions: Sequence[Prediction], k: int, random: np.random.Generator) -> list[Prediction]:
    """The k closest to the goal, equal outputs or not."""
    return refinable(predictions)[:k]


def distinct(predictions: Sequence[Prediction], k: int, random: np.random.Generator) -> list[Prediction]:
    """The k closest among those with different outputs."""
    first_of = {}
    for prediction in refinable(predictions):
        first_of.setdefault(prediction.fingerprint, prediction)
    return list(first_of.values())[:k]


def failed(predictions: Sequence[Prediction], k: int, random: np.random.Generator) -> list[Prediction]:
    """Programs without valid outputs, one of each error, in the order of the input."""
    first_of = {}
    for prediction in predictions:
        if prediction.program is not None and prediction.status != "ok":
            first_of.setdefault((prediction.status, prediction.error_type), prediction)
    return list(first_of.values())[:k]


def diverse(predictions: Sequence[Prediction], k: int, random: np.random.Generator) -> list[Prediction]:
    """Distinct outputs first, then failed programs: every way of being wrong gets a chance."""
    return (distinct(predictions, k, random) + failed(predictions, k, random))[:k]


def weighted(predictions: Sequence[Prediction], k: int, random: np.random.Generator) -> list[Prediction]:
    """k of the distinct ones, drawn without replacement with weight 0.1 + train_correct_grids."""
    pool = distinct(predictions, len(predictions), random)
    weights = np.array([0.1 + prediction.train_correct_grids for prediction in pool])
    chosen = (
        random.choice(len(pool), size=min(k, len(pool)), replace=False, p=weights / weights.sum())
        if pool
        else []
    )
    return [pool[i] for i in chosen]


CHOOSERS: dict[str, Callable[[Sequence[Prediction], int, np.random.Generator], list[Prediction]]] = {
    "best": best,
    "distinct": distinct,
    "failed": failed,
    "diverse": diverse,
    "weighted": weighted,
}


def choose(
    name: str, predictions: Sequence[Prediction], k: int, random: np.random.Generator
) -> list[Prediction]:
    """At most k predictions of one task by the chooser of that name. SelectionError for bad arguments."""
    if name not in CHOOSERS:
        raise SelectionError(f"chooser {name!r} does not exist; there are {', '.join(CHOOSERS)}")
    if k < 1:
        raise SelectionError(f"the number of predictions to refine must be positive, not {k}")
    return CHOOSERS[name](predictions, k, random)
