"""What a search knows of its tasks while it runs: predictions by round, what they cost, what solves them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from arcnb.arc.predictions.normal_form import normal_form
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.search.learning.budgets import Budget, Spent


class RoundRows(PredictionSet):
    """A prediction set that also hands what was just written to the search, without reading it again.

    made_with: task id -> name of the adapter that rows written from now on are said to be made with.
    """

    def __init__(self, folder: Path, shard: tuple[int, int]):
        super().__init__(folder)
        self.shard = shard
        self.made_with: dict[str, str] = {}
        self._fresh: list[Prediction] = []

    def write_part(self, rows: Iterable[Prediction], round: int, *_: int) -> Path | None:
        """As the parent's, always as a part of this process's shard."""
        rows = [replace(row, adapter=self.made_with.get(row.task_id, row.adapter)) for row in rows]
        path = super().write_part(rows, round, *self.shard)
        self._fresh += rows
        return path

    def take_fresh(self) -> list[Prediction]:
        """The rows written since the last call."""
        rows, self._fresh = self._fresh, []
        return rows


@dataclass
class TaskState:
    """One task. solving: distinct programs, comments and layout aside, that solve all its train pairs.

    ended: it gets no further rounds, because none of the prompts to come fits the context.
    """

    spent: Spent = field(default_factory=Spent)
    solving: set[str] = field(default_factory=set)
    ended: bool = False
    _rounds: dict[int, dict[tuple, Prediction]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, round_: int, prediction: Prediction) -> None:
        """File a judged prediction; it counts when its round has ended."""
        self._rounds[round_].setdefault(prediction.key, prediction)

    def rows(self, round_: int) -> list[Prediction]:
        """The predictions of a round in their order, however they came."""
        of_round = self._rounds.get(round_, {})
        return [of_round[key] for key in sorted(of_round)]

    def end_round(self, round_: int, seconds: float) -> None:
        """Count what the round cost and what it found."""
        rows = self.rows(round_)
        self.spent.n_predictions += len(rows)
        self.spent.tokens += sum(row.n_tokens or 0 for row in rows)
        self.spent.seconds += seconds
        self.solving |= {normal_form(row.program) for row in rows if row.train_is_correct}

    def goes_on(self, budget: Budget, stop_after: int) -> bool:
        """Whether the task gets another round: not where so many programs solve its train pairs; 0 is never
        enough."""
        solved = 0 < stop_after <= len(self.solving)
        return not self.ended and not solved and self.spent.within(budget)
