"""The stage of a row: the turn that it was sampled for, by the plan that its set was begun with.

Where nothing could be refined, a first turn stands in. It takes the budget of the turn that it replaces and
comes after the turns before that, and only tasks that went badly have any. So a stand-in is told from a first
turn by its round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.search.sampling.conditions import begun_with
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.search.turns.budget import TurnPlan

if TYPE_CHECKING:
    import pandas as pd

_PLANNED = ("turns", "n_predictions", "first_share", "per_prompt")


def with_stage(frame: pd.DataFrame, predictions: PredictionSet) -> pd.DataFrame:
    """The set's frame with `stage`: the row's turn, or the one that a stand-in replaces."""
    stage, plan = frame["turn"].copy(), _recorded_plan(predictions)
    for turn in range(1, plan.turns if plan else 1):
        start = plan.fresh_round(turn, 0)
        stands_in = (frame["turn"] == 0) & frame["round"].between(start, start + plan.slots(turn) - 1)
        stage = stage.mask(stands_in, turn)
    return frame.assign(stage=stage)


def _recorded_plan(predictions: PredictionSet) -> TurnPlan | None:
    """The division of the budget that the set was begun with; None without turns, or where none is said."""
    try:
        settings = begun_with(predictions)["settings"]
        if not all(name in settings for name in _PLANNED):
            return None
        turns, n_predictions, first_share, per_prompt = (settings[name] for name in _PLANNED)
        return TurnPlan(RoundPlan(n_predictions, per_prompt), turns, first_share)
    except (FileNotFoundError, ArcnbError):  # a set can be looked at though nobody knows how it was made
        return None
