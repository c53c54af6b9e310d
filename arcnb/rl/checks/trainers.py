"""What the trainer, its learner or the sampling engine cannot do together."""

from __future__ import annotations

from collections.abc import Iterator

from arcnb.models.lora.precision import eight_bits_problem, four_bits_problem
from arcnb.plans import conflicts
from arcnb.rl.plan.grpo import GrpoPlan


def trainer_problems(plan: GrpoPlan) -> Iterator[str]:
    """What the trainer or the sampling engine cannot do."""
    unsloth = plan.trainer == "unsloth"
    if plan.load_in_4bit and (problem := four_bits_problem(unsloth and plan.samples_by_vllm)):
        yield problem
    if plan.vllm.eight_bits and plan.colocated and (problem := eight_bits_problem()):
        yield problem
    cache = plan.vllm.kv_cache_dtype
    if cache != "auto" and unsloth:
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
    if unsloth and plan.num_processes > 1:  # in ironbar/arc25 such a training hung
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
        "parallel='zero3', which spreads the policy's weights": plan.zero3,
    }
    merging = {"vllm_shared_weights=True, which merges the adapter into them": plan.vllm.shared_weights}
    wrong = {
        "group_attention": elsewhere | {f"vllm_kv_cache_dtype={cache!r}": cache != "auto"},
        "shared_weights": plain_base | {"cast_lm_head_to_fp32=True": plan.trl.get("cast_lm_head_to_fp32")},
        "adapter_alone": plain_base | merging,
        "ahead": elsewhere
        | merging
        | {
            f"num_processes={plan.num_processes}": plan.num_processes > 1,
            "turns above 1": plan.turns > 1,
            "vllm_importance_sampling_correction=False, which takes samples of an older policy for the "
            "policy's own": not plan.trl["vllm_importance_sampling_correction"],
            "vllm_enable_sleep_mode=True, which gives the sampler's memory to the learner": sleeps,
        },
    }
    for name, reasons in wrong.items():
        yield from conflicts({f"vllm_{name}=True": getattr(plan.vllm, name)}, reasons)
    of_its_own = {"vllm_shared_weights=True, which has one copy for both": plan.vllm.shared_weights}
    yield from conflicts({"vllm_weight_dtype='fp8'": plan.vllm.eight_bits}, plain_base | of_its_own)
    yield from conflicts({f"vllm_kv_cache_gb={plan.vllm.kv_cache_gb:g}": plan.vllm.kv_cache_gb}, elsewhere)


def _shared_prompt(plan: GrpoPlan) -> Iterator[str]:
    """What shared prompts cannot go together with; the model itself is looked at at the first step."""
    reasons = {
        f"trainer={plan.trainer!r}, which computes log-probabilities in its own way": plan.trainer != "trl",
        "parallel='zero3', with which it was never tried; use ddp": plan.zero3,
    }
    yield from conflicts({"shared_prompt=True": plan.shared_prompt}, reasons)


def _learner(plan: GrpoPlan) -> Iterator[str]:
    """What the learner cannot leave out with the plan's other options."""
    asked, group = plan.learner, plan.trl["num_generations"]
    part = f"learner_trained_part={asked.trained_part:g}"
    if asked.old_log_probs != "pass" and not (
        plan.samples_by_vllm and plan.trl["vllm_importance_sampling_correction"]
    ):
        yield (
            f"learner_old_log_probs={asked.old_log_probs!r} needs use_vllm=True, whose samples come with "
            "log-probabilities, and vllm_importance_sampling_correction=True"
        )
    if asked.trained_part < 1 and round(asked.trained_part * group) < 2:
        yield f"{part} of num_generations={group} leaves fewer than 2 completions to compare"
    if asked.reference_part < 1 and not plan.trl["beta"]:
        yield f"learner_reference_part={asked.reference_part:g} needs a beta above 0; it would do nothing"
    left_out = {
        f"learner_reference_part={asked.reference_part:g}": asked.reference_part < 1,
        part: asked.trained_part < 1,
        "learner_skip_silent=True": asked.skip_silent,
    }
    reasons = {
        "parallel='zero3', whose processes all make the same passes": plan.zero3,
        "loss_type='bnpo', which divides by the tokens of a part of a step": (
            plan.trl["loss_type"] == "bnpo" and asked.chooses
        ),
        "advantages='unlikely', which tells equal rewards apart": (
            plan.advantages == "unlikely" and asked.skip_silent
        ),
        "self_teacher, from which failed groups learn": plan.self_teacher and asked.skip_silent,
        "an entropy bonus, which is of all completions": asked.chooses
        and bool(plan.trl.get("entropy_coef") or plan.trl.get("use_adaptive_entropy")),
    }
    options = left_out | {f"learner_old_log_probs={asked.old_log_probs!r}": asked.old_log_probs != "pass"}
    for option, holds in options.items():
        if holds and plan.trainer != "trl":
            yield f"{option} needs trainer='trl'; {plan.trainer} computes log-probabilities in its own way"
    yield from conflicts(left_out, reasons)
