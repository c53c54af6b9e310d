"""The trainer of a GRPO run: policy, configuration, reward, callbacks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.models.training.log import logged_as, metrics_log, stop_printing
from arcnb.models.training.preemption import agreed_stop, can_listen
from arcnb.rl.engine.options import (
    check_group_attention,
    engine_options,
    group_attention,
    sample_ids_alone,
    seeded_engines,
)
from arcnb.rl.engine.shared_weights import SharedWeights, sample_while_merged
from arcnb.rl.engine.weight_sync import send_merged_weights
from arcnb.rl.shared_prompt.trainer import shared_prefix_trainer
from arcnb.rl.trainer import callbacks as hooks
from arcnb.rl.trainer.effective_config import check_effective, effective_table
from arcnb.rl.trainer.policies import load_policy, load_unsloth_policy
from arcnb.rl.turns.held_out import EpisodeHeldOut
from arcnb.rl.turns.rewards import conversation_parts
from arcnb.rl.watching.sampler_gap import measuring

if TYPE_CHECKING:
    from arcnb.rl.trainer.training import Training


def make_trainer(run: Training, callbacks: Sequence):
    """(trainer with everything that hangs on it, table of its effective settings)."""
    import torch

    on_gpu = torch.cuda.is_available()
    plan, lora = run.plan, run.plan.lora.config
    if plan.trainer == "unsloth":
        policy = load_unsloth_policy(
            run.model,
            run.adapter,
            lora,
            context=run.context,
            use_vllm=run.settings["use_vllm"],
            gpu_memory_utilization=run.settings.get("vllm_gpu_memory_utilization", 0.3),
            load_in_4bit=plan.load_in_4bit,
            gradient_checkpointing=run.settings["gradient_checkpointing"],
            seed=plan.seed,
        )
        peft_config = None
    else:
        policy, peft_config = load_policy(
            run.model, run.adapter, lora, load_in_4bit=plan.load_in_4bit, on_gpu=on_gpu
        )
    from trl import GRPOConfig, GRPOTrainer

    base = GRPOTrainer
    if plan.shared_prompt:
        base = shared_prefix_trainer(base, plan.shared_prompt_tokens, offload=plan.shared_prompt_offload)
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    asked = run.settings | {
        "per_device_train_batch_size": plan.completions_a_part,
        "shuffle_dataset": False,
        "seed": plan.seed,
        "bf16": on_gpu and not run.settings.get("fp16"),
        "use_cpu": not on_gpu,
        "disable_tqdm": True,
        "enable_jit_checkpoint": can_listen() and n_processes == 1,
        "log_completions": True,
        "num_completions_to_print": 0,
    }
    if run.settings["use_vllm"]:
        asked.setdefault("vllm_max_model_length", run.context)
    config = GRPOConfig(output_dir=str(run.output / "checkpoints"), **logged_as(run.output), **asked)
    rows, rollout, reward_class = conversation_parts(run)
    reward = reward_class(
        plan.subject.rewards,
        rows.tasks,
        run.executor,
        PredictionSet(run.output / "rollouts"),
        run.state.history,
        model=run.model.name,
        adapter=str(run.adapter) if run.adapter else None,
        process=int(os.environ.get("RANK", "0")),
        n_processes=n_processes,
    )
    evaluation = _held_out(run)
    at_once = plan.steps_a_round
    rounds = -(-run.settings["max_steps"] // at_once)  # a round that is not full would not be sampled
    open_trainer = partial(
        measuring(base),
        model=policy,
        reward_funcs=reward,
        args=config,
        train_dataset=rows.dataset(rounds * at_once * plan.prompts_per_step),
        processing_class=run.rows.tokenizer,
        peft_config=peft_config,
        **({"rollout_func": rollout} if rollout else {}),
        callbacks=[
            metrics_log(run.output / "metrics.jsonl"),
            *callbacks,
            hooks.run_state_callback(run.state),
            hooks.resuming_callback(run.state, plan.seed),
            *([evaluation] if evaluation else []),
            hooks.guard_callback(run.state, reward),
            *([agreed_stop()] if can_listen() and n_processes > 1 else []),
            hooks.keeping_callback(run.state, plan.disk_budget_gb),
        ],
    )
    engine = {"quantization": None} if plan.load_in_4bit else {}  # see `arcnb.rl.engine.weight_sync`
    if (cache := plan.vllm.kv_cache_dtype) != "auto":
        engine["kv_cache_dtype"] = cache
    grouped = plan.vllm.group_attention
    shared = SharedWeights(policy) if plan.vllm.shared_weights else None
    on_cpu = run.settings["use_vllm"] and not on_gpu
    if on_cpu:
        from arcnb.rl.engine.cpu_generation import generating_on_cpu
    with (
        generating_on_cpu() if on_cpu else nullcontext(),
        engine_options(**engine),
        seeded_engines(plan.seed),
        group_attention() if grouped else nullcontext(),
        shared.opening() if shared else nullcontext(),
    ):
        trainer = open_trainer()
    reward.ends = frozenset(trainer.eos_token_ids)
    if on_cpu:
        trainer.vllm_generation.follow(trainer, run.state)
    if grouped:
        check_group_attention(trainer)
    for callback in (*callbacks, evaluation):
        if hasattr(callback, "trainer"):
            callback.trainer = trainer
    if plan.trainer == "trl":
        sample_ids_alone(trainer)
    if shared:
        sample_while_merged(trainer, shared)
    elif plan.trainer == "trl":  # unsloth's engine has the policy's own weights
        send_merged_weights(trainer)
    stop_printing(trainer)
    check_effective(asked, trainer.args, plan.accept_other_config)
    return trainer, effective_table(asked, trainer.args)


def _held_out(run: Training):
    plan = run.plan
    if not plan.eval_steps:
        return None
    kind = (
        plan.subject.held_out(run.executor)
        if plan.turns == 1
        else partial(EpisodeHeldOut, turns=plan.turns, context=run.context)
    )
    evaluation = kind(
        run.eval_tasks,
        plan.num_generations_eval,
        plan.eval_steps,
        run.rows.prompt_format,
        run.rows.tokenizer,
        run.executor,
        PredictionSet(run.output / "held_out"),
        plan.seed,
        run.settings["max_completion_length"],
    )
    return hooks.held_out_callback(run.state, evaluation)


def vllm_environment() -> dict[str, str]:
    """What is missing in the environment and has to be there before vLLM 0.23 or unsloth is imported.

    Without flashinfer vLLM's sampler must be told to do without it; unsloth's first step did not come out of
    compilation within minutes.
    """
    values = {"UNSLOTH_COMPILE_DISABLE": "1"}
    if find_spec("flashinfer") is None:
        values["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    return {name: value for name, value in values.items() if name not in os.environ}
