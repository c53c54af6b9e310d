"""Makes the trainer of a GRPO run: TRL's, with policy, configuration, reward, sampling engine, callbacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task
from arcnb.machine.gpus import torch_sees_gpu
from arcnb.machine.imports import nothing_collected
from arcnb.machine.starts import free_port
from arcnb.models.lora.compatibility import adapter_rank
from arcnb.models.memory.shape import GIB
from arcnb.models.registry import ModelPath
from arcnb.models.sampling.vllm_engine import room_for_adapters
from arcnb.models.training.log import keep_asked_intervals, logged_as, metrics_log, stop_printing
from arcnb.models.training.optimizer import with_asked_optimizer
from arcnb.models.training.preemption import agreed_stop, can_listen
from arcnb.models.training.zero3 import release_recomputed_layers
from arcnb.programs.executor.executor import Executor
from arcnb.rl.engine.adapter_alone import send_adapter_alone
from arcnb.rl.engine.async_sampling import AsyncSampling
from arcnb.rl.engine.options import (
    check_group_attention,
    engine_options,
    group_attention,
    sample_numbers_alone,
    seeded_engines,
    take_first_runner,
)
from arcnb.rl.engine.shared_weights import SharedWeights, sample_while_merged
from arcnb.rl.engine.weight_sync import send_merged_weights
from arcnb.rl.plan.grpo import SHARE_BESIDE_TRAINING, GrpoPlan
from arcnb.rl.resuming.rounds import resuming_inside_rounds
from arcnb.rl.resuming.run_state import RunState
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.rows.prompt_rows import PromptRows
from arcnb.rl.shared_prompt.trainer import shared_prefix_trainer
from arcnb.rl.trainer import callbacks as hooks
from arcnb.rl.trainer.crediting import crediting
from arcnb.rl.trainer.effective_config import check_effective
from arcnb.rl.trainer.lean import lean_trainer
from arcnb.rl.trainer.policies import load_policy, load_unsloth_policy
from arcnb.rl.turns.conversation_rows import RememberingRows
from arcnb.rl.turns.episode_held_out import EpisodeHeldOut
from arcnb.rl.turns.episode_reward import EpisodeReward
from arcnb.rl.turns.episodes import MultiTurnRollout
from arcnb.rl.turns.trees import TreeReward, TreeRollout
from arcnb.rl.watching.sampler_gap import measuring


@dataclass
class TrainerParts:
    """What a trainer is made of. settings: GRPOConfig's, with the number of steps. context: tokens of the
    longest sequence."""

    plan: GrpoPlan
    model: ModelPath
    adapter: Path | None
    rows: PromptRows
    eval_tasks: Sequence[Task]
    executor: Executor
    state: RunState
    settings: dict
    context: int

    @property
    def output(self) -> Path:
        return Path(self.plan.output)

    @property
    def names(self) -> dict:
        """Model and adapter as predictions have them."""
        return {"model": self.model.name, "adapter": str(self.adapter) if self.adapter else None}


def make_trainer(parts: TrainerParts, callbacks: Sequence):
    """(trainer with everything that hangs on it, table of its effective settings)."""
    plan = parts.plan
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    with nothing_collected():
        policy, peft_config = _policy(parts)
        from trl import GRPOConfig, GRPOTrainer

    base = GRPOTrainer
    if plan.shared_prompt:
        base = shared_prefix_trainer(base, plan.shared_prompt_tokens, offload=plan.shared_prompt_offload)
    if plan.trainer == "trl":
        base = lean_trainer(base, plan.learner, plan.seed)
    asked = _asked(parts, n_processes)
    config = GRPOConfig(output_dir=str(parts.output / "checkpoints"), **logged_as(parts.output), **asked)
    rows, rollout, reward_class = _rows_and_reward(parts)
    reward = reward_class(
        plan.subject.rewards,
        rows.tasks,
        parts.executor,
        PredictionSet(parts.output / "rollouts"),
        guided=PredictionSet(parts.output / "guided") if plan.guide.programs else None,
        history=parts.state.history,
        process=int(os.environ.get("RANK", "0")),
        n_processes=n_processes,
        **parts.names,
    )
    evaluation = _evaluation(parts)
    # A round that is not full would not be sampled.
    rounds = -(-parts.settings["max_steps"] // plan.steps_a_round)
    open_trainer = partial(
        measuring(resuming_inside_rounds(with_asked_optimizer(crediting(base, plan, reward, parts.context)))),
        model=policy,
        reward_funcs=reward,
        args=config,
        train_dataset=rows.dataset(rounds * plan.prompts_a_round),
        processing_class=rows.tokenizer,
        peft_config=peft_config,
        **({"rollout_func": rollout} if rollout else {}),
        callbacks=[
            metrics_log(parts.output / "metrics.jsonl"),
            *callbacks,
            hooks.run_state_callback(parts.state),
            hooks.resuming_callback(parts.state, plan.seed),
            *([evaluation] if evaluation else []),
            hooks.guard_callback(parts.state, reward),
            *([agreed_stop()] if can_listen() and n_processes > 1 else []),
            hooks.keeping_callback(parts.state, plan.disk_budget_gb),
        ],
    )
    trainer = _with_engine(parts, policy, open_trainer)
    reward.ends = frozenset(trainer.eos_token_ids)
    for callback in (*callbacks, evaluation):
        if hasattr(callback, "trainer"):
            callback.trainer = trainer
    stop_printing(trainer)
    keep_asked_intervals(trainer)
    release_recomputed_layers(trainer)
    return trainer, check_effective(asked, trainer.args, plan.accept_other_config)


def _policy(parts: TrainerParts) -> tuple:
    """(model, peft_config) for TRL's trainer."""
    plan, lora = parts.plan, parts.plan.lora.config
    if plan.trainer == "trl":
        how = {"load_in_4bit": plan.load_in_4bit, "on_gpu": torch_sees_gpu(), "half": plan.half}
        policy, peft_config = load_policy(parts.model, parts.adapter, lora, **how)
        if parts.settings.get("cast_lm_head_to_fp32"):
            # TRL (1.15, 1.16) looks for the embeddings of a tied head here, which is right for a whole model
            # and not for one with a LoRA; no submodule, since weights would have two names.
            base = policy.get_base_model() if peft_config is None else policy
            object.__setattr__(base, "embed_tokens", base.get_input_embeddings())
        return policy, peft_config
    share = parts.settings.get("vllm_gpu_memory_utilization", SHARE_BESIDE_TRAINING)
    policy = load_unsloth_policy(
        parts.model,
        parts.adapter,
        lora,
        context=parts.context,
        use_vllm=parts.settings["use_vllm"],
        gpu_memory_utilization=share,
        load_in_4bit=plan.load_in_4bit,
        gradient_checkpointing=parts.settings["gradient_checkpointing"],
        seed=plan.seed,
    )
    return policy, None


