"""Why a search or an inference cannot run as asked: every reason, before anything is loaded."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.scores.submission import is_submission
from arcnb.machine.files import write_problem
from arcnb.models.registry import name_problems
from arcnb.plans import refusals
from arcnb.programs.executor.limits import Limits
from arcnb.search.branches import Programs
from arcnb.search.inference import InferencePlan, compared_adapters, sampled_sets
from arcnb.search.learning.plan import ALONE, LEARN, LearningRounds, SearchPlan

if TYPE_CHECKING:
    from arcnb.arc.tasks.task_set import TaskSet
    from arcnb.search.sampling.sampled_set import SampledSet


def problems(plan: InferencePlan | SearchPlan, tasks: TaskSet, own: Path = Path()) -> list[str]:
    """One sentence each; empty where the plan can run. tasks: of its task set.

    own: where the predictions of an inference go without an `output`.
    """
    found = _own_problems(plan)
    if isinstance(plan, SearchPlan):
        return found + _task_problems(plan, tasks)
    return found or _set_problems(plan, tasks, own)


def plan_problems(plan: InferencePlan | SearchPlan) -> list[str]:
    """Those of them that the plan itself and the names in it tell, a sentence each."""
    from arcnb.arc.predictions.prediction_set import check_set
    from arcnb.arc.tasks.task_set import check_source
    from arcnb.synth.task_sets import check_recipe

    served = isinstance(plan, InferencePlan) and plan.backend == "server"
    if isinstance(plan, SearchPlan):
        found, adapters = refusals(check_recipe, plan.tasks, plan.n_built), [plan.adapter]
    else:
        found = refusals(check_source, plan.tasks)
        found += refusals(check_set, plan.refine_from) if plan.refine_from else []
        compared = [] if refusals(compared_adapters, plan) else compared_adapters(plan).values()
        adapters = [adapter for adapter, _ in compared if not served]  # a server knows its own by name
    return _own_problems(plan) + found + name_problems(plan.model, adapters, need_weights=not served)


def _own_problems(plan: InferencePlan | SearchPlan) -> list[str]:
    more = _search_problems(plan) if isinstance(plan, SearchPlan) else _inference_problems(plan)
    return _program_problems(plan.programs) + more


def _inference_problems(plan: InferencePlan) -> list[str]:
    from arcnb.models.prompts.format import prompt_format

    found = [*_round_problems(plan), *_turn_problems(plan)]
    if plan.rounds.n_shards > 1 and not plan.output:
        found.append(
            f"n_shards is {plan.rounds.n_shards} and output is empty: give all shards the same output, or "
            "start them by `arcnb sweep 03 --shards`; each run folder is its own, so their predictions would "
            "not meet"
        )
    if plan.refine_from and plan.turns == 1:
        found.append("refine_from needs turns of at least 2: there is nothing to refine in one turn")
    found += _output_problems(plan) + refusals(compared_adapters, plan)
    return found + refusals(prompt_format, plan.template, plan.encoding, plan.refine_template)


def _set_problems(plan: InferencePlan, tasks: TaskSet, own: Path) -> list[str]:
    """Sets that were begun otherwise, `refine_from`, and prompts."""
    from arcnb.arc.predictions.prediction_set import PredictionSet
    from arcnb.search.turns.turns import check_turns

    first = PredictionSet(plan.refine_from) if plan.refine_from else None
    sets = list(sampled_sets(plan, tasks, own).values())
    found = [said for made in sets for said in refusals(check_turns, made, plan, first)]
    return found or (refusals(_check_room, plan, sets[0]) if first is None else [])


def _check_room(plan: InferencePlan, made: SampledSet) -> None:
    """As `check_room`, by the longest context that the engine can have: servers may have a shorter one."""
    from arcnb.models.registry import load_tokenizer, resolve_model
    from arcnb.search.turns.turns import check_room

    model = resolve_model(plan.model, need_weights=False)
    if limits := [length for length in (plan.engine.max_length, model.context) if length]:
        check_room(made, plan, load_tokenizer(model), min(limits))


def _output_problems(plan: InferencePlan) -> list[str]:
    """Of a folder that takes no files: else the first of them would find that out, when an engine is open."""
    if not plan.output:
        return []  # the run folder, which takes the manifest
    folder = Path(plan.output)
    there = next(one for one in (folder, *folder.parents) if os.path.exists(one))
    problem = write_problem(there)
    return [f"output {folder} takes no files: {problem}"] if problem else []


def _round_problems(plan: InferencePlan) -> list[str]:
    rounds = plan.rounds
    found = []
    if not 0 <= rounds.shard < rounds.n_shards:
        found.append(f"shard must be from 0 to n_shards - 1, not {rounds.shard} of {rounds.n_shards}")
    return found


def _turn_problems(plan: InferencePlan) -> list[str]:
    found = []
    if min(plan.quotas) < 1:
        found.append(
            f"{plan.rounds.n_predictions} predictions cannot be divided among {plan.turns} turns "
            f"with first_share {plan.first_share} or last_share {plan.last_share}: "
            f"{', '.join(map(str, plan.quotas))}"
        )
    if plan.last_share and plan.turns == 1 and len(plan.quotas) == 1:
        found.append(
            f"last_share {plan.last_share} of {plan.rounds.n_predictions} predictions rounds to no whole "
            f"prompt of {plan.rounds.per_prompt} (per_prompt), so nothing would be kept for the "
            "least certain tasks"
        )
    if plan.last_share and (plan.turns > 1 or plan.rounds.stop_after or plan.rounds.n_shards > 1):
        found.append(
            "last_share goes with turns=1, stop_after=0 and n_shards=1: which tasks are least certain is "
            "known when all of them have their other predictions"
        )
    return found


def _search_problems(plan: SearchPlan) -> list[str]:
    from arcnb.models.prompts.format import prompt_format

    found = refusals(prompt_format, plan.template, plan.encoding)
    if plan.ids and plan.n_tasks not in (0, plan.options()["n_tasks"].default):
        found.append(
            f'n_tasks is {plan.n_tasks} and task_ids is "{plan.task_ids}"; give task_ids "" to take n_tasks'
        )
    if twice := [id_ for id_, n in Counter(plan.ids).items() if n > 1]:
        found.append(f"task_ids names task {twice[0]!r} twice")
    if not set(plan.searches) <= {ALONE, LEARN}:
        found.append(f"arms are {ALONE} and {LEARN}, not {plan.arms or 'none'}")
    elif len(set(plan.searches)) < len(plan.searches):
        found.append(f"arms names a search twice: {plan.arms}")
    submission = Path(plan.submission_file)
    if plan.submission and plan.submission_file and submission.exists() and not is_submission(submission):
        found.append(f"submission_file {submission} is there already and is no submission; name another file")
    if not any(vars(plan.budget).values()):
        found.append(
            "the budget of a task needs a limit: n_predictions, budget_tokens or budget_seconds above 0"
        )
    return found + _learning_round_problems(plan.rounds) + _learning_problems(plan)


def _learning_round_problems(rounds: LearningRounds) -> list[str]:
    found = []
    for name in ("first_round", "per_round"):
        value = getattr(rounds, name)
        if value % rounds.per_prompt:
            found.append(f"{name} is {value}, it must be a multiple of per_prompt, {rounds.per_prompt}")
    if rounds.group_size == 0:
        found.append(f"group_size is {rounds.group_size}, it must be positive, or -1 for all tasks")
    return found


def _learning_problems(plan: SearchPlan) -> list[str]:
    """Of what is learned from, and how."""
    lora = plan.lora
    found = []
    if plan.lessons != "hindsight" and not plan.rounds.keep_adapter:
        found.append(
            f"lessons={plan.lessons!r} does not go with keep_adapter=False: the answers are of the model "
            "that learns, and a fresh adapter has not written them"
        )
    if lora.warmup_steps > 1 and lora.warmup_steps % 1:
        found.append(f"warmup_steps is {lora.warmup_steps}: whole steps, or a share below 1")
    if not lora.target_modules:
        found.append("lora.target_modules names no layer for the adapter")
    return found


def _task_problems(plan: SearchPlan, tasks: TaskSet) -> list[str]:
    unknown = [id_ for id_ in plan.ids if id_ not in tasks.ids]
    return [
        f'{tasks.name} has no task {id_!r}; give task_ids "" to take n_tasks of its tasks'
        for id_ in unknown[:1]
    ]


def _program_problems(programs: Programs) -> list[str]:
    found = refusals(Limits, seconds_per_input=programs.seconds_per_input)
    memory = refusals(Limits, memory_mb=programs.program_memory_mb)
    return found + [f"program_{sentence}" for sentence in memory]
