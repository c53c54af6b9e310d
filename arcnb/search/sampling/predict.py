"""Sampling predictions for a task set: rounds of first-turn prompts, in shards.

Any number of processes, each with its shard, fill one set and need not know of one another. What a stage does
with its prompts is in arcnb.search.sampling.stage; refinements of what came out, in arcnb.search.turns.turns.
"""

from __future__ import annotations

from dataclasses import replace

from arcnb.arc.predictions.stop_rules import record_rule
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import View
from arcnb.models.prompts.chat import count_tokens
from arcnb.programs.executor.executor import Executor
from arcnb.search.sampling.conditions import conditions, hold_to_conditions
from arcnb.search.sampling.early_stop import EarlyStop
from arcnb.search.sampling.questions import FirstTurns
from arcnb.search.sampling.report import InferenceReport
from arcnb.search.sampling.rounds import RoundPlan, shard_tasks
from arcnb.search.sampling.sampled_set import SampledSet
from arcnb.search.sampling.stage import sample


def predict(
    made: SampledSet, backend, executor: Executor, plan: RoundPlan, division: RoundPlan | None = None
) -> InferenceReport:
    """Fill the set up to the plan and say what was done. Raises ArcnbError before any work is lost.

    division: the plan whose work is divided among the shards, where this one is a part of it, and to which
    the caller has held the set.
    """
    if division is None:
        hold_to_conditions(made.predictions, conditions(made, plan))
    record_rule(made.predictions, plan.stop_after, plan.n_predictions)
    mine = replace(made, tasks=shard_of(made, division or plan, backend))
    early_stop = EarlyStop(plan.stop_after) if plan.stop_after else None
    return sample(mine, FirstTurns(plan, made.prompt_format), backend, executor, early_stop)


def shard_of(made: SampledSet, plan: RoundPlan, backend) -> list[Task]:
    """The tasks of the plan's shard; shards are balanced by tokens to read and, at most, to write.

    The engine's context has no say, though it leaves prompts out: a shard that is run again with a smaller
    one, for want of memory, would else take other tasks than before, and some tasks would be in no shard.
    """
    if plan.n_shards == 1:
        return list(made.tasks)
    prompts = [made.prompt_format.prompt(View.plain(task).apply(task)) for task in made.tasks]
    written = plan.n_predictions * made.sampling.max_tokens
    weights = [plan.n_rounds * length + written for length in count_tokens(backend.tokenizer, prompts)]
    return shard_tasks(made.tasks, weights, (plan.shard, plan.n_shards))
