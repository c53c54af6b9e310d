"""Everything that a GRPO run refuses, before anything heavy loads: `problems` names all of it at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import replace

from arcnb.models.lora.compatibility import (
    adapter_settings,
    beyond_matrices,
    changed_ends,
    check_starting,
    check_targets,
)
from arcnb.models.prompts.conversation_files import conversation_problems
from arcnb.models.registry import ModelPath, model_here, name_problems, resolve_adapter, resolve_model
from arcnb.models.training.log import log_problem
from arcnb.models.training.processes import parallel_problem
from arcnb.plans import conflicts, refusals
from arcnb.rl.checks.machine import context_of, machine_problems
from arcnb.rl.checks.sampling import sampling_problems
from arcnb.rl.checks.trainers import trainer_problems
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.rows.refusals import row_problems
from arcnb.rl.turns.conversation_rows import OTHERS, TEXTS


def problems(plan: GrpoPlan, tasks: Sequence, eval_tasks: Sequence) -> list[str]:
    """Why this run cannot be, a sentence each, all of them; empty for one that can. `use_vllm` is decided.

    tasks, eval_tasks: those to train on and to evaluate on. Loads nothing heavy and starts nothing.
    """
    found = problems_anywhere(plan, tasks, eval_tasks)
    if parallel := parallel_problem(plan.num_processes, plan.parallel):
        found.append(parallel)
    if log := log_problem(plan.trl["report_to"]):
        found.append(log)
    found += refusals(resolve_model, plan.model) or _of_model(plan, resolve_model(plan.model))
    if not found:  # of a plan that makes sense: what this machine has for it
        found += machine_problems(plan)
    return list(dict.fromkeys(found))


def plan_problems(plan: GrpoPlan) -> list[str]:
    """Those of them that the plan itself and the names in it tell, a sentence each. Where `use_vllm` is still
    to be decided, those that either way has."""
    ways = (True, False) if plan.use_vllm == "auto" else (plan.use_vllm,)
    first, *others = (problems_anywhere(replace(plan, use_vllm=way)) for way in ways)
    found = [sentence for sentence in first if all(sentence in other for other in others)]
    here = None if refusals(model_here, plan.model) else model_here(plan.model)
    of_model = _of_model(plan, here) if here else name_problems(plan.model, [plan.adapter])
    if asked := plan.refine_conversations:
        found += conversation_problems("refine_conversations", asked, TEXTS, OTHERS)
    return [*found, *plan.subject.source_problems(), *of_model]


def problems_anywhere(plan: GrpoPlan, tasks: Sequence = (), eval_tasks: Sequence | None = None) -> list[str]:
    """Those of them that no other machine, and no other model, would mend. Without tasks nothing is said of
    them."""
    found = [*_own(plan, eval_tasks), *_advantages(plan), *_guard(plan), *sampling_problems(plan)]
    found += row_problems(plan, tasks, eval_tasks or ())
    found += [*_turns(plan), *trainer_problems(plan)]
    found += [*plan.subject.problems(tasks), *refusals(lambda: plan.subject.rewards)]
    return found + refusals(lambda: plan.subject.limits)


def _own(plan: GrpoPlan, eval_tasks: Sized | None) -> Iterator[str]:
    rewards, signal, turn_reward = plan.rewards, plan.signal, plan.turn_reward
    idle = {
        f"turn_reward={turn_reward!r} needs turns above 1": plan.turns == 1 and turn_reward != "last",
        f"overlong_buffer={rewards.overlong_buffer} needs an overlong_weight above 0": (
            rewards.overlong_buffer and not plan.weights["overlong"]
        ),
        "the reward term 'improvement' needs refine_conversations, whose answers have parents": (
            plan.weights["improvement"] and not plan.refine_conversations
        ),
        f"signal_weight={signal.weight} needs signal_visits above 0": signal.weight and not signal.visits,
        "shared_prompt_offload=True needs shared_prompt=True": (
            plan.shared_prompt_offload and not plan.shared_prompt
        ),
        "fold_adapter=True needs an adapter to fold into the model": plan.fold_adapter and not plan.adapter,
    }
    yield from (f"{asked}; it would do nothing" for asked, holds in idle.items() if holds)
    every = plan.eval_steps
    if every > 0 and eval_tasks is not None and not eval_tasks:
        yield f"eval_steps={every}, but there are no evaluation tasks"
    if every > 0 and plan.num_generations_eval < 1:
        yield (
            f"num_generations_eval is {plan.num_generations_eval}, but an evaluation every {every} steps "
            "(eval_steps) takes at least 1 sample of each task"
        )


def _advantages(plan: GrpoPlan) -> Iterator[str]:
    most = plan.trl["num_generations"]
    if plan.advantages == "pass_at_k":
        for name, least in (("pass_at_k", 1), ("pass_at_k_last", 0)):
            if not least <= getattr(plan, name) <= most:
                yield f"{name} must be within {least} and num_generations={most}, not {getattr(plan, name)}"
    elif plan.pass_at_k_last:
        yield f"pass_at_k_last={plan.pass_at_k_last} needs advantages='pass_at_k'; it would do nothing"
    if plan.advantages == "unlikely" and plan.trainer != "trl":
        yield f"advantages='unlikely' ranks completions by TRL's log-probabilities; not with {plan.trainer}"
    reasons = {
        f"trainer={plan.trainer!r}": plan.trainer != "trl",
        "turns above 1": plan.turns > 1,
        "refine_conversations": plan.refine_conversations,
        "guide_programs, whose answers begin in the prompt": plan.guide.programs,
        "parallel='zero3', whose processes all make the same passes": plan.zero3,
    }
    yield from conflicts({"self_teacher": plan.self_teacher}, reasons)
    if plan.trl.get("multi_objective_aggregation", "sum_then_normalize") != "sum_then_normalize":
        yield "multi_objective_aggregation is of several reward functions; a run has one"


def _guard(plan: GrpoPlan) -> Iterator[str]:
    guard = plan.guard
    if guard.action == "rollback" and not plan.eval_steps:
        yield (
            "the guard's action 'rollback' goes back to the best checkpoint by solve rate of the eval tasks; "
            "set eval_steps to more than 0"
        )


def _turns(plan: GrpoPlan) -> Iterator[str]:
    """What conversations cannot go together with."""
    if plan.tree and (plan.turns != 2 or plan.turn_reward != "last" or plan.num_processes > 1):
        yield f"tree={plan.tree} needs turns=2, turn_reward='last' and one process"
    if plan.tree < 0 or (plan.tree and plan.trl["num_generations"] < 2 * (1 + plan.tree)):
        least = 2 * (1 + plan.tree)
        yield f"tree={plan.tree} needs num_generations of at least {least}: two trees to compare"
    if plan.turns <= 1:
        return
    if plan.refine_conversations:
        yield "turns above 1 begins with first turns; it does not go together with refine_conversations"
    apart = "the episodes of several would end at different turns"
    if plan.by_server and plan.num_processes > 1:
        yield f"turns above 1 with vllm_mode='server' takes one process: {apart}"
    if plan.zero3 and plan.use_vllm is False:  # each sampling gathers weights from all
        yield f"turns above 1 with parallel='zero3' and use_vllm=False takes one process: {apart}"
    if plan.samples_by_vllm and plan.trl.get("vllm_tensor_parallel_size", 1) > 1:
        yield "turns above 1 does not go together with vllm_tensor_parallel_size above 1"


def _of_model(plan: GrpoPlan, model: ModelPath) -> list[str]:
    """An adapter that does not fit, layers of a fresh one that the model lacks, sequences that it was not
    built for, and completions that leave no room for a prompt."""
    found = refusals(resolve_adapter, plan.adapter, model)
    if not found and (plan.fold_adapter or not resolve_adapter(plan.adapter, model)):
        found = refusals(check_targets, plan.lora.target_modules, model.folder, model.name)
    elif not found:
        adapter = resolve_adapter(plan.adapter, model)
        found = refusals(check_starting, adapter, model.folder, plan.use_vllm is not False)
        others = {
            "vllm_adapter_alone=True": plan.vllm.adapter_alone,
            "trainer='unsloth'": plan.trainer == "unsloth",
        }
        asked = next((name for name, holds in others.items() if holds), None)
        more = beyond_matrices(adapter_settings(adapter)) + changed_ends(adapter)
        if asked and more and not found:
            found = [
                f"{asked} needs a plain LoRA of inner layers, all of one rank and scale, and adapter "
                f"{adapter} has {', '.join(more)}"
            ]
    built_for = model.context or 8192
    if plan.max_length > built_for:
        found.append(
            f"max_length={plan.max_length}, but model {model.name!r} was built for {built_for} tokens"
        )
    longest = plan.trl["max_completion_length"]
    if longest >= context_of(plan, model):
        found.append(
            f"max_completion_length={longest} leaves no room for a prompt in a context of "
            f"{context_of(plan, model)} tokens"
        )
    return found
