"""Why a search or an inference cannot run as asked: every reason, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from arcnb.arc.tasks import Task
from arcnb.arc.views import AUGMENTATIONS
from arcnb.models.generation import backend_name, sampling_problems
from arcnb.programs.limits import Limits
from arcnb.search.branches import Programs
from arcnb.search.inference_plan import InferencePlan
from arcnb.search.selection import CHOOSERS


def problems(plan: InferencePlan, tasks: Sequence[Task], own: Path) -> list[str]:
    """One sentence each; empty where the plan can run. Sets that were begun otherwise, and `refine_from`,
    are looked into when nothing else is wrong.

    own: where predictions go without an `output`.
    """
    from arcnb.arc.predictions import PredictionSet
    from arcnb.models.prompt_format import prompt_format
    from arcnb.search.adapters import adapter_runs, sampled_sets
    from arcnb.search.turns import check_turns

    found = [*_round_problems(plan), *_turn_problems(plan), *_shared_problems(plan)]
    if plan.engine.engines < 0:
        found.append(f"engines is {plan.engine.engines}, it must be at least 1, or 0 to choose")
    if plan.rounds.n_shards > 1 and not plan.output:
        found.append(
            f"n_shards is {plan.rounds.n_shards} and output is empty: give all shards the same output, or "
            "start them by `arcnb sweep 03 --shards`; each run folder is its own, so their predictions would "
            "not meet"
        )
    if plan.refine_from and plan.turns == 1:
        found.append("refine_from needs turns of at least 2: there is nothing to refine in one turn")
    found += _said(adapter_runs, plan.adapter, own, plan.model)
    found += _said(prompt_format, plan.template, plan.encoding, plan.refine_template)
    if found:
        return found
    first = PredictionSet(plan.refine_from) if plan.refine_from else None
    return [
        said
        for made in sampled_sets(plan, tasks, own).values()
        for said in _said(check_turns, made, plan, first)
    ]


def _said(do: Callable, *given, **more) -> list[str]:
    """The sentence of a ValueError, if there is one."""
    try:
        do(*given, **more)
    except ValueError as error:
        return [str(error)]
    return []


def _round_problems(plan: InferencePlan) -> list[str]:
    rounds = plan.rounds
    found = [
        f"{name} must be positive, not {getattr(rounds, name)}"
        for name in ("n_predictions", "per_prompt")
        if getattr(rounds, name) < 1
    ]
    found += _augment_problems(rounds.augment)
    if rounds.stop_after < 0:
        found.append(f"stop_after must not be negative, it is {rounds.stop_after}")
    if not 0 <= rounds.shard < rounds.n_shards:
        found.append(f"shard must be from 0 to n_shards - 1, not {rounds.shard} of {rounds.n_shards}")
    return found


def _augment_problems(augment: str) -> list[str]:
    if augment in AUGMENTATIONS:
        return []
    return [f"augment must be one of {', '.join(AUGMENTATIONS)}, not {augment!r}"]


def _turn_problems(plan: InferencePlan) -> list[str]:
    found = []
    if plan.turns < 1:
        found.append(f"turns must be at least 1, not {plan.turns}")
    if not 0 < plan.first_share <= 1:
        found.append(f"first_share must be above 0 and at most 1, not {plan.first_share}")
    if plan.chooser not in CHOOSERS:
        found.append(f"chooser {plan.chooser!r} does not exist; there are {', '.join(CHOOSERS)}")
    numbers = (plan.turns, plan.rounds.n_predictions, plan.rounds.per_prompt)
    if not found and min(numbers) > 0 and min(plan.quotas) < 1:
        found.append(
            f"{plan.rounds.n_predictions} predictions cannot be divided among {plan.turns} turns "
            f"with first_share {plan.first_share}: {', '.join(map(str, plan.quotas))}"
        )
    return found


def _shared_problems(plan: InferencePlan) -> list[str]:
    """Of the branches that all plans of the room have, and of the backend's name."""
    found = sampling_problems(plan.sampling, "max_completion_length")
    for name in ("max_length", "max_num_seqs"):
        if getattr(plan.engine, name) < 0:
            found.append(f"{name} must not be negative, it is {getattr(plan.engine, name)}")
    share = plan.engine.vllm_gpu_memory_utilization
    if not 0 < share <= 1:
        found.append(f"vllm_gpu_memory_utilization must be above 0 and at most 1, not {share}")
    return found + _said(backend_name, plan.backend) + _program_problems(plan.programs)


def _program_problems(programs: Programs) -> list[str]:
    found = []
    if programs.workers < 0:
        found.append(f"workers must be at least 1, got {programs.workers} (0 means one a core)")
    found += _said(Limits, seconds_per_input=programs.seconds_per_input)
    memory = _said(Limits, memory_mb=programs.program_memory_mb)
    return found + [f"program_{sentence}" for sentence in memory]