def _asked(parts: TrainerParts, n_processes: int) -> dict:
    """What GRPOConfig is asked for, beside where it writes."""
    on_gpu = torch_sees_gpu()
    asked = parts.settings | {
        "per_device_train_batch_size": parts.plan.completions_a_part,
        "shuffle_dataset": False,
        "seed": parts.plan.seed,
        "bf16": on_gpu and not parts.plan.half,
        "use_cpu": not on_gpu,
        "disable_tqdm": True,
        "logging_nan_inf_filter": False,  # it shows a loss that is no number as 0
        "enable_jit_checkpoint": can_listen() and n_processes == 1,
        "log_completions": True,
        "num_completions_to_print": 0,
    }
    if parts.settings["use_vllm"]:
        asked.setdefault("vllm_max_model_length", parts.context)
    return asked


def _rows_and_reward(
    parts: TrainerParts,
) -> tuple[PromptRows, MultiTurnRollout | None, Callable[..., ProgramReward]]:
    """What a run trains on: rows, TRL's rollout_func where there are turns, and the class of the reward."""
    plan = parts.plan
    if plan.refine_conversations or plan.turns == 1:
        return parts.rows, None, plan.subject.reward(parts.executor)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # that the hook is called is checked by the reward
    rows = RememberingRows.of(parts.rows)
    longest = parts.settings["max_completion_length"]
    kind = partial(TreeRollout, tree=plan.tree) if plan.tree else MultiTurnRollout
    rollout = kind(
        rows,
        parts.executor,
        plan.turns,
        parts.context,
        longest,
        plan.seed,
        rollbacks=lambda: parts.state.rollbacks,
        **parts.names,
    )
    reward = partial(
        TreeReward if plan.tree else EpisodeReward,
        turns=plan.turns,
        turn_reward=plan.turn_reward,
        improvement_weight=plan.rewards.improvement_weight,
        detect_cheating=plan.rewards.detect_cheating,
    )
    return rows, rollout, reward


