"""Sampling predictions for a task set: rounds of first-turn prompts, in shards.

Any number of processes, each with its shard, fill one set and need not know of one another. What a stage does
with its prompts is in arcnb.search.sampling_stage; refinements of what came out, in arcnb.search.turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from arcnb.arc.predictions import PredictionSet
from arcnb.arc.stop_rules import record_rule
from arcnb.arc.tasks import Task
from arcnb.arc.views import View
from arcnb.models.chat import count_tokens
from arcnb.models.generation import Sampling
from arcnb.models.prompt_format import PromptFormat
from arcnb.programs.executor import Executor
from arcnb.search.conditions import conditions, hold_to_conditions
from arcnb.search.early_stop import EarlyStop
from arcnb.search.inference_report import InferenceReport
from arcnb.search.questions import FirstTurns
from arcnb.search.rounds import PlanError, RoundPlan, shard_tasks
from arcnb.search.sampling_stage import sample

__all__ = ["InferenceReport", "PlanError", "RoundPlan", "predict", "shard_of"]


def predict(
    tasks: Sequence[Task],
    backend,
    predictions: PredictionSet,
    executor: Executor,
    plan: RoundPlan,
    prompt_format: PromptFormat,
    sampling: Sampling,
    *,
    model: str = "",
    adapter: str = "",
    division: RoundPlan | None = None,
    part_rows: int = 2048,
    part_seconds: float = 60.0,
) -> InferenceReport:
    """Fill `predictions` up to the plan and say what was done. Raises PlanError before any work is lost.

    division: the plan whose work is divided among the shards, where this one is a part of it.
    """
    hold_to_conditions(predictions, conditions(tasks, plan, prompt_format, sampling, model, adapter))
    record_rule(predictions, plan.early_stop, plan.n_predictions)
    mine = shard_of(tasks, division or plan, prompt_format, sampling, backend)
    return sample(
        mine,
        FirstTurns(plan, prompt_format),
        backend,
        predictions,
        executor,
        sampling,
        {"model": model, "adapter": adapter},
        EarlyStop(plan.early_stop) if plan.early_stop else None,
        part_rows=part_rows,
        part_seconds=part_seconds,
    )


def shard_of(
    tasks: Sequence[Task], plan: RoundPlan, prompt_format: PromptFormat, sampling: Sampling, backend
) -> list[Task]:
    """The tasks of the plan's shard; shards are balanced by tokens to read and, at most, to write.

    The engine's context has no say, though it leaves prompts out: a shard that is run again with a smaller
    one, for want of memory, would else take other tasks than before, and some tasks would be in no shard.
    """
    if plan.shard[1] == 1:
        return list(tasks)
    prompts = [prompt_format.prompt(View.plain(task).apply(task)) for task in tasks]
    written = plan.n_predictions * sampling.max_tokens
    weights = [plan.n_rounds * length + written for length in count_tokens(backend.tokenizer, prompts)]
    return shard_tasks(tasks, weights, plan.shard)
