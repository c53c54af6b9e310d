"""What inference with turns did, turn by turn, as a report, a table and numbers for the manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction import KEY_COLUMNS
from arcnb.arc.predictions.tables import prediction_ids
from arcnb.search.sampling.report import InferenceReport
from arcnb.search.turns.budget import first_turns_refined

if TYPE_CHECKING:
    import pandas as pd

    from arcnb.arc.predictions.prediction_set import PredictionSet
    from arcnb.search.turns.choice import TurnChoice

# What `turn_table` needs of a prediction set.
TURN_READ = [
    *KEY_COLUMNS, "parent", "status", "fingerprint", "finish_reason", "n_tokens",
    "train_pixel_score", "train_correct_grids", "train_is_correct", "test_is_correct",
]  # fmt: skip


@dataclass
class TurnReport:
    """made: what the stage did. n_tasks: tasks asked; n_finished: tasks solved on train before. n_fresh:
    prompts that were first turns, since their task had nothing to refine. too_long: candidates, by tokens.
    certainty: of the tasks that got the last share of the budget, the highest, 0..1."""

    turn: int
    made: InferenceReport
    n_tasks: int = 0
    n_finished: int = 0
    n_fresh: int = 0
    n_right_on_train: int = 0
    too_long: dict[str, int] = field(default_factory=dict)
    certainty: float | None = None

    @classmethod
    def of(cls, turn: int, made: InferenceReport, choice: TurnChoice, slots: int) -> TurnReport:
        fresh = slots * sum(not parents for parents in choice.parents.values())
        n_tasks, finished = len(choice.parents), len(choice.finished)
        return cls(turn, made, n_tasks, finished, fresh, choice.n_right_on_train, choice.too_long)

    def __str__(self) -> str:
        lines = [f"turn {self.turn}: {self.n_tasks} tasks asked, {self.n_finished} solved on train before"]
        if self.certainty is not None:
            lines = [
                f"last share: the {self.n_tasks} least certain tasks, certainty up to {self.certainty:.2f}"
            ]
        if self.n_fresh:
            lines.append(f"  {self.n_fresh} prompts were first turns: their tasks had nothing to refine")
        if self.n_right_on_train:
            lines.append(
                f"  {self.n_right_on_train} candidates failed on test inputs only and were passed over"
            )
        if self.too_long:
            lines.append(f"  {len(self.too_long)} candidates were too long for the context, the longest with")
            lines[-1] += f" {max(self.too_long.values()):,} tokens"
        return "\n".join([*lines, *(f"  {line}" for line in str(self.made).splitlines())])


@dataclass
class TurnsReport:
    """One report a turn; first turns that came from another set have none."""

    turns: list[TurnReport] = field(default_factory=list)

    @property
    def total(self) -> InferenceReport:
        """All turns as one stage."""
        total = InferenceReport(workers=self.turns[0].made.workers)
        for turn in self.turns:
            for entry in fields(InferenceReport):
                value = getattr(turn.made, entry.name)
                if entry.name == "too_long":
                    total.too_long |= value
                elif entry.name != "workers":
                    setattr(total, entry.name, getattr(total, entry.name) + value)
        return total

    def outcome(self) -> dict:
        """Plain values for the run's manifest."""
        per_turn = [
            {"turn": t.turn, "tasks": t.n_tasks, "finished_before": t.n_finished, "fresh_prompts": t.n_fresh}
            | {"too_long": len(t.too_long), "asked": t.made.asked, "made": t.made.made, "found": t.made.found}
            for t in self.turns
        ]
        return self.total.outcome() | {"turns": per_turn}

    def __str__(self) -> str:
        return "\n".join(map(str, self.turns))


def turn_table(
    predictions: PredictionSet,
    parents: PredictionSet | None = None,
    task_ids: Iterable[str] | None = None,
) -> pd.DataFrame:
    """One row a turn: how much, how good, and how it compares with the predictions that were refined.

    parents: the set whose first turns `predictions` refines, where it is another. task_ids: only these.
    better, same, worse: shares of the refinements whose parents are there, by right train grids, then by
    train similarity; copied: those with the very outputs of their parent. newly_solved_train: tasks that no
    earlier turn solved.
    """
    import pandas as pd

    frame = predictions.read(TURN_READ, task_ids)
    first = None if parents is None else first_turns_refined(parents.read(TURN_READ), predictions)
    before = _by_id(frame if first is None else pd.concat([frame, first], ignore_index=True))
    rows, solved = {}, set() if first is None else _solved(first, "train_is_correct")
    for turn, part in frame.groupby("turn"):
        newly = _solved(part, "train_is_correct") - solved
        solved |= newly
        row = {
            "predictions": len(part),
            "tasks": part["task_id"].nunique(),
            "tokens": int(part["n_tokens"].fillna(0).sum()),
            "truncated": (part["finish_reason"] == "length").mean(),
            "valid outputs": (part["status"] == "ok").mean(),
            "distinct outputs": part.groupby("task_id")["fingerprint"].nunique().sum() / len(part),
            "train_correct_grids": part["train_correct_grids"].fillna(0).mean(),
            "newly_solved_train": len(newly),
            "solved_test": len(_solved(part, "train_is_correct", "test_is_correct")),
        }
        rows[turn] = row | _against_parents(part[part["parent"].notna()], before)
    return pd.DataFrame(rows).T.rename_axis("turn")


def _by_id(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(id=prediction_ids(frame)).drop_duplicates("id").set_index("id")


def _solved(frame: pd.DataFrame, *columns: str) -> set[str]:
    right = frame[list(columns)].fillna(0).eq(1).all(axis=1)
    return set(frame.loc[right, "task_id"])


def _against_parents(refined: pd.DataFrame, before: pd.DataFrame) -> dict[str, float]:
    refined = refined[refined["parent"].isin(before.index)]
    if refined.empty:
        return {}
    parents = before.loc[refined["parent"]]
    change = 0.0
    for name, weight in (("train_correct_grids", 1.0), ("train_pixel_score", 1e-3)):
        now, then = (part[name].fillna(0).to_numpy(float) for part in (refined, parents))
        change = change + weight * (now - then)
    prints = refined["fingerprint"]
    copied = (prints.to_numpy() == parents["fingerprint"].to_numpy()) & prints.notna().to_numpy()
    return {
        "better": (change > 1e-12).mean(),
        "same": (abs(change) <= 1e-12).mean(),
        "worse": (change < -1e-12).mean(),
        "copied": copied.mean(),
    }
