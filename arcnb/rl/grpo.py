"""GRPO by TRL's GRPOTrainer with LoRA, rewards by running the programs.

    report = train_grpo(model, tasks, prompt_format, executor, settings={"max_steps": 8}, output=run.path)

`settings` are GRPOConfig's own names. One group is all `num_generations` completions of a prompt,
whatever the accumulation: TRL splits a generation batch over the accumulation steps after advantages are
computed. The rows keep their order (no shuffling by the trainer), since order derives from the seed.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.predictions import PredictionSet
from arcnb.arc.tasks import Task
from arcnb.models.prompt_format import PromptFormat
from arcnb.models.registry import ModelPath, load_tokenizer
from arcnb.models.training_log import metrics_log, read_metrics, stop_printing
from arcnb.programs.executor import Executor
from arcnb.rl.reward_function import ProgramReward
from arcnb.rl.rows import prompt_rows
from arcnb.rl.sampling_guard import check_sampling

if TYPE_CHECKING:
    import pandas as pd

# Ours where TRL's default is unsuited: KL is on, sampling is plain, completions are ARC programs.
DEFAULTS = {
    "num_generations": 8,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 384,
    "beta": 0.01,
    "learning_rate": 1e-5,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 0.1,
    "max_grad_norm": 0.1,
    "temperature": 1.0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "scale_rewards": "group",
    "loss_type": "dapo",
    "logging_steps": 1,
    "report_to": "none",
}
LORA_DEFAULTS = {
    "r": 32,
    "lora_alpha": 64,
    "use_rslora": True,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
FIRST_LOOK = (
    "reward",
    "reward_std",
    "kl",
    "entropy",
    "grad_norm",
    "completions/mean_length",
    "truncated_completions_ratio",
    "solved_tasks_ratio",
    "groups_without_spread",
    "executor_seconds",
    "step_time",
)


class SettingsError(ValueError):
    """GRPO settings that cannot work together; the message names them."""


@dataclass
class TrainingReport:
    """What training did; `history` has one mapping a logged step, as written to metrics.jsonl."""

    adapter: Path
    steps: int
    seconds: float
    history: list[dict]
    too_long: dict[str, int] = field(default_factory=dict)

    def table(self) -> pd.DataFrame:
        """The columns to look at first, a row a step."""
        import pandas as pd

        steps = pd.DataFrame([row for row in self.history if "reward" in row]).set_index("step")
        return steps[[name for name in FIRST_LOOK if name in steps]]

    def outcome(self) -> dict:
        """Plain values for the run's manifest: last step's numbers."""
        last = self.table().iloc[-1].to_dict()
        return {"steps": self.steps, "seconds": self.seconds, "left_out_as_too_long": self.too_long} | last


def check_settings(settings: dict, context: int) -> None:
    """SettingsError for an unknown name, a group that cannot be split, completions that fill the context."""
    unknown = sorted(set(settings) - _config_names())
    if unknown:
        near = difflib.get_close_matches(unknown[0], _config_names(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"GRPOConfig has no setting {unknown[0]!r}{hint}")
    group, accumulation = settings["num_generations"], settings["gradient_accumulation_steps"]
    if group < 2:
        raise SettingsError(f"num_generations must be at least 2 to compare completions, not {group}")
    if group % accumulation:
        raise SettingsError(
            f"num_generations={group} is not divisible by gradient_accumulation_steps={accumulation}; "
            "one optimizer step trains one prompt's group"
        )
    if settings["max_completion_length"] >= context:
        raise SettingsError(
            f"max_completion_length={settings['max_completion_length']} leaves no room for a prompt "
            f"in a context of {context} tokens"
        )


def _config_names() -> set[str]:
    from dataclasses import fields

    from trl import GRPOConfig

    return {entry.name for entry in fields(GRPOConfig)}


def train_grpo(
    model: ModelPath,
    tasks: Sequence[Task],
    prompt_format: PromptFormat,
    executor: Executor,
    output: Path,
    *,
    adapter: Path | None = None,
    reward: str = "arc-v2-no-pixel-score",
    settings: dict | None = None,
    lora: dict | None = None,
    seed: int = 0,
    augment: str = "all",
    insist_on_sampling: bool = False,
    max_prompt_tokens: int | None = None,
    callbacks: Sequence = (),
) -> TrainingReport:
    """Train and leave `adapter/`, `metrics.jsonl` and `rollouts/` under output.

    adapter: start from this LoRA (its shape then counts, not `lora`) instead of a fresh one.
    max_prompt_tokens: longer prompts are left out and reported; default, what the context leaves.
    Raises SettingsError or SamplingError before anything heavy is loaded.
    """
    settings = DEFAULTS | (settings or {})
    context = model.context or 8192
    check_settings(settings, context)
    check_sampling(settings, insist_on_sampling)
    import torch
    from datasets import Dataset
    from peft import LoraConfig, PeftModel
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = load_tokenizer(model)
    steps = settings.setdefault("max_steps", len(tasks))
    limit = context - settings["max_completion_length"]
    prompts = prompt_rows(
        tasks,
        steps,
        prompt_format,
        tokenizer,
        seed=seed,
        max_prompt_tokens=min(limit, max_prompt_tokens or limit),
        augment=augment,
    )
    on_gpu = torch.cuda.is_available()
    per_device = settings["num_generations"] // settings["gradient_accumulation_steps"]
    config = GRPOConfig(
        output_dir=str(output / "checkpoints"),
        per_device_train_batch_size=per_device,
        shuffle_dataset=False,
        seed=seed,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        disable_tqdm=True,
        **settings,
    )
    base = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.bfloat16 if on_gpu else torch.float32)
    if adapter:
        policy, peft_config = PeftModel.from_pretrained(base, str(adapter), is_trainable=True), None
    else:
        policy, peft_config = base, LoraConfig(task_type="CAUSAL_LM", **(LORA_DEFAULTS | (lora or {})))
    program_reward = ProgramReward(
        reward,
        tasks,
        executor,
        settings["max_completion_length"],
        PredictionSet(output / "rollouts"),
    )
    trainer = GRPOTrainer(
        model=policy,
        reward_funcs=program_reward,
        args=config,
        train_dataset=Dataset.from_list(prompts.rows),
        processing_class=tokenizer,
        peft_config=peft_config,
        callbacks=[metrics_log(output / "metrics.jsonl"), *callbacks],
    )
    stop_printing(trainer)
    started = time.monotonic()
    trainer.train()
    trainer.save_model(str(output / "adapter"))
    return TrainingReport(
        adapter=output / "adapter",
        steps=trainer.state.global_step,
        seconds=time.monotonic() - started,
        history=read_metrics(output / "metrics.jsonl"),
        too_long=prompts.too_long,
    )
