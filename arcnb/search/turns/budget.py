"""A task's budget of completions divided among turns: first samples, refinements, refinements of those."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError
from arcnb.plans import branch, option
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.values import COUNT, SHARE, SOME_SHARE, KeysOf, misfit

if TYPE_CHECKING:
    import pandas as pd

    from arcnb.arc.predictions.prediction_set import PredictionSet

# What a set's conditions say of its plan.
_RECORDED = {
    "turns": "int", "n_predictions": "int", "per_prompt": "int",
    "first_share~": "float", "last_share~": "float",
}  # fmt: skip


@dataclass(frozen=True)
class TurnPlan:
    """rounds: how first turns are sampled; its n_predictions is the whole budget of a task.

    What is refined gets `per_prompt` completions, see arcnb.search.turns.selection. A task ends when
    `rounds.stop_after` (for later turns at least one) of its predictions solve all train pairs.
    """

    rounds: RoundPlan = branch(RoundPlan)
    turns: int = option(
        1, "answers of a conversation: 1 samples only, each further one refines the last", within=COUNT
    )
    first_share: float = option(
        0.5,
        "share of n_predictions for first turns, in whole prompts; the rest is divided evenly",
        within=SOME_SHARE,
    )
    chooser: str = option(
        "promising",
        "what is refined: promising, best, distinct, diverse, failed or weighted",
        within=KeysOf("arcnb.search.turns.selection:CHOOSERS"),
    )

    last_share: float = option(
        0.0,
        "with one turn: share of n_predictions kept for the half of the tasks whose selection is least "
        "certain; each of them gets twice of it",
        within=SHARE,
    )

    @cached_property
    def quotas(self) -> list[int]:
        """Completions of each turn for one task; their sum is the budget.

        With one turn, a second number is what each of the least certain tasks gets in the end, whole prompts.
        """
        budget, per_prompt = self.rounds.n_predictions, self.rounds.per_prompt
        if self.turns == 1:
            kept = round(budget * self.last_share / per_prompt) * per_prompt
            return [budget - kept, 2 * kept] if kept else [budget]
        first = max(1, round(budget * self.first_share / per_prompt)) * per_prompt
        first = min(first, max(1, budget - self.turns + 1))
        each, extra = divmod(budget - first, self.turns - 1)
        return [first, *(each + (turn < extra) for turn in range(self.turns - 1))]

    @property
    def first(self) -> RoundPlan:
        """The plan of the first turns."""
        return replace(self.rounds, n_predictions=self.quotas[0])

    @property
    def enough(self) -> int:
        """So many predictions that solve all train pairs end a task before its next turn."""
        return max(1, self.rounds.stop_after)

    def slots(self, turn: int) -> int:
        """Prompts that a task gets in that turn."""
        return math.ceil(self.quotas[turn] / self.rounds.per_prompt)

    def completions_in(self, turn: int, slot: int) -> int:
        """Completions of a prompt of that turn: the last one takes the remainder."""
        return min(self.rounds.per_prompt, self.quotas[turn] - slot * self.rounds.per_prompt)

    def fresh_round(self, turn: int, slot: int) -> int:
        """The round of a first turn that stands in where nothing can be refined: after all rounds so far."""
        return sum(self.slots(earlier) for earlier in range(turn)) + slot

    def is_fresh(self, turn: int, round_: int) -> bool:
        """Whether a first turn of that round stands in for a refinement of that turn."""
        start = self.fresh_round(turn, 0)
        return start <= round_ < start + self.slots(turn)


def first_turns_refined(frame: pd.DataFrame, predictions: PredictionSet) -> pd.DataFrame:
    """The rows of a `refine_from` whose refinements `predictions` holds: its own refinements, and first turns
    that the plan of `predictions` has no room for, belong to others. frame: with `turn` and `round`."""
    first, plan = frame[frame["turn"] == 0], _recorded_plan(predictions)
    return first if plan is None else first[first["round"] < plan.first.n_rounds]


def with_stage(frame: pd.DataFrame, predictions: PredictionSet) -> pd.DataFrame:
    """The set's frame with `stage`: the turn that a row was sampled for, by the plan the set was begun with.

    Where a task had nothing to refine, first turns stood in for its refinements. They have turn 0, but rounds
    after all regular ones, and the stage of the refinements; so has the last share of a budget, which only
    some tasks got for what came before. A set without a plan on record has none.
    """
    stage, plan = frame["turn"].copy(), _recorded_plan(predictions)
    for turn in range(1, len(plan.quotas) if plan else 0):
        start = plan.fresh_round(turn, 0)
        stood_in = frame["round"].between(start, start + plan.slots(turn) - 1)
        stage = stage.mask((frame["turn"] == 0) & stood_in, turn)
    return frame.assign(stage=stage)


def _recorded_plan(predictions: PredictionSet) -> TurnPlan | None:
    """How the set divides its budget among turns, as far as that is on record."""
    from arcnb.search.sampling.conditions import begun_with

    try:
        recorded = begun_with(predictions)["settings"]
    except (FileNotFoundError, ArcnbError):  # a set can be looked at though nobody knows how it was made
        return None
    if misfit(recorded, _RECORDED):
        return None
    rounds = RoundPlan(recorded["n_predictions"], recorded["per_prompt"])
    shares = {name: recorded[name] for name in ("first_share", "last_share") if name in recorded}
    return TurnPlan(rounds, recorded["turns"], **shares)
