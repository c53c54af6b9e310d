"""The trainer of a GRPO run: policy, configuration, reward, callbacks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from arcnb.arc.predictions import PredictionSet
from arcnb.models.preemption import agreed_stop, can_listen
from arcnb.models.training_log import logged_as, metrics_log, stop_printing
from arcnb.rl import callbacks as hooks
from arcnb.rl.effective_config import check_effective, effective_table
from arcnb.rl.multi_turn_held_out import EpisodeHeldOut
from arcnb.rl.multi_turn_reward import conversation_parts
from arcnb.rl.policies import load_policy, load_unsloth_policy
from arcnb.rl.sampler_engine import (
    check_group_attention,
    engine_options,
    group_attention,
    sample_ids_alone,
    seeded_engines,
)
from arcnb.rl.sampler_gap import measuring
from arcnb.rl.settings import LORA_DEFAULTS, batch_layout, steps_a_generation
from arcnb.rl.shared_prefix import shared_prefix_trainer
from arcnb.rl.shared_weights import SharedWeights, sample_while_merged
from arcnb.rl.weight_sync import send_merged_weights

if TYPE_CHECKING:
    from arcnb.rl.training import Training


def make_trainer(run: Training, callbacks: Sequence):
    """(trainer with everything that hangs on it, table of its effective settings)."""
    import torch

    on_gpu = torch.cuda.is_available()
    lora = LORA_DEFAULTS | (run.lora or {})
    if run.options.trainer == "unsloth":
        policy = load_unsloth_policy(
            run.model,
            run.adapter,
            lora,
            context=run.context,
            use_vllm=run.settings["use_vllm"],
            gpu_memory_utilization=run.settings.get("vllm_gpu_memory_utilization", 0.3),
            load_in_4bit=run.options.load_in_4bit,
            gradient_checkpointing=run.settings["gradient_checkpointing"],
            seed=run.seed,
        )
        peft_config = None
    else:
        policy, peft_config = load_policy(
            run.model, run.adapter, lora, load_in_4bit=run.options.load_in_4bit, on_gpu=on_gpu
        )
    from trl import GRPOConfig, GRPOTrainer

    base = GRPOTrainer
    if run.options.shared_prompt:
        base = shared_prefix_trainer(
            base, run.options.shared_prompt_tokens, offload=run.options.shared_prompt_offload
        )
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    asked = run.settings | {
        "per_device_train_batch_size": batch_layout(run.settings, n_processes, run.options.prompts_per_step),
        "shuffle_dataset": False,
        "seed": run.seed,
        "bf16": on_gpu,
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
        run.plan,
        rows.tasks,
        run.executor,
        PredictionSet(run.output / "rollouts"),
        run.state.history,
        model=run.model.name,
        adapter=str(run.adapter) if run.adapter else None,
        detect_cheating=run.options.detect_cheating,
        process=int(os.environ.get("RANK", "0")),
        n_processes=n_processes,
    )
    evaluation = _held_out(run)
    at_once = steps_a_generation(run.settings)
    rounds = -(-run.settings["max_steps"] // at_once)  # a round that is not full would not be sampled
    open_trainer = partial(
        measuring(base),
        model=policy,
        reward_funcs=reward,
        args=config,
        train_dataset=rows.dataset(rounds * at_once * run.options.prompts_per_step),
        processing_class=run.rows.tokenizer,
        peft_config=peft_config,
        **({"rollout_func": rollout} if rollout else {}),
        callbacks=[
            metrics_log(run.output / "metrics.jsonl"),
            *callbacks,
            hooks.run_state_callback(run.state),
            hooks.resuming_callback(run.state, run.seed),
            *([evaluation] if evaluation else []),
            hooks.guard_callback(run.state, reward),
            *([agreed_stop()] if can_listen() and n_processes > 1 else []),
            hooks.keeping_callback(run.state, run.options.disk_budget_gb),
        ],
    )
    engine = {"quantization": None} if run.options.load_in_4bit else {}  # see `arcnb.rl.weight_sync`
    if (cache := run.options.vllm_kv_cache_dtype) != "auto":
        engine["kv_cache_dtype"] = cache
    grouped = run.options.vllm_group_attention
    shared = SharedWeights(policy) if run.options.vllm_shared_weights else None
    on_cpu = run.settings["use_vllm"] and not on_gpu
    if on_cpu:
        from arcnb.rl.vllm_parts.cpu_generation import generating_on_cpu
    with (
        generating_on_cpu() if on_cpu else nullcontext(),
        engine_options(**engine),
        seeded_engines(run.seed),
        group_attention() if grouped else nullcontext(),
        shared.opening() if shared else nullcontext(),
    ):
        trainer = open_trainer()
    if on_cpu:
        trainer.vllm_generation.follow(trainer, run.state)
    if grouped:
        check_group_attention(trainer)
    for callback in (*callbacks, evaluation):
        if hasattr(callback, "trainer"):
            callback.trainer = trainer
    if run.options.trainer == "trl":
        sample_ids_alone(trainer)
    if shared:
        sample_while_merged(trainer, shared)
    elif run.options.trainer == "trl":  # unsloth's engine has the policy's own weights
        send_merged_weights(trainer)
    stop_printing(trainer)
    check_effective(asked, trainer.args, run.options.accept_other_config)
    return trainer, effective_table(asked, trainer.args)


def _held_out(run: Training):
    if not run.options.held_out_every:
        return None
    turns = run.options.turns
    kind = (
        run.subject.held_out(run.executor)
        if turns == 1
        else partial(EpisodeHeldOut, turns=turns, context=run.context)
    )
    evaluation = kind(
        run.held_out_tasks,
        run.options.held_out_repeats,
        run.options.held_out_every,
        run.rows.prompt_format,
        run.rows.tokenizer,
        run.executor,
        PredictionSet(run.output / "held_out"),
        run.seed,
        run.settings["max_completion_length"],
    )
    return hooks.held_out_callback(run.state, evaluation)
