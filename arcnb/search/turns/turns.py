"""Inference with turns: first samples, refinements of the most promising, refinements of those.

    plan = TurnPlan(RoundPlan(n_predictions=128, per_prompt=8, seed=0), turns=2)
    report = predict_turns(made, engine, executor, plan)       # made: a SampledSet

Turn by turn: the next one begins when the last is on disk, and asks about the tasks that are not solved yet
(on their train pairs; test outputs are never looked at). Resumable and sharded like
arcnb.search.sampling.predict, each process on its own. `refine_from` refines the first turns of another set,
for comparing refiners on the same ones. With `last_share` in place of turns, the rest of the budget goes to
the tasks whose selection is least certain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from arcnb.arc.predictions.prediction import KEY_COLUMNS
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.tables import other_versions
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError, number_of, some
from arcnb.models.prompts.conversations import Conversations
from arcnb.models.prompts.rendering import template_digest
from arcnb.programs.executor.executor import Executor
from arcnb.search.sampling.conditions import (
    compare_conditions,
    conditions,
    hold_to_conditions,
    tasks_asked,
)
from arcnb.search.sampling.early_stop import EarlyStop
from arcnb.search.sampling.predict import predict, shard_of
from arcnb.search.sampling.report import InferenceReport
from arcnb.search.sampling.sampled_set import SampledSet
from arcnb.search.sampling.stage import sample
from arcnb.search.turns.budget import TurnPlan
from arcnb.search.turns.choice import LaterTurns, TurnChoice, choose_parents, least_certain
from arcnb.search.turns.report import TurnReport, TurnsReport


def predict_turns(
    made: SampledSet, backend, executor: Executor, plan: TurnPlan, refine_from: PredictionSet | None = None
) -> InferenceReport | TurnsReport:
    """Fill the set up to the plan and say what was done; one turn is plain `predict`.

    refine_from: a finished set, whose first turns (as many as the plan has of them) are refined; the set
    then holds the later turns only, and their parents are ids of that set. Raises ArcnbError before any work
    is lost, and when no first turn of all these tasks leaves room for an answer.
    """
    if len(plan.quotas) == 1:
        only = predict(made, backend, executor, plan.first)
        _refuse_empty(only, made, plan, backend)
        return only
    hold_to_conditions(made.predictions, _conditions(made, plan, refine_from))
    report, mine = TurnsReport(), replace(made, tasks=shard_of(made, plan.rounds, backend))
    if refine_from is None:
        # Divided as later turns are: a task that changed its shard would be refined before it is sampled.
        first = predict(made, backend, executor, plan.first, division=plan.rounds)
        _refuse_empty(first, made, plan, backend)
        report.turns.append(TurnReport(0, first, n_tasks=len(mine.tasks)))
    by_id = {task.task_id: task for task in mine.tasks}
    book = Conversations(by_id, made.prompt_format, executor)
    if plan.turns == 1:
        sure = least_certain(mine, plan)
        questions = LaterTurns(plan, 1, TurnChoice(parents={task_id: [] for task_id in sure}), book)
        going = [by_id[task_id] for task_id in sure]
        asked = sample(replace(made, tasks=going), questions, backend, executor, title="least certain tasks")
        report.turns.append(
            TurnReport(1, asked, n_tasks=len(sure), certainty=max(sure.values(), default=0.0))
        )
    for turn in range(1, plan.turns):
        choice = choose_parents(mine, plan, turn, refine_from, book, backend)
        going = [task for task_id, task in by_id.items() if task_id in choice.parents]
        solving = {task.task_id: choice.solving[task.task_id] for task in going}
        questions, stop = LaterTurns(plan, turn, choice, book), EarlyStop(plan.enough, solving)
        asked = sample(replace(made, tasks=going), questions, backend, executor, stop, f"turn {turn}")
        report.turns.append(TurnReport.of(turn, asked, choice, plan.slots(turn)))
    return report


def _refuse_empty(report: InferenceReport, made: SampledSet, plan: TurnPlan, backend) -> None:
    """ArcnbError for a set that stays empty; of a shard, the other shards may have prompts that fit."""
    if plan.rounds.n_shards == 1 and report.too_long and not report.made and not report.found:
        raise _no_room(report.too_long, made, backend.context)


def check_room(made: SampledSet, plan: TurnPlan, tokenizer, context: int) -> None:
    """ArcnbError where `predict_turns` would sample first turns and find that no prompt of them fits.

    For a stage to ask before it loads a model: the first prompt that fits ends it; small tasks come first.
    """
    if plan.rounds.n_shards > 1 or made.predictions.parts():
        return
    shortest: dict[str, int] = {}
    for task in sorted(made.tasks, key=_cells):
        views = [plan.first.view(task, round_) for round_ in range(plan.first.n_rounds)]
        # Nothing else of a view changes a prompt's length, see arcnb.models.prompts.lengths.
        differing = {(view.test_index, view.augmentation.n_rot90 % 2): view for view in views}
        for view in differing.values():
            length = len(made.prompt_format.prompt_ids(tokenizer, view.apply(task)))
            if length + made.sampling.max_tokens <= context:
                return
            shortest[task.task_id] = min(shortest.get(task.task_id, length), length)
    if shortest:
        raise _no_room(shortest, made, context)


def _cells(task: Task) -> int:
    grids = [*(grid for pair in task.train for grid in (pair.input, pair.output)), task.test[0].input]
    return sum(grid.size for grid in grids)


def _no_room(lengths: Mapping[str, int], made: SampledSet, context: int) -> ArcnbError:
    """lengths: of a prompt of each task, in tokens."""
    longest = made.sampling.max_tokens
    return ArcnbError(
        f"no prompt fits: the prompts of {number_of(len(lengths), 'task')} have "
        f"{min(lengths.values()):,} tokens and more, and answers of {longest:,} leave "
        f"{context - longest:,} of the context (max_length, max_completion_length)"
    )


def check_turns(made: SampledSet, plan: TurnPlan, refine_from: PredictionSet | None = None) -> None:
    """ArcnbError where `predict_turns` would refuse `refine_from`, or what the set was begun with.

    For a stage to ask before it loads a model; nothing is written.
    """
    compare_conditions(made.predictions, _conditions(made, plan, refine_from))


def _conditions(made: SampledSet, plan: TurnPlan, refine_from: PredictionSet | None) -> dict:
    """The conditions of first turns, and what later turns depend on: unlike first turns, they change with the
    budget."""
    wanted = conditions(made, plan.first)
    if plan.turns == 1 and len(plan.quotas) == 1:
        return wanted
    if plan.turns == 1:
        # The half of fewer tasks would be other ones, which get a share beside those that have it.
        if missing := sorted(tasks_asked(made.predictions) - wanted["tasks"].keys()):
            raise ArcnbError(
                f"{made.predictions.folder} was begun with {some(missing)}, too; a last share goes to half "
                "of a set's tasks, so it goes on with all of them"
            )
        last = {"turns": 1, "n_predictions": plan.rounds.n_predictions, "last_share": plan.last_share}
        return {**wanted, "settings": wanted["settings"] | last}
    later = {
        "turns": plan.turns,
        "n_predictions": plan.rounds.n_predictions,
        "first_share": plan.first_share,
        "chooser": plan.chooser,
        "stop_after": plan.rounds.stop_after,
        "refine_template": made.prompt_format.refine_template,
        "refine_template_sha256": template_digest(made.prompt_format.refine_template),
        "refine_from": "" if refine_from is None else _digest(refine_from, plan, made),
    }
    return {**wanted, "settings": wanted["settings"] | later}


def _digest(refine_from: PredictionSet, plan: TurnPlan, made: SampledSet) -> str:
    """Which first turns these are, of all tasks that the set was begun with: it may go on with fewer.
    ArcnbError for a set without any, or of another version of the tasks."""
    known = {task.task_id: task.fingerprint for task in made.tasks}
    ids = known.keys() | tasks_asked(made.predictions)
    names = [*KEY_COLUMNS, "task_fingerprint", "status", "fingerprint"]
    frame = refine_from.read(columns=names, task_ids=ids)
    frame = frame[(frame["turn"] == 0) & (frame["round"] < plan.first.n_rounds)]
    if frame.empty:
        raise ArcnbError(f"refine_from {refine_from.folder} holds no first turns of these tasks")
    if changed := other_versions(frame, known):
        raise ArcnbError(
            f"refine_from {refine_from.folder} answers another version of task {changed[0]}: "
            "the fingerprints differ"
        )
    return hashlib.sha256(frame.to_csv(index=False).encode()).hexdigest()