def _evaluation(parts: TrainerParts):
    """The callback that evaluates the eval tasks; None where there is none."""
    plan = parts.plan
    if not plan.eval_steps:
        return None
    kind = plan.subject.held_out(parts.executor)
    if plan.turns > 1:
        kind = partial(EpisodeHeldOut, turns=plan.turns, context=parts.context)
    evaluation = kind(
        parts.eval_tasks,
        plan.num_generations_eval,
        plan.eval_steps,
        parts.rows.prompt_format,
        parts.rows.tokenizer,
        parts.executor,
        PredictionSet(parts.output / "held_out"),
        plan.seed,
        parts.settings["max_completion_length"],
    )
    return hooks.held_out_callback(parts.state, evaluation)


def _with_engine(parts: TrainerParts, policy, open_trainer: Callable):
    """The trainer, opened so that its sampling engine is as the plan wants it, if vLLM samples."""
    plan = parts.plan
    shared = SharedWeights(policy) if plan.vllm.shared_weights else None
    on_cpu = plan.colocated and not torch_sees_gpu()
    with _engines(parts, on_cpu), shared.opening() if shared else ExitStack():
        trainer = open_trainer()
    if on_cpu:
        trainer.vllm_generation.follow(trainer, parts.state)
    if plan.vllm.group_attention:
        check_group_attention(trainer)
    if plan.trainer == "trl":
        sample_numbers_alone(trainer)
    if shared:
        sample_while_merged(trainer, shared)
    elif plan.vllm.adapter_alone:
        if not on_cpu:
            send_adapter_alone(trainer)
    elif plan.trainer == "trl":  # unsloth's engine has the policy's own weights
        send_merged_weights(trainer, plan.vllm.eight_bits)
    if plan.vllm.ahead:
        trainer.ahead = AsyncSampling(trainer)
    return trainer


@contextmanager
def _engines(parts: TrainerParts, on_cpu: bool) -> Iterator[None]:
    """An engine that a trainer opens inside has the plan's options, seed and attention."""
    plan, rank = parts.plan, 0
    if plan.vllm.adapter_alone:
        rank = adapter_rank(parts.adapter) if parts.adapter else plan.lora.r
    engine = {"quantization": None} if plan.load_in_4bit else {}  # see `arcnb.rl.engine.weight_sync`
    if plan.half:
        engine["dtype"] = "float16"
    if plan.vllm.eight_bits:
        # e4m3, rounded as weights are loaded: a scale for each matrix and one for each token's activations.
        engine["quantization"] = "fp8_per_tensor"
    if (cache := plan.vllm.kv_cache_dtype) != "auto":
        engine["kv_cache_dtype"] = cache
    if plan.vllm.kv_cache_gb:
        engine["kv_cache_memory_bytes"] = int(plan.vllm.kv_cache_gb * GIB)
    if rank:
        engine |= room_for_adapters(rank)
    if plan.colocated and not on_cpu:
        # TRL (1.15, 1.16) takes the first free one of four ports, which is free for all that start together.
        os.environ.setdefault("MASTER_PORT", str(free_port()))
    with ExitStack() as stack:
        if on_cpu:
            from arcnb.rl.engine.cpu_generation import generating_on_cpu

            stack.enter_context(generating_on_cpu(rank))
        stack.enter_context(engine_options(**engine))
        stack.enter_context(seeded_engines(plan.seed))
        if plan.vllm.ahead:
            take_first_runner("vllm_ahead")
        if plan.vllm.group_attention:
            stack.enter_context(group_attention())
        yield
