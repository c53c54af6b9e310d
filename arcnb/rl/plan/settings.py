"""What a run's trainer can be asked for: TRL's settings with our defaults, what its learner leaves out, and
its sampling engine beyond them."""

from __future__ import annotations

from dataclasses import dataclass

from arcnb.plans import Library, option
from arcnb.values import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, SOME_SHARE, KeysOf

# Where TRL's default is unsuited: KL is on, sampling is plain, the order of rows is the seed's.
GRPO_CONFIG = Library(
    (
        "transformers/training_args.py:TrainingArguments",
        "trl/trainer/base_config.py:_BaseConfig",
        "trl/trainer/grpo_config.py:GRPOConfig",
    ),
    {
        "max_steps": 4,
        "num_train_epochs": 1.0,
        "num_generations": 4,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": None,
        "max_completion_length": 256,
        "learning_rate": 1e-5,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 0.1,
        "max_grad_norm": 0.1,
        "weight_decay": 0.0,
        "optim": "adamw_torch_fused",
        "beta": 0.01,
        "loss_type": "dapo",
        "num_iterations": 1,
        "epsilon": 0.2,
        "epsilon_high": 0.2,
        "importance_sampling_level": "token",
        "mask_truncated_completions": False,
        "gradient_checkpointing": False,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "repetition_penalty": 1.0,
        "vllm_mode": "colocate",
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "sequence_mask",
        "vllm_importance_sampling_clip_max": 3.0,
        "save_steps": 100,
        "logging_steps": 1,
        "report_to": "none",
    },
    reserved=frozenset({
        "output_dir", "run_name", "project", "per_device_train_batch_size", "shuffle_dataset",
        "seed", "log_completions", "num_completions_to_print", "do_eval", "eval_strategy",
        "per_device_eval_batch_size", "eval_steps", "num_generations_eval", "generation_batch_size",
        "vllm_max_model_length", "use_vllm", "bf16", "use_cpu", "disable_tqdm",
        "enable_jit_checkpoint", "remove_unused_columns", "resume_from_checkpoint",
        "model_init_kwargs", "accelerator_config", "save_strategy", "scale_rewards", "logging_nan_inf_filter",
        "logging_strategy",
        # A checkpoint without its optimizer is no checkpoint of ours; there is one reward; rows depend on
        # what was learnt of earlier ones, in this process.
        "save_only_model", "reward_weights", "dataloader_num_workers", "dataloader_prefetch_factor",
        "dataloader_persistent_workers",
    }),
    within={
        **dict.fromkeys(("max_completion_length", "gradient_accumulation_steps", "num_iterations"), COUNT),
        **dict.fromkeys(("temperature", "repetition_penalty", "logging_steps"), POSITIVE),
        **dict.fromkeys(("learning_rate", "warmup_steps", "max_grad_norm", "weight_decay"), NOT_NEGATIVE),
        **dict.fromkeys(("beta", "epsilon", "epsilon_high", "save_steps"), NOT_NEGATIVE),
        **dict.fromkeys(("top_p", "vllm_gpu_memory_utilization"), SOME_SHARE),
        "vllm_importance_sampling_clip_max": POSITIVE,
        "num_generations": "[2, inf)",
        "min_p": SHARE,
        # What TRL looks at only when it computes the first loss, after the first round of sampling.
        "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
        "importance_sampling_level": ("token", "sequence"),
        "vllm_importance_sampling_mode": (
            "token_truncate", "token_mask", "sequence_truncate", "sequence_mask",
        ),
        "vllm_mode": ("colocate", "server"),
        "lr_scheduler_type": KeysOf("arcnb.machine.library_source:schedules"),
        "optim": KeysOf("arcnb.machine.library_source:optimizers"),
    },
    free=frozenset({
        "save_steps", "report_to", "logging_steps", "vllm_server_base_url", "vllm_group_port",
        "vllm_gpu_memory_utilization",
    }),
)  # fmt: skip


@dataclass(frozen=True)
class Learner:
    """What a step of the learner leaves out, see arcnb.rl.trainer.lean."""

    old_log_probs: str = option(
        "pass",
        "what the ratio divides by where samples are steps old: a pass of its own, the sampler's (sampler), "
        "or a mixture of both policies (interpolated)",
        within=("pass", "sampler", "interpolated"),
    )
    reference_part: float = option(
        1.0,
        "share of the trained completions that the KL is estimated on, drawn for each round of samples",
        within=SOME_SHARE,
    )
    trained_part: float = option(
        1.0,
        "share of each group that is trained: its lowest and highest rewards, of the largest variance",
        within=SOME_SHARE,
    )
    skip_silent: bool = option(
        False, "groups whose rewards are all equal are left out of the learner's passes"
    )

    @property
    def chooses(self) -> bool:
        """Whether rewards say what is trained."""
        return self.trained_part < 1 or self.skip_silent


@dataclass(frozen=True)
class Vllm:
    """The sampling engine beyond TRL's settings, see arcnb.rl.engine.options."""

    server_gpus: int = option(
        1, "GPUs of the server that is started, a copy of the model on each (data parallel)", free=True
    )
    kv_cache_dtype: str = option(
        "auto",
        "type of keys and values in vLLM's cache: auto (the model's own), or fp8: half the size, the sampler "
        "differs a little",
        within=("auto", "fp8"),
    )
    weight_dtype: str = option(
        "auto",
        "type of the matrices of vLLM's layers: auto (the model's own), or fp8: half the size, rounded anew "
        "from the merged weights of every round; the sampler differs more",
        within=("auto", "fp8"),
    )
    kv_cache_gb: float = option(
        0.0,
        "vLLM's cache; 0: what vllm_gpu_memory_utilization leaves. With a number several runs can start on a "
        "GPU at once, and that share must only be free at the start",
        "GiB",
        within="[0, inf)",
        free=True,
    )
    group_attention: bool = option(
        False, "vLLM reads a prompt once a token for all completions of it; for long prompts", free=True
    )
    adapter_alone: bool = option(
        False,
        "vLLM is sent the adapter alone, which it applies beside its base, and no merged weights",
        free=True,
    )
    ahead: bool = option(
        False,
        "vLLM samples the next round while the learner trains on this one: samples are one round older",
    )
    shared_weights: bool = option(
        False,
        "trainer and vLLM have one copy of the base's weights, which saves its size (8B: 16 GB)",
        free=True,
    )

    @property
    def eight_bits(self) -> bool:
        """Whether vLLM's layers compute with matrices in eight bits."""
        return self.weight_dtype == "fp8"
