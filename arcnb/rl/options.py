"""What is asked of a GRPO run beyond TRL's own settings."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field

from arcnb.rl.guard import GuardOptions
from arcnb.rl.sampler_engine import KV_CACHE_DTYPES
from arcnb.rl.settings import SettingsError
from arcnb.rl.shared_prefix_packing import TOKEN_BUDGET


@dataclass(frozen=True)
class GrpoOptions:
    """What is asked of a run beyond TRL's settings.

    reward: a scheme of arcnb.rl.rewards; reward_weights: terms of arcnb.rl.reward_terms by weight;
    overlong_buffer: tokens of its ramp; detect_cheating: programs that memorise their pairs earn nothing.
    n_tasks: tasks to train on, among those whose prompts fit (0: all).
    prompts_per_step: groups that one optimizer step trains. augment: what views change.
    max_sequence_length: prompt plus completion, tokens (None: what the model was built for).
    max_prompt_tokens: longer prompts are left out and reported (None: what the sequence leaves).
    held_out_every (steps; 0: never), held_out_repeats: evaluation on n_held_out (0: all) of those
    `held_out_tasks` of train_grpo whose prompts fit.
    guard: see arcnb.rl.guard. signal_visits, signal_weight: see arcnb.rl.signal_history.
    resume: "auto" goes on with this folder's newest complete checkpoint, "never" does not, else a path.
    disk_budget_gb: the oldest checkpoints go beyond it (0: no limit).
    trainer: "trl" or "unsloth". load_in_4bit: quantize the base.
    shared_prompt: pay for a prompt once a group, see arcnb.rl.shared_prefix; shared_prompt_tokens: most of
    a packed row, fewer take less memory and pay a group's prompt more than once; shared_prompt_offload: what
    its backward pass needs, a hidden state a layer and token, waits in the host's memory.
    vllm_kv_cache_dtype: of the sampling engine, see arcnb.rl.sampler_engine; "fp8" takes half the space, and
    the sampler then differs a little from the learner.
    vllm_group_attention: the sampling engine reads a prompt that all its sequences share once a token, see
    arcnb.rl.vllm_parts.group_attention.
    vllm_shared_weights: trainer and sampling engine have one copy of the frozen weights, see
    arcnb.rl.shared_weights; the host's memory holds another of the layers with a LoRA.
    conversations: a refine.parquet of notebook 04, to train on its frozen later turns instead of first turns.
    turns: answers that an episode may have, each with feedback on the one before, see arcnb.rl.multi_turn;
    turn_reward, improvement_weight: which of them is rewarded, see arcnb.rl.multi_turn_reward.
    insist_on_sampling, accept_other_settings, accept_other_config: go on where a check would refuse.
    """

    reward: str = "arc-v2-no-pixel-score"
    reward_weights: dict[str, float] = field(default_factory=dict)
    overlong_buffer: int = 0
    detect_cheating: bool = True
    n_tasks: int = 0
    prompts_per_step: int = 1
    augment: str = "all"
    max_sequence_length: int | None = None
    max_prompt_tokens: int | None = None
    held_out_every: int = 0
    n_held_out: int = 0
    held_out_repeats: int = 8
    guard: GuardOptions = field(default_factory=GuardOptions)
    signal_visits: int = 0
    signal_weight: float = 0.0
    resume: str = "auto"
    disk_budget_gb: float = 0.0
    trainer: str = "trl"
    load_in_4bit: bool = False
    shared_prompt: bool = False
    shared_prompt_tokens: int = TOKEN_BUDGET
    shared_prompt_offload: bool = False
    vllm_kv_cache_dtype: str = "auto"
    vllm_group_attention: bool = False
    vllm_shared_weights: bool = False
    conversations: str = ""
    turns: int = 1
    turn_reward: str = "last"
    improvement_weight: float = 0.5
    insist_on_sampling: bool = False
    accept_other_settings: bool = False
    accept_other_config: bool = False


# Options of which less than none makes no sense; 0 has a meaning of its own.
COUNTS = (
    "n_tasks",
    "max_sequence_length",
    "max_prompt_tokens",
    "overlong_buffer",
    "held_out_every",
    "n_held_out",
    "disk_budget_gb",
)
# Options that may differ between a run and its resumption: they do not change what is learnt.
FREE = (
    "resume",
    "disk_budget_gb",
    "accept_other_settings",
    "accept_other_config",
    "insist_on_sampling",
    "shared_prompt",
    "shared_prompt_tokens",
    "shared_prompt_offload",
    "vllm_group_attention",
    "vllm_shared_weights",
)


def check_options(options: GrpoOptions, held_out_tasks: Sized) -> None:
    """SettingsError for options that no settings could make right; needs neither model nor trainer."""
    for name in COUNTS:
        if (getattr(options, name) or 0) < 0:
            raise SettingsError(f"{name} must not be negative, it is {getattr(options, name)}")
    _refuse_idle(options)
    every = options.held_out_every
    if options.vllm_kv_cache_dtype not in KV_CACHE_DTYPES:
        raise SettingsError(
            f"vllm_kv_cache_dtype is one of {', '.join(KV_CACHE_DTYPES)}, not {options.vllm_kv_cache_dtype!r}"
        )
    if options.vllm_kv_cache_dtype != "auto" and options.trainer == "unsloth":
        raise SettingsError("vllm_kv_cache_dtype is for trainer='trl'; unsloth chooses its engine's cache")
    if options.guard.action == "rollback" and not every:
        raise SettingsError(
            "the guard's action 'rollback' goes back to the best checkpoint by held-out solve rate; "
            "set held_out_every to more than 0"
        )
    if every and not held_out_tasks:
        raise SettingsError(f"held_out_every={every}, but there are no held-out tasks")
    if every and options.held_out_repeats < 1:
        raise SettingsError(
            f"held_out_repeats is {options.held_out_repeats}, but an evaluation every {every} steps "
            "(held_out_every) takes at least 1 sample of each task"
        )


def _refuse_idle(options: GrpoOptions) -> None:
    """SettingsError for an option that was asked for and would do nothing beside the others."""
    weights, buffer = options.reward_weights, options.overlong_buffer
    for idle, asked, needs in (
        (
            options.turns == 1 and options.turn_reward != "last",
            f"turn_reward={options.turn_reward!r}",
            "turns above 1",
        ),
        (
            buffer and not weights.get("overlong"),
            f"overlong_buffer={buffer}",
            "an overlong_weight above 0",
        ),
        (
            weights.get("improvement") and not options.conversations,
            "the reward term 'improvement'",
            "conversations, whose answers have parents",
        ),
        (
            options.signal_weight and not options.signal_visits,
            f"signal_weight={options.signal_weight}",
            "signal_visits above 0",
        ),
    ):
        if idle:
            raise SettingsError(f"{asked} needs {needs}; it would do nothing")
