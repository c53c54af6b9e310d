"""Refinements as questions: which predictions of the last turn are refined, and what is asked about each.

The choice is a function of the task's rows of earlier turns, so a stage that was killed, and any process that
has the task in its shard, asks the same again. Choosers see train pairs only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet, slices
from arcnb.arc.scores.attempts import certainty
from arcnb.arc.scores.submission import SUBMISSION_COLUMNS, task_candidates
from arcnb.arc.seeds import derive_seed, rng
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.models.prompts.chat import prompt_ids
from arcnb.models.prompts.conversations import Conversations
from arcnb.search.sampling.questions import Question, first_question
from arcnb.search.sampling.sampled_set import SampledSet
from arcnb.search.turns.budget import TurnPlan
from arcnb.search.turns.selection import choose


@dataclass
class TurnChoice:
    """parents: task id -> the prediction refined in each slot, empty where there is nothing to refine.

    solving: task id -> predictions so far that solve the train pairs; finished: tasks that have enough of
    them. too_long: prediction id -> tokens, of candidates whose prompt leaves no room. n_right_on_train:
    candidates that failed on a test input only, about which nothing may be said.
    """

    parents: dict[str, list[Prediction]] = field(default_factory=dict)
    ancestors: dict[str, dict[str, Prediction]] = field(default_factory=dict)
    solving: dict[str, int] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    too_long: dict[str, int] = field(default_factory=dict)
    n_right_on_train: int = 0


class LaterTurns:
    """The questions of one later turn; a fresh first turn takes the slots of a task without candidates."""

    def __init__(self, plan: TurnPlan, turn: int, choice: TurnChoice, book: Conversations):
        self.turns, self.turn, self.choice, self.book = plan, turn, choice, book
        self.plan = plan.rounds

    def slots(self, task_id: str) -> int:
        return self.turns.slots(self.turn)

    def completions_in(self, slot: int) -> int:
        return self.turns.completions_in(self.turn, slot)

    def slot_of(self, task_id: str, turn: int, round_: int, parent: str | None) -> int | None:
        fresh = turn == 0 and self.turns.is_fresh(self.turn, round_)
        if not fresh and (turn != self.turn or round_ >= self.turns.slots(self.turn)):
            return None
        slot = round_ - self.turns.fresh_round(self.turn, 0) if fresh else round_
        chosen = self.choice.parents[task_id]
        expected = chosen[slot].id if chosen else None
        if parent != expected:
            found, wanted = parent or "nothing", expected or "nothing"
            raise ArcnbError(
                f"task {task_id}: the set refines {found} in turn {self.turn}, slot {slot}, where this plan "
                f"refines {wanted}: its earlier turns are others, use a new folder"
            )
        return slot

    def question(self, task: Task, slot: int) -> Question:
        chosen = self.choice.parents[task.task_id]
        if not chosen:
            round_ = self.turns.fresh_round(self.turn, slot)
            return first_question(task, round_, self.plan, self.book.prompt_format)
        parent = chosen[slot]
        prompt = self.book.refining(parent, self.choice.ancestors[task.task_id])
        seed = derive_seed(self.plan.seed, "sampling", task.task_id, "turn", self.turn, slot)
        return Question(parent.view, prompt, slot, seed, self.turn, parent.id)


def choose_parents(
    made: SampledSet,
    plan: TurnPlan,
    turn: int,
    refine_from: PredictionSet | None,
    book: Conversations,
    backend,
) -> TurnChoice:
    """What each of the set's tasks refines in `turn`, from its rows of the turns before."""
    choice = TurnChoice()
    for slice_ in slices(made.tasks):
        ids = [task.task_id for task in slice_]
        rows: dict[str, list[Prediction]] = {id_: [] for id_ in ids}
        for row in _rows_so_far(ids, plan, turn, made.predictions, refine_from):
            rows[row.task_id].append(row)
        for id_ in ids:
            choice.solving[id_] = sum(row.train_is_correct == 1 for row in rows[id_])
            if choice.solving[id_] >= plan.enough:
                choice.finished.append(id_)
                continue
            candidates = [row for row in rows[id_] if row.turn == turn - 1]
            random = rng(plan.rounds.seed, "refine", id_, turn)
            picked = choose(plan.chooser, candidates, plan.slots(turn), random)
            by_id = {row.id: row for row in rows[id_]}
            room = backend.context - made.sampling.max_tokens
            fitting = _fitting(picked, by_id, choice, book, backend.tokenizer, room)
            choice.parents[id_] = [
                fitting[slot % len(fitting)] for slot in range(plan.slots(turn)) if fitting
            ]
            choice.ancestors[id_] = _ancestors(fitting, by_id)
    return choice


def least_certain(made: SampledSet, plan: TurnPlan) -> dict[str, float]:
    """{task id: certainty of its least certain test input, 0..1} of the least certain half of the tasks, by
    their first turns; equals in an order drawn from the seed. The half is rounded up; a task without any
    first turn is left out.
    """
    sure: dict[str, float] = {}
    for slice_ in slices(made.tasks):
        some = {task.task_id: task for task in slice_}
        frame = made.predictions.read(columns=[*SUBMISSION_COLUMNS, "round"], task_ids=some)
        frame = frame[frame["round"] < plan.slots(0)]
        for id_, rows in frame.groupby(frame["task_id"].astype(object)):
            candidates = task_candidates(rows[rows["status"] == "ok"], some[id_])
            sure[id_] = min(certainty(candidates, test) for test in range(len(some[id_].test)))
    order = sorted(sure, key=lambda id_: (sure[id_], derive_seed(plan.rounds.seed, "last share", id_)))
    return {id_: sure[id_] for id_ in order[: math.ceil(len(order) / 2)]}


def _fitting(picked, by_id, choice: TurnChoice, book: Conversations, tokenizer, room: int):
    """The picked predictions whose refinement can be asked for; the choice counts the others."""
    book.look_at(picked)
    fitting = []
    for parent in picked:
        if parent.status != "ok" and book.right_on_train(parent):
            choice.n_right_on_train += 1
            continue
        length = len(prompt_ids(tokenizer, book.refining(parent, by_id)))
        if length > room:
            choice.too_long[parent.id] = length
        else:
            fitting.append(parent)
    return fitting


def _ancestors(parents: Sequence[Prediction], by_id: dict[str, Prediction]) -> dict[str, Prediction]:
    """The parents' own parents, all the way up, by id."""
    found = {}
    for one in parents:
        while one.parent:
            one = by_id[one.parent]
            found[one.id] = one
    return found


def _rows_so_far(
    ids: Sequence[str],
    plan: TurnPlan,
    turn: int,
    predictions: PredictionSet,
    refine_from: PredictionSet | None,
) -> Iterator[Prediction]:
    """The tasks' rows of the turns before `turn` that belong to the plan, first turns first."""
    taken = dict.fromkeys(ids, 0)
    for row in (predictions if refine_from is None else refine_from).iter_predictions(task_ids=ids):
        if row.turn == 0 and taken[row.task_id] < plan.quotas[0] and row.round < plan.first.n_rounds:
            taken[row.task_id] += 1
            yield row
    for row in predictions.iter_predictions(task_ids=ids):
        stands_in = row.turn == 0 and any(plan.is_fresh(later, row.round) for later in range(1, turn))
        refined = 0 < row.turn < turn and row.round < plan.slots(row.turn)
        if stands_in or (refined and row.index < plan.completions_in(row.turn, row.round)):
            yield row
