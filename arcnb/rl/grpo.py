"""GRPO on ARC tasks with LoRA, rewards by running the programs.

    report = train_grpo(model, tasks, prompt_format, executor, run.path, settings={"max_steps": 8})

`settings` are GRPOConfig's own names (arcnb.rl.settings), `options` everything that is not TRL's. The run
folder gets `adapter/` (the last one), `best/` (the checkpoint best by held-out solve rate), `checkpoints/`,
`metrics.jsonl`, `rollouts/` and `held_out/` (prediction sets) and a page for each alarm of the collapse
guard.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from arcnb.arc.seeds import rng
from arcnb.arc.tasks import Task
from arcnb.models.checkpoints import checkpoint_to_resume
from arcnb.models.four_bits import four_bits_problem
from arcnb.models.preemption import saving_on_signals
from arcnb.models.prompt_format import PromptFormat
from arcnb.models.registry import ModelPath, load_tokenizer
from arcnb.models.training_log import reporting
from arcnb.programs.executor import Executor
from arcnb.rl import callbacks as hooks
from arcnb.rl.checkpoints import evaluated_before, refuse_other_settings, saved_state
from arcnb.rl.guard import CollapseMonitor
from arcnb.rl.multi_turn import check_multi_turn
from arcnb.rl.multi_turn_rows import frozen_rows
from arcnb.rl.options import GrpoOptions, check_options
from arcnb.rl.policies import TRAINERS
from arcnb.rl.rows import PromptRows, prompt_rows
from arcnb.rl.run_identity import run_identity, run_notes
from arcnb.rl.sampling_guard import check_sampling
from arcnb.rl.settings import (
    DEFAULTS,
    SettingsError,
    check_gpu_share,
    check_names,
    check_report_to,
    check_server,
    check_values,
    number_of_steps,
    steps_a_generation,
    vllm_environment,
)
from arcnb.rl.shared_prefix import let_segments_grow
from arcnb.rl.signal_history import SignalHistory
from arcnb.rl.subject import ARC, Subject
from arcnb.rl.training import Training
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
    subject: Subject = ARC,
) -> TrainingReport:
    """Train and leave everything under output.

    adapter: start from this LoRA (its shape then counts, not `lora`) instead of a fresh one. callbacks: of
    transformers; they come before evaluation and guard, and one with an attribute `trainer` is given it.
    subject: what the tasks are, see arcnb.rl.subject.
    Raises SettingsError, SamplingError, CheckpointError or ValueError before anything heavy is loaded.
    """
    output = Path(output)
    settings = DEFAULTS | (settings or {})
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    context = check_run(model, settings, options, n_processes, held_out_tasks)
    subject.check(options, tasks)
    plan = subject.reward_plan(options, settings)
    check_gpu_share(settings, model.folder, context, options)
    check_server(settings)
    os.environ |= vllm_environment()
    if options.trainer == "unsloth":
        import unsloth  # noqa: F401  it patches transformers and trl, and has to come before them
    if options.shared_prompt and n_processes == 1:
        let_segments_grow()
    tokenizer = load_tokenizer(model)
    lag = 2 * options.prompts_per_step * steps_a_generation(settings)
    history = SignalHistory(options.signal_visits, options.signal_weight, lag)
    rows = _rows(tasks, prompt_format, tokenizer, settings, options, context, seed, history, subject)
    steps = number_of_steps(settings, len(rows), options.prompts_per_step)
    settings |= {"max_steps": steps}
    held_out_tasks, dropped = _fitting(
        held_out_tasks, prompt_format, tokenizer, settings, options, context, seed, subject
    )
    named = (settings, options, lora, adapter, model, tasks, prompt_format, seed, n_processes, held_out_tasks)
    state = hooks.RunState(
        output,
        run_identity(*named) | subject.identity,
        history,
        CollapseMonitor(options.guard),
    )
    resumed = checkpoint_to_resume(options.resume, output / "checkpoints")
    if resumed is not None:
        refuse_other_settings(resumed, state.settings, options.accept_other_settings)
        state.restore(saved_state(resumed))
        other_tasks, note = evaluated_before(resumed, state.settings["held_out_tasks"])
        state.notes += [note] if note else []
        if other_tasks:
            state.forget_held_out()
    run = Training(
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
        subject,
    )
    with saving_on_signals(), reporting(output, settings["report_to"]):
        report = run.train(resumed, callbacks)
    report.too_long = rows.too_long
    report.trained = [task.task_id for task in rows.tasks]
    report.notes += state.notes + run_notes(rows.tasks, held_out_tasks, options, adapter, lora, settings)
    if not report.adapter_moved:
        report.notes.append(report.headline)
    if dropped:
        report.notes.append(f"{dropped} held-out tasks were passed over, since their prompts are too long")
    return report


def _fitting(
    tasks, prompt_format, tokenizer, settings, options, context, seed, subject
) -> tuple[list[Task], int]:
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
        if subject.rows.longest_prompt(tasks[int(index)], prompt_format, tokenizer) <= limit:
            fitting.append(tasks[int(index)])
    if options.held_out_every and not fitting:
        raise SettingsError(f"none of {len(tasks)} held-out tasks has a prompt within {limit} tokens")
    return fitting, seen - len(fitting)


def check_run(
    model: ModelPath, settings: dict, options: GrpoOptions, n_processes: int, held_out_tasks: Sequence
) -> int:
    """The context of the run, tokens. SettingsError or SamplingError for what cannot go together; `settings`
    are complete, with DEFAULTS. No model is loaded."""
    context = check_plan(model, settings, options, n_processes, held_out_tasks)
    check_names(settings)
    return context


def check_plan(
    model: ModelPath, settings: dict, options: GrpoOptions, n_processes: int, held_out_tasks: Sequence
) -> int:
    """check_run without what only the trainer's own modules know: nothing at all is loaded, so that it can
    come before processes and servers start."""
    context = _context(model, options)
    _check(settings, options, context, n_processes, held_out_tasks)
    return context


def _context(model: ModelPath, options: GrpoOptions) -> int:
    built_for = model.context or 8192
    wanted = options.max_sequence_length or built_for
    if wanted > built_for:
        raise SettingsError(
            f"max_sequence_length={wanted}, but model {model.name!r} was built for {built_for} tokens"
        )
    return wanted


def _check(settings: dict, options: GrpoOptions, context: int, n_processes: int, held_out_tasks) -> None:
    check_options(options, held_out_tasks)
    check_values(settings, context, n_processes, options.prompts_per_step)
    check_sampling(settings, options.insist_on_sampling)
    check_report_to(settings)
    check_multi_turn(settings, options, n_processes)
    if options.trainer not in TRAINERS:
        raise SettingsError(f"trainer={options.trainer!r} does not exist; there are {', '.join(TRAINERS)}")
    in_vllm = options.trainer == "unsloth" and bool(settings["use_vllm"])
    if options.load_in_4bit and (problem := four_bits_problem(in_vllm)):
        raise SettingsError(problem)
    if options.vllm_kv_cache_dtype != "auto" and not settings["use_vllm"]:
        raise SettingsError(f"vllm_kv_cache_dtype={options.vllm_kv_cache_dtype!r} needs use_vllm=True")
    _check_own_engine(settings, options)
    if options.shared_prompt_offload and not options.shared_prompt:
        raise SettingsError("shared_prompt_offload=True needs shared_prompt=True")
    if options.shared_prompt:
        _check_shared_prompt(settings, options, n_processes)
    if options.trainer == "unsloth":
        _check_unsloth(settings, n_processes)


def _check_unsloth(settings: dict, n_processes: int) -> None:
    """What unsloth cannot do, and its package; after all that does not depend on what is installed."""
    if settings.get("vllm_mode", "colocate") == "server":
        raise SettingsError("vllm_mode='server' needs trainer='trl', not 'unsloth'")
    if n_processes > 1:  # the reference study's training hung
        raise SettingsError(
            f"num_processes={n_processes} needs trainer='trl': trainer='unsloth' trains in one process, "
            "in several it hangs"
        )
    if "unsloth" not in sys.modules and find_spec("unsloth") is None:
        raise SettingsError("trainer='unsloth' needs the package unsloth, which is not installed")


def _check_own_engine(settings: dict, options: GrpoOptions) -> None:
    """Options that need an engine in this process, and what each of them does not go with."""
    elsewhere = {
        f"trainer={options.trainer!r}, which opens its own engine": options.trainer != "trl",
        "use_vllm=False": not settings["use_vllm"],
        "vllm_mode='server', whose engines run elsewhere": settings.get("vllm_mode", "colocate")
        != "colocate",
    }
    cache = options.vllm_kv_cache_dtype
    tensor_parallel = settings.get("vllm_tensor_parallel_size", 1)
    for name, beside in {
        "vllm_group_attention": {f"vllm_kv_cache_dtype={cache!r}": cache != "auto"},
        "vllm_shared_weights": {
            "load_in_4bit=True": options.load_in_4bit,
            "vllm_enable_sleep_mode=True, which gives the weights away": settings.get(
                "vllm_enable_sleep_mode"
            ),
            f"vllm_tensor_parallel_size={tensor_parallel}": tensor_parallel > 1,
            "parallel='zero3', which spreads the policy's weights": os.environ.get(
                "ACCELERATE_USE_DEEPSPEED"
            ),
        },
    }.items():
        for wrong, holds in (elsewhere | beside).items():
            if getattr(options, name) and holds:
                raise SettingsError(f"{name}=True does not go with {wrong}")


def _check_shared_prompt(settings: dict, options: GrpoOptions, n_processes: int) -> None:
    """What shared prompts cannot go together with; the model itself is looked at at the first step."""
    reason = None
    if options.shared_prompt_tokens < 1:
        raise SettingsError(f"shared_prompt_tokens={options.shared_prompt_tokens} must be at least 1")
    if options.trainer != "trl":
        reason = f"trainer={options.trainer!r}, which computes log-probabilities in its own way"
    elif settings.get("use_liger_kernel"):
        reason = "use_liger_kernel=True, which computes the loss from whole prompts"
    elif n_processes > 1 and os.environ.get("ACCELERATE_USE_DEEPSPEED"):
        reason = "parallel='zero3', with which it was never tried; use ddp"
    if reason:
        raise SettingsError(f"shared_prompt=True does not go together with {reason}")


def _rows(tasks, prompt_format, tokenizer, settings, options, context, seed, history, subject) -> PromptRows:
    limit = context - settings["max_completion_length"]
    limit = min(limit, options.max_prompt_tokens or limit)
    if options.conversations:
        given = (options.conversations, tasks, prompt_format, tokenizer)
        return frozen_rows(*given, seed=seed, max_prompt_tokens=limit)
    return prompt_rows(
        tasks,
        prompt_format,
        tokenizer,
        seed=seed,
        max_prompt_tokens=limit,
        augment=options.augment,
        n_tasks=options.n_tasks,
        history=history,
        kind=subject.rows,
    )
