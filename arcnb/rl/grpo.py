"""GRPO on ARC tasks with LoRA, rewards by running the programs.

    report = train_grpo(model, tasks, prompt_format, executor, run.path, settings={"max_steps": 8})

`settings` are GRPOConfig's own names (arcnb.rl.settings), `options` everything that is not TRL's. The run
folder gets `adapter/` (the last one), `best/` (the checkpoint best by held-out solve rate), `checkpoints/`,
`metrics.jsonl`, `rollouts/` and `held_out/` (prediction sets) and a page for each alarm of the collapse
guard.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from arcnb.arc.predictions import PredictionSet
from arcnb.arc.seeds import rng
from arcnb.arc.tasks import Task
from arcnb.models.prompt_format import PromptFormat
from arcnb.models.prompt_lengths import longest_prompt
from arcnb.models.registry import ModelPath, load_tokenizer
from arcnb.models.training_log import metrics_log, read_metrics, stop_printing
from arcnb.programs.executor import Executor
from arcnb.rl import callbacks as hooks
from arcnb.rl.checkpoints import (
    checkpoint_to_resume,
    keep_best,
    refuse_other_settings,
    saved_state,
    set_aside,
    step_of,
)
from arcnb.rl.effective_config import check_effective, effective_table
from arcnb.rl.guard import CollapseMonitor
from arcnb.rl.held_out import HeldOut
from arcnb.rl.options import FREE, GrpoOptions
from arcnb.rl.policies import TRAINERS, load_policy, load_unsloth_policy
from arcnb.rl.preemption import can_listen, listen, saving_on_signals
from arcnb.rl.reward_function import ProgramReward
from arcnb.rl.reward_terms import RewardPlan, TermLimits
from arcnb.rl.rows import PromptRows, prompt_rows
from arcnb.rl.sampler_gap import measuring
from arcnb.rl.sampling_guard import check_sampling
from arcnb.rl.settings import (
    DEFAULTS,
    LORA_DEFAULTS,
    SettingsError,
    batch_layout,
    check_gpu_share,
    check_server,
    check_settings,
    number_of_steps,
    vllm_environment,
)
from arcnb.rl.signal_history import SignalHistory
from arcnb.rl.training_report import TrainingReport


def train_grpo(
    model: ModelPath,
    tasks: Sequence[Task],
    prompt_format: PromptFormat,
    executor: Executor,
    output: Path,
    *,
    adapter: Path | None = None,
    settings: dict | None = None,
    lora: dict | None = None,
    options: GrpoOptions = GrpoOptions(),
    held_out_tasks: Sequence[Task] = (),
    seed: int = 0,
    callbacks: Sequence = (),
) -> TrainingReport:
    """Train and leave everything under output.

    adapter: start from this LoRA (its shape then counts, not `lora`) instead of a fresh one. callbacks: of
    transformers; they come before evaluation and guard.
    Raises SettingsError, SamplingError, CheckpointError or ValueError before anything heavy is loaded.
    """
    output = Path(output)
    settings = DEFAULTS | (settings or {})
    context = _context(model, options)
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    _check(settings, options, context, n_processes, held_out_tasks)
    plan = _reward_plan(options, settings)
    check_gpu_share(settings, model.folder, context)
    check_server(settings)
    os.environ |= {name: value for name, value in vllm_environment().items() if name not in os.environ}
    if options.trainer == "unsloth":
        import unsloth  # noqa: F401  it patches transformers and trl, and has to come before them
    tokenizer = load_tokenizer(model)
    history = SignalHistory(options.signal_visits, options.signal_weight, lag=2 * options.prompts_per_step)
    rows = _rows(tasks, prompt_format, tokenizer, settings, options, context, seed, history)
    steps = number_of_steps(settings, len(rows.tasks), options.prompts_per_step)
    settings |= {"max_steps": steps}
    state = hooks.RunState(
        output,
        _identity(settings, options, lora, adapter, model, tasks, seed, n_processes),
        history,
        CollapseMonitor(options.guard),
    )
    held_out_tasks, dropped = _fitting(
        held_out_tasks, prompt_format, tokenizer, settings, options, context, seed
    )
    resumed = checkpoint_to_resume(options.resume, output / "checkpoints")
    if resumed is not None:
        refuse_other_settings(resumed, state.settings, options.accept_other_settings)
        state.restore(saved_state(resumed))
    run = _Training(
        model,
        rows,
        executor,
        output,
        adapter,
        settings,
        lora,
        options,
        held_out_tasks,
        seed,
        plan,
        state,
        context,
    )
    with saving_on_signals():
        report = run.train(resumed, callbacks)
    report.too_long = rows.too_long
    report.notes += _notes(rows.tasks, options, adapter, settings)
    if dropped:
        report.notes.append(f"{dropped} held-out tasks were passed over, since their prompts are too long")
    return report


def _fitting(tasks, prompt_format, tokenizer, settings, options, context, seed) -> tuple[list[Task], int]:
    """The held-out tasks to evaluate on, whose prompts leave room for a completion, and how many were passed
    over because theirs do not. They come in an order drawn from the seed, until there are enough."""
    limit = context - settings["max_completion_length"]
    limit = min(limit, options.max_prompt_tokens or limit)
    wanted = options.n_held_out or len(tasks)
    fitting: list[Task] = []
    seen = 0
    for index in rng(seed, "held-out tasks").permutation(len(tasks)):
        if len(fitting) == wanted or not options.held_out_every:
            break
        seen += 1
        if longest_prompt(tasks[int(index)], prompt_format, tokenizer) <= limit:
            fitting.append(tasks[int(index)])
    if options.held_out_every and not fitting:
        raise SettingsError(f"none of {len(tasks)} held-out tasks has a prompt within {limit} tokens")
    return fitting, seen - len(fitting)


def _context(model: ModelPath, options: GrpoOptions) -> int:
    built_for = model.context or 8192
    wanted = options.max_sequence_length or built_for
    if wanted > built_for:
        raise SettingsError(
            f"max_sequence_length={wanted}, but model {model.name!r} was built for {built_for} tokens"
        )
    return wanted


def _check(settings: dict, options: GrpoOptions, context: int, n_processes: int, held_out_tasks) -> None:
    check_settings(settings, context, n_processes, options.prompts_per_step)
    check_sampling(settings, options.insist_on_sampling)
    if options.trainer not in TRAINERS:
        raise SettingsError(f"trainer={options.trainer!r} does not exist; there are {', '.join(TRAINERS)}")
    if options.guard.action == "rollback" and not options.held_out_every:
        raise SettingsError(
            "the guard's action 'rollback' goes back to the best checkpoint by held-out solve rate; "
            "set held_out_every to more than 0"
        )
    if options.held_out_every and not held_out_tasks:
        raise SettingsError(f"held_out_every={options.held_out_every}, but there are no held-out tasks")


def _reward_plan(options: GrpoOptions, settings: dict) -> RewardPlan:
    limits = TermLimits(settings["max_completion_length"], options.overlong_buffer)
    return RewardPlan(options.reward, limits, options.reward_weights)


def _rows(tasks, prompt_format, tokenizer, settings, options, context, seed, history) -> PromptRows:
    limit = context - settings["max_completion_length"]
    return prompt_rows(
        tasks,
        prompt_format,
        tokenizer,
        seed=seed,
        max_prompt_tokens=min(limit, options.max_prompt_tokens or limit),
        augment=options.augment,
        n_tasks=options.n_tasks,
        history=history,
    )


def _identity(settings, options, lora, adapter, model, tasks, seed, n_processes) -> dict:
    """What a checkpoint has to agree with: settings, options, start and tasks."""
    from hashlib import sha256

    own = {name: value for name, value in asdict(options).items() if name not in FREE and name != "guard"}
    digest = sha256("".join(task.fingerprint for task in tasks).encode()).hexdigest()[:16]
    start = {"adapter": adapter and Path(adapter).name, "model": model.name}
    shape = {} if adapter else {"lora": LORA_DEFAULTS | (lora or {})}
    free = ("save_steps", "report_to", "logging_steps")
    kept = {name: value for name, value in settings.items() if name not in free}
    return kept | own | start | shape | {"tasks": digest, "seed": seed, "num_processes": n_processes}


def _notes(tasks, options, adapter, settings) -> list[str]:
    notes = []
    unknown = [task.task_id for task in tasks if not task.has_test_outputs]
    if unknown:
        notes.append(
            f"{len(unknown)} of {len(tasks)} tasks have no known test outputs: their reward and `solved` "
            "rest on train pairs, which the prompt shows"
        )
    if options.trainer == "unsloth" and adapter and settings["beta"]:
        notes.append(
            "unsloth measures KL to the base model without the starting adapter; TRL, to the adapter"
        )
    return notes


@dataclass
class _Training:
    """One run: the parts of train_grpo that need a trainer."""

    model: ModelPath
    rows: PromptRows
    executor: Executor
    output: Path
    adapter: Path | None
    settings: dict
    lora: dict | None
    options: GrpoOptions
    held_out_tasks: Sequence[Task]
    seed: int
    plan: RewardPlan
    state: hooks.RunState
    context: int

    def train(self, resumed: Path | None, callbacks: Sequence) -> TrainingReport:
        trainer, config = self._trainer(callbacks)
        listen(trainer)
        started = time.monotonic()
        main = trainer.accelerator.is_main_process
        if main:
            (self.output / "checkpoints").mkdir(parents=True, exist_ok=True)
            if resumed is None or resumed.is_relative_to(self.output):
                set_aside(self.output, step_of(resumed) if resumed else -1)
        trainer.accelerator.wait_for_everyone()
        while True:
            self.state.resumed_from = resumed
            trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
            if not self.state.rollback_wanted:
                break
            resumed = self._roll_back(main)
            trainer.accelerator.wait_for_everyone()
            listen(trainer)
        status = "done" if trainer.state.global_step >= trainer.state.max_steps else "preempted"
        if self.state.collapsed:
            status = "collapsed"
        if main:
            policy = trainer.accelerator.unwrap_model(trainer.model)
            policy.save_pretrained(self.output / "adapter", selected_adapters=["default"])
            trainer.processing_class.save_pretrained(self.output / "adapter")
        return TrainingReport(
            adapter=self.output / "adapter",
            steps=trainer.state.global_step,
            seconds=time.monotonic() - started,
            history=read_metrics(self.output / "metrics.jsonl"),
            status=status,
            rollbacks=self.state.rollbacks,
            best=self.state.best,
            pages=self.state.pages,
            config=config,
        )

    def _roll_back(self, main: bool) -> Path:
        """Make the best checkpoint the newest one; it is resumed from by whoever goes on."""
        best = self.state.best_checkpoint
        target = self.output / "checkpoints" / best.name
        if main:
            set_aside(self.output, step_of(best))
            if not target.exists():
                keep_best_copy(best, target)
            self.state.count_rollback()
        self.state.monitor.forget()
        self.state.rollback_wanted = False
        return target

    def _trainer(self, callbacks: Sequence):
        """The trainer with everything that hangs on it, and the table of its effective settings."""
        import torch

        on_gpu = torch.cuda.is_available()
        lora = LORA_DEFAULTS | (self.lora or {})
        if self.options.trainer == "unsloth":
            policy = load_unsloth_policy(
                self.model,
                self.adapter,
                lora,
                context=self.context,
                use_vllm=self.settings["use_vllm"],
                gpu_memory_utilization=self.settings.get("vllm_gpu_memory_utilization", 0.3),
                load_in_4bit=self.options.load_in_4bit,
                gradient_checkpointing=self.settings["gradient_checkpointing"],
                seed=self.seed,
            )
            peft_config = None
        else:
            policy, peft_config = load_policy(
                self.model, self.adapter, lora, load_in_4bit=self.options.load_in_4bit, on_gpu=on_gpu
            )
        from trl import GRPOConfig, GRPOTrainer

        n_processes = int(os.environ.get("WORLD_SIZE", "1"))
        asked = self.settings | {
            "per_device_train_batch_size": batch_layout(
                self.settings, n_processes, self.options.prompts_per_step
            ),
            "shuffle_dataset": False,
            "seed": self.seed,
            "bf16": on_gpu,
            "use_cpu": not on_gpu,
            "disable_tqdm": True,
            "enable_jit_checkpoint": can_listen(),
            "log_completions": True,
            "num_completions_to_print": 0,
        }
        if self.settings["use_vllm"]:
            asked.setdefault("vllm_max_model_length", self.context)
        config = GRPOConfig(output_dir=str(self.output / "checkpoints"), **asked)
        reward = ProgramReward(
            self.plan,
            self.rows.tasks,
            self.executor,
            PredictionSet(self.output / "rollouts"),
            self.state.history,
            model=self.model.name,
            adapter=str(self.adapter) if self.adapter else None,
            detect_cheating=self.options.detect_cheating,
            process=int(os.environ.get("RANK", "0")),
            n_processes=n_processes,
        )
        evaluation = self._held_out()
        trainer = measuring(GRPOTrainer)(
            model=policy,
            reward_funcs=reward,
            args=config,
            train_dataset=self.rows.dataset(self.settings["max_steps"] * self.options.prompts_per_step),
            processing_class=self.rows.tokenizer,
            peft_config=peft_config,
            callbacks=[
                metrics_log(self.output / "metrics.jsonl"),
                *callbacks,
                hooks.run_state_callback(self.state),
                hooks.resuming_callback(self.state, self.seed),
                *([evaluation] if evaluation else []),
                hooks.guard_callback(self.state, reward),
                hooks.keeping_callback(self.state, self.options.disk_budget_gb),
            ],
        )
        if evaluation:
            evaluation.trainer = trainer
        stop_printing(trainer)
        check_effective(asked, trainer.args, self.options.accept_other_config)
        return trainer, effective_table(asked, trainer.args)

    def _held_out(self):
        if not self.options.held_out_every:
            return None
        evaluation = HeldOut(
            self.held_out_tasks,
            self.options.held_out_repeats,
            self.options.held_out_every,
            self.rows.prompt_format,
            self.rows.tokenizer,
            self.executor,
            PredictionSet(self.output / "held_out"),
            self.seed,
            self.settings["max_completion_length"],
        )
        return hooks.held_out_callback(self.state, evaluation)


def keep_best_copy(best: Path, target: Path) -> None:
    """Put a kept checkpoint back among the others."""
    kept = keep_best(best, target.parent / "restored")
    kept.rename(target)
    kept.parent.rmdir()
