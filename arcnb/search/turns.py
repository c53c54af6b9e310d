"""Inference with turns: first samples, refinements of the most promising, refinements of those.

    plan = TurnPlan(RoundPlan(n_predictions=128, per_prompt=8, seed=0), turns=2)
    report = predict_turns(tasks, engine, predictions, executor, plan, format_, sampling)

Turn by turn: the next one begins when the last is on disk, and asks about the tasks that are not solved yet
(on their train pairs; test outputs are never looked at). Resumable and sharded like arcnb.search.inference,
each process on its own. `first_from` refines the first turns of another set, for comparing refiners on the
same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from arcnb.arc.predictions import PredictionSet
from arcnb.arc.tasks import Task
from arcnb.models.generation import Sampling
from arcnb.models.prompt_format import PromptFormat
from arcnb.models.prompts import template_path
from arcnb.programs.executor import Executor
from arcnb.search.conditions import compare_conditions, conditions, hold_to_conditions
from arcnb.search.early_stop import EarlyStop
from arcnb.search.inference import predict, shard_of
from arcnb.search.inference_report import InferenceReport
from arcnb.search.later_turns import LaterTurns, choose_parents, conversations
from arcnb.search.rounds import PlanError
from arcnb.search.sampling_stage import sample
from arcnb.search.turn_budget import TurnPlan
from arcnb.search.turn_report import TURN_READ, TurnReport, TurnsReport, turn_table

__all__ = ["TURN_READ", "TurnPlan", "TurnsReport", "check_turns", "predict_turns", "turn_table"]


def predict_turns(
    tasks: Sequence[Task],
    backend,
    predictions: PredictionSet,
    executor: Executor,
    plan: TurnPlan,
    prompt_format: PromptFormat,
    sampling: Sampling,
    *,
    model: str = "",
    adapter: str = "",
    first_from: PredictionSet | None = None,
    part_rows: int = 2048,
    part_seconds: float = 60.0,
) -> InferenceReport | TurnsReport:
    """Fill `predictions` up to the plan and say what was done; one turn is plain `predict`.

    first_from: a finished set, whose first turns (as many as the plan has of them) are refined; `predictions`
    then holds the later turns only, and their parents are ids of that set. Raises PlanError before any work
    is lost, and when no first turn of all these tasks leaves room for an answer.
    """
    writing = {"part_rows": part_rows, "part_seconds": part_seconds}
    names = {"model": model, "adapter": adapter}
    stage = (tasks, backend, predictions, executor)
    if plan.turns == 1 and first_from is None:
        only = predict(*stage, plan.first, prompt_format, sampling, **names, **writing)
        _check_room(only, plan, backend, sampling)
        return only
    wanted = _conditions(tasks, plan, prompt_format, sampling, model, adapter, first_from)
    hold_to_conditions(predictions, wanted)
    report = TurnsReport()
    if first_from is None:
        # Divided as later turns are: a task that changed its shard would be refined before it is sampled.
        divided = {"division": plan.rounds, **writing}
        first = predict(*stage, plan.first, prompt_format, sampling, **names, **divided)
        _check_room(first, plan, backend, sampling)
        report.turns.append(TurnReport(0, first, n_tasks=len(tasks)))
    mine = shard_of(tasks, plan.rounds, prompt_format, sampling, backend)
    book = conversations(mine, prompt_format, executor)
    room = backend.context - sampling.max_tokens
    for turn in range(1, plan.turns):
        choice = choose_parents(mine, plan, turn, predictions, first_from, book, backend.tokenizer, room)
        finished = set(choice.finished)
        going = [task for task in mine if task.task_id not in finished]
        solving = {task.task_id: choice.solving[task.task_id] for task in going}
        made = sample(
            going,
            LaterTurns(plan, turn, choice, book),
            backend,
            predictions,
            executor,
            sampling,
            names,
            EarlyStop(plan.enough, solving),
            title=f"turn {turn}",
            **writing,
        )
        report.turns.append(TurnReport.of(turn, made, choice, plan.slots(turn)))
    return report


def _check_room(report: InferenceReport, plan: TurnPlan, backend, sampling: Sampling) -> None:
    """PlanError for a set that stays empty; of a shard, the other shards may have prompts that fit."""
    if plan.first.shard[1] == 1 and report.too_long and not report.made and not report.found:
        room = backend.context - sampling.max_tokens
        raise PlanError(
            f"no prompt fits: those of {len(report.too_long)} tasks have {min(report.too_long.values()):,} "
            f"tokens and more, and answers of {sampling.max_tokens:,} leave {room:,} of the context "
            "(max_model_len, max_tokens)"
        )


def check_turns(
    tasks: Sequence[Task],
    predictions: PredictionSet,
    plan: TurnPlan,
    prompt_format: PromptFormat,
    sampling: Sampling,
    *,
    model: str = "",
    adapter: str = "",
    first_from: PredictionSet | None = None,
) -> None:
    """PlanError where `predict_turns` would refuse `first_from`, or what the set was begun with.

    For a stage to ask before it loads a model; nothing is written.
    """
    wanted = _conditions(tasks, plan, prompt_format, sampling, model, adapter, first_from)
    compare_conditions(predictions, wanted)


def _conditions(tasks, plan: TurnPlan, prompt_format, sampling, model, adapter, first_from) -> dict:
    if plan.turns == 1 and first_from is not None:
        raise PlanError("first_from needs turns of at least 2: there is nothing to refine in one turn")
    wanted = conditions(tasks, plan.first, prompt_format, sampling, model, adapter)
    if plan.turns > 1:
        wanted["settings"] |= _turn_settings(plan, prompt_format, tasks, first_from)
    return wanted


def _turn_settings(plan: TurnPlan, prompt_format: PromptFormat, tasks, first_from) -> dict:
    """What later turns depend on. Unlike first turns alone they change with the budget."""
    template = template_path(prompt_format.refine_template).read_bytes()
    return {
        "turns": plan.turns,
        "n_predictions": plan.rounds.n_predictions,
        "first_share": plan.first_share,
        "chooser": plan.chooser,
        "early_stop": plan.rounds.early_stop,
        "refine_template": prompt_format.refine_template,
        "refine_template_sha256": hashlib.sha256(template).hexdigest(),
        "first_from": "" if first_from is None else _digest(first_from, plan, tasks),
    }


def _digest(first_from: PredictionSet, plan: TurnPlan, tasks: Sequence[Task]) -> str:
    """Which first turns these are. PlanError for a set without any, or of another version of the tasks."""
    ids = [task.task_id for task in tasks]
    names = ["task_id", "round", "index", "turn", "task_fingerprint", "status", "fingerprint"]
    frame = first_from.read(columns=names, task_ids=ids)
    frame = frame[(frame["turn"] == 0) & (frame["round"] < plan.first.n_rounds)]
    if frame.empty:
        raise PlanError(f"first_from {first_from.folder} holds no first turns of these tasks")
    known = {task.task_id: task.fingerprint for task in tasks}
    for task_id, fingerprint in zip(frame["task_id"], frame["task_fingerprint"], strict=True):
        if known[task_id] != fingerprint:
            raise PlanError(
                f"first_from {first_from.folder} answers another version of task {task_id}: "
                "the fingerprints differ"
            )
    return hashlib.sha256(frame.to_csv(index=False).encode()).hexdigest()
