"""Choosing the predictions of one task that are worth refining.

Rivals sit in `CHOOSERS`, each a function (predictions of one task, k, generator) -> at most k of them,
most promising first; an evaluation runs them side by side. Ties keep the order of the input.

None of them knows what test outputs are expected: whatever is chosen may be shown to the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from arcnb.arc.predictions.prediction import Prediction
from arcnb.errors import ArcnbError


def refinable(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Those with valid outputs that miss some train pair, closest to the goal first."""
    wrong = [p for p in predictions if p.status == "ok" and not p.train_is_correct]
    return sorted(wrong, key=lambda p: p.closeness, reverse=True)


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


def promising(predictions: Sequence[Prediction], k: int, random: np.random.Generator) -> list[Prediction]:
    """The distinct outputs closest to the goal, then failed programs where there are too few."""
    return (distinct(predictions, k, random) + failed(predictions, k, random))[:k]


def diverse(predictions: Sequence[Prediction], k: int, random: np.random.Generator) -> list[Prediction]:
    """The closest, then always the one farthest from all chosen, by outputs and by program.

    Candidates are the distinct outputs and one program of each failure. Of equally far ones the one closer
    to the goal; failed programs come last (greedy k-center).
    """
    pool = distinct(predictions, len(predictions), random) + failed(predictions, len(predictions), random)
    chosen = pool[:1]
    nearest = [_distance(pool[0], other) for other in pool] if pool else []
    while len(chosen) < min(k, len(pool)):
        left = [i for i, candidate in enumerate(pool) if not any(candidate is one for one in chosen)]
        pick = max(left, key=lambda i: (nearest[i], -i))
        chosen.append(pool[pick])
        nearest = [min(near, _distance(pool[pick], other)) for near, other in zip(nearest, pool, strict=True)]
    return chosen[:k]


def _distance(a: Prediction, b: Prediction) -> float:
    """0 (alike) to 1: mean of how much the outputs and how much the texts of the programs differ."""
    return (_output_distance(a, b) + _program_distance(a.program or "", b.program or "")) / 2


def _output_distance(a: Prediction, b: Prediction) -> float:
    """Mean share of cells that differ, 1 for grids of other sizes; no outputs are as far as can be."""
    if not a.outputs or not b.outputs:
        return float(a.fingerprint != b.fingerprint or a.fingerprint is None)
    pairs = zip(a.outputs, b.outputs, strict=True)
    return float(np.mean([np.mean(x != y) if x.shape == y.shape else 1.0 for x, y in pairs]))


def _program_distance(a: str, b: str) -> float:
    """1 - Jaccard similarity of the programs' words and signs, taken three at a time."""
    x, y = (_trigrams(text) for text in (a, b))
    return 1 - len(x & y) / len(x | y) if x | y else 0.0


@lru_cache(4096)
def _trigrams(program: str) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+|[^\w\s]", program)
    return frozenset(zip(words, words[1:], words[2:], strict=False)) or frozenset([tuple(words)])


def weighted(predictions: Sequence[Prediction], k: int, random: np.random.Generator) -> list[Prediction]:
    """k of the distinct ones, drawn without replacement with weight 0.1 + train_correct_grids."""
    pool = distinct(predictions, len(predictions), random)
    if not pool:
        return []
    weights = np.array([0.1 + prediction.train_correct_grids for prediction in pool])
    places = random.choice(len(pool), size=min(k, len(pool)), replace=False, p=weights / weights.sum())
    return [pool[place] for place in places]


Chooser = Callable[[Sequence[Prediction], int, np.random.Generator], list[Prediction]]
CHOOSERS: dict[str, Chooser] = {
    one.__name__: one for one in (best, distinct, promising, failed, diverse, weighted)
}


def choose(
    name: str, predictions: Sequence[Prediction], k: int, random: np.random.Generator
) -> list[Prediction]:
    """At most k predictions of one task by the chooser of that name. ArcnbError as `check_choice`."""
    check_choice(name, k)
    return CHOOSERS[name](predictions, k, random)


def check_choice(name: str, per_task: int) -> None:
    """ArcnbError for a chooser that does not exist, or fewer than one prediction to choose of a task."""
    if name not in CHOOSERS:
        raise ArcnbError(f"chooser {name!r} does not exist; there are {', '.join(CHOOSERS)}")
    if per_task < 1:
        raise ArcnbError(f"per_task, the predictions to refine a task, must be at least 1, not {per_task}")
