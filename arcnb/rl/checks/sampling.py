"""Settings of TRL and of the sampler that cannot work with any trainer.

Sampling is refused where it leaves next to no gradient. With top_p, top_k, min_p or a repetition penalty the
sampler draws from another distribution than the one whose probabilities are trained. Where vLLM samples, TRL
corrects that by importance ratios; at the level of whole sequences that of a 200-token completion was
measured at about 1e-3 with top_p 0.95 and about 1e-12 with repetition penalty 1.05. A run then looks healthy
and learns nothing. What transformers' generate samples is never corrected, since it hands TRL no
log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from arcnb.errors import number_of
from arcnb.rl.plan.grpo import GrpoPlan

PLAIN = {
    "top_p": (1.0, None),
    "top_k": (0, -1, None),
    "min_p": (0, 0.0, None),
    "repetition_penalty": (1.0, None),
}


def sampling_problems(plan: GrpoPlan) -> Iterator[str]:
    """Values of TRL's settings that cannot work with any trainer."""
    settings = plan.settings
    yield from _group(plan, settings)
    if settings["max_steps"] <= 0 and settings["num_train_epochs"] <= 0:
        yield "either max_steps or num_train_epochs must be positive"
    if settings["vllm_mode"] == "server" and not plan.samples_by_vllm:
        yield "vllm_mode='server' needs use_vllm=True; transformers would sample"
    if settings.get("vllm_server_base_url") and settings["vllm_mode"] != "server":
        yield "vllm_server_base_url needs vllm_mode='server'"
    largest = settings["epsilon"] if settings["epsilon_high"] is None else settings["epsilon_high"]
    if settings["loss_type"] == "cispo" and largest < 1:
        yield (
            f"loss_type='cispo' with epsilon_high={largest} cuts every ratio to that, 1 as well; it is the "
            "largest ratio there, 5.0 in the profile scalerl"
        )
    altered = altered_sampling(settings)
    mode = settings["vllm_importance_sampling_mode"]
    corrected = plan.samples_by_vllm and settings["vllm_importance_sampling_correction"]
    if altered and corrected and mode.startswith("sequence"):
        named = ", ".join(f"{name}={value}" for name, value in altered.items())
        yield (
            f"{named} with vllm_importance_sampling_mode={mode!r} leaves next to no gradient; "
            "sample plainly, or choose a token-level mode"
        )


def altered_sampling(settings: Mapping) -> dict:
    """The entries of settings that make sampling differ from the plain policy."""
    return {
        name: settings[name] for name, plain in PLAIN.items() if settings.get(name, plain[0]) not in plain
    }


def _group(plan: GrpoPlan, settings: Mapping) -> Iterator[str]:
    """Groups that cannot be split evenly, and rounds that would end inside a step."""
    group, accumulation = settings["num_generations"], settings["gradient_accumulation_steps"]
    if group * plan.prompts_per_step % (accumulation * plan.num_processes):
        prompts = f" x prompts_per_step={plan.prompts_per_step}" if plan.prompts_per_step > 1 else ""
        processes = f" x num_processes={plan.num_processes}" if plan.num_processes > 1 else ""
        yield (
            f"num_generations={group}{prompts} is not divisible by "
            f"gradient_accumulation_steps={accumulation}{processes}; one optimizer step trains the whole "
            f"group of {number_of(plan.prompts_per_step, 'prompt')}"
        )
    parts = settings.get("steps_per_generation")
    if parts is not None and (parts < 1 or parts % accumulation):
        yield (
            f"steps_per_generation={parts} is not a multiple of gradient_accumulation_steps={accumulation}; "
            "one round of sampling serves whole optimizer steps"
        )
