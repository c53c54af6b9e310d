"""Runs GRPO with LoRA on the tasks of a plan, in this process; rewards by running the programs.

The run folder gets `adapter/` (the last one), `best/` (the checkpoint best by solve rate of the eval tasks),
`checkpoints/`, `metrics.jsonl`, `rollouts/` and `held_out/` (prediction sets) and a page for each alarm of
the collapse guard.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.models.lora.compatibility import WEIGHTS
from arcnb.models.registry import load_tokenizer, resolve_adapter, resolve_model
from arcnb.models.training.checkpoints import checkpoint_to_resume, naming_what_is_whole, step_of
from arcnb.models.training.log import beyond_recovery, read_metrics, reporting
from arcnb.models.training.preemption import Stop, listen, saving_on_signals
from arcnb.plans import refuse
from arcnb.programs.executor.executor import Executor
from arcnb.rl.checks.machine import context_of, gpu_share_problem
from arcnb.rl.engine.options import vllm_environment
from arcnb.rl.engine.release import release_engine
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.resuming.identity import (
    evaluated_before,
    refuse_other_settings,
    run_identity,
    run_notes,
    saved_state,
)
from arcnb.rl.resuming.run_folder import copy_whole, set_aside
from arcnb.rl.resuming.run_state import RunState
from arcnb.rl.rows.guides import guides_of
from arcnb.rl.rows.history import SignalHistory
from arcnb.rl.rows.prompt_rows import PromptRows, fitting_tasks, none_within, prompt_rows
from arcnb.rl.shared_prompt.trainer import let_segments_grow
from arcnb.rl.trainer.callbacks import restore_adapter
from arcnb.rl.trainer.policies import has_moved
from arcnb.rl.trainer.trainer import TrainerParts, make_trainer
from arcnb.rl.turns.conversation_rows import frozen_rows
from arcnb.rl.watching.guard import CollapseMonitor
from arcnb.rl.watching.report import ROLLED_BACK, TrainingReport


def train_grpo(
    plan: GrpoPlan, tasks: Sequence, eval_tasks: Sequence, executor: Executor, callbacks: Sequence = ()
) -> TrainingReport:
    """Train in this process and leave everything under the plan's output. The plan is checked (rl.checks).

    callbacks: of transformers; they come before evaluation and guard, and one with an attribute `trainer` is
    given it. Raises ArcnbError or ValueError before anything heavy is loaded.
    """
    output = Path(plan.output)
    model = resolve_model(plan.model)
    adapter = resolve_adapter(plan.adapter, model)
    context = context_of(plan, model)
    refuse(filter(None, [gpu_share_problem(plan, model)]))
    os.environ |= vllm_environment()
    if plan.trainer == "unsloth":
        import unsloth  # noqa: F401  it patches transformers and trl, and has to come before them
    if plan.shared_prompt and plan.num_processes == 1:
        let_segments_grow()
    tokenizer = load_tokenizer(model)
    history = SignalHistory(plan.signal.visits, plan.signal.weight, lag=2 * plan.prompts_a_round)
    rows = _rows(plan, tasks, tokenizer, context, history)
    settings = plan.settings | {"max_steps": plan.number_of_steps(len(rows))}
    eval_tasks, dropped = _eval_tasks(plan, eval_tasks, tokenizer, context)
    identity = run_identity(plan, settings, model, adapter, tasks, eval_tasks)
    state = RunState(output, identity, history, CollapseMonitor(plan.guard))
    resumed = checkpoint_to_resume(plan.resume, output / "checkpoints")
    if resumed is not None:
        _take_up(plan, state, resumed)
    parts = TrainerParts(plan, model, adapter, rows, eval_tasks, executor, state, settings, context)
    with saving_on_signals(), reporting(output, settings["report_to"]):
        trainer, config = make_trainer(parts, callbacks)
        try:
            with naming_what_is_whole(output, trainer), _naming_server(plan), _naming_overflow(trainer):
                status, seconds = _train(trainer, state, resumed)
        finally:
            if close := getattr(getattr(trainer, "vllm_generation", None), "close", None):
                close()  # an engine in a process of its own
            elif plan.trainer == "trl":
                release_engine(trainer)
    report = TrainingReport(
        adapter=output / "adapter",
        steps=trainer.state.global_step,
        seconds=seconds,
        history=read_metrics(output / "metrics.jsonl"),
        too_long=rows.too_long,
        status=status,
        rollbacks=state.rollbacks,
        best=state.best,
        pages=state.pages,
        notes=state.notes + run_notes(plan, rows.tasks, eval_tasks, adapter),
        config=config,
        adapter_moved=has_moved(output / "adapter", adapter),
        trained=[task.task_id for task in rows.tasks],
        resumed_at=step_of(resumed) if resumed else 0,
    )
    if dropped:
        report.notes.append(f"{dropped} eval tasks were passed over, since their prompts are too long")
    return report


@contextmanager
def _naming_overflow(trainer) -> Iterator[None]:
    """Where transformers samples, the first to see logits that are no numbers is torch's draw of a token."""
    try:
        yield
    except RuntimeError as error:
        if "probability tensor contains" not in str(error):
            raise
        raise beyond_recovery("a probability", "no number", trainer.args, trainer.state) from error


@contextmanager
def _naming_server(plan: GrpoPlan) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not (plan.by_server and type(error).__module__ == "requests.exceptions"):
            raise
        raise ArcnbError(f"the vLLM server at {plan.server_address} does not answer: {error}") from error


def _rows(plan: GrpoPlan, tasks: Sequence, tokenizer, context: int, history: SignalHistory) -> PromptRows:
    subject, limit = plan.subject, plan.longest_prompt(context)
    if plan.refine_conversations:
        given = (plan.refine_conversations, tasks, subject.prompt_format, tokenizer)
        return frozen_rows(*given, seed=plan.seed, max_prompt_tokens=limit)
    return prompt_rows(
        tasks,
        subject.prompt_format,
        tokenizer,
        seed=plan.seed,
        max_prompt_tokens=limit,
        augment=plan.augment,
        n_tasks=plan.n_tasks,
        history=history,
        kind=subject.rows,
        guides=guides_of(plan, tasks, context - plan.trl["max_completion_length"]),
        adaptive=plan.adaptive_groups,
    )


def _eval_tasks(plan: GrpoPlan, tasks: Sequence, tokenizer, context: int) -> tuple[list[Task], int]:
    """The tasks to evaluate on, whose prompts leave room for a completion, in an order drawn from the seed,
    and how many were passed over because theirs do not."""
    if not plan.eval_steps:
        return [], 0
    subject, limit = plan.subject, plan.longest_prompt(context)
    measure, shown = subject.rows.longest_prompt, {"prompt_format": subject.prompt_format, "augment": "none"}
    longest = partial(measure, tokenizer=tokenizer, **shown)
    order = rng(plan.seed, "held-out tasks").permutation(len(tasks))
    fitting, too_long = fitting_tasks(tasks, order, plan.n_eval_tasks or len(tasks), longest, limit)
    if not fitting:
        raise none_within(limit, f"no eval task of {len(tasks)} has a prompt")
    return fitting, len(too_long)


def _take_up(plan: GrpoPlan, state: RunState, checkpoint: Path) -> None:
    """Make `state` the checkpoint's; ArcnbError where that is of other settings."""
    refuse_other_settings(checkpoint, state.settings, plan.accept_other_settings)
    state.restore(saved_state(checkpoint))
    other_tasks, note = evaluated_before(checkpoint, state.settings["eval_task_versions"])
    if other_tasks:
        state.notes.append(note)
        state.forget_held_out()


def _train(trainer, state: RunState, resumed: Path | None) -> tuple[str, float]:
    """Train to the end, through the rollbacks that this process can make, and save the adapter: (status of
    the report, seconds)."""
    started = time.monotonic()
    stop = Stop()
    listen(trainer, stop)
    main = trainer.accelerator.is_main_process
    if main:
        (state.output / "checkpoints").mkdir(parents=True, exist_ok=True)
        own = resumed is not None and resumed.resolve().is_relative_to(state.output.resolve())
        set_aside(state.output, step_of(resumed) if own else -1)
        state.keep_recorded_best()
    trainer.accelerator.wait_for_everyone()
    state.find_pages()
    state.recall_best()
    went_back = None
    while True:
        state.resumed_from = resumed
        whole = resumed and step_of(resumed) >= trainer.args.max_steps
        if whole and not trainer.is_deepspeed_enabled:  # inside a round it would train a step more
            went_back = resumed
            break
        trainer.sampler_gap = None  # of the policy that a rollback gave up
        trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
        if not state.rollback_wanted:
            break
        resumed = _roll_back(state, main)
        trainer.accelerator.wait_for_everyone()
        listen(trainer, stop)
        if stop.asked or trainer.is_deepspeed_enabled:  # deepspeed trains once in a process
            went_back = resumed
            break
    if went_back:
        _go_back(trainer, went_back)
    _save_adapter(trainer, state.output / "adapter", went_back)
    trainer.accelerator.wait_for_everyone()
    status = ROLLED_BACK if went_back and not stop.asked else "preempted"
    if trainer.state.global_step >= trainer.args.max_steps:
        status = "done"
    if state.collapsed:
        status = "collapsed"
    return status, time.monotonic() - started


def _roll_back(state: RunState, main: bool) -> Path:
    """Make the best checkpoint the newest one; it is resumed from by whoever goes on."""
    best = state.best_checkpoint
    target = state.output / "checkpoints" / best.name
    if main:
        copy_whole(best, target)
        set_aside(state.output, step_of(best))
        state.count_rollback()
    state.recall_best()
    state.monitor.forget()
    state.rollback_wanted = False
    return target


def _go_back(trainer, checkpoint: Path) -> None:
    """Leave the trainer as it was at the checkpoint, without a step more. The rollback is on disk, and
    whoever resumes goes on from it."""
    if not trainer.is_deepspeed_enabled:
        restore_adapter(trainer.model, checkpoint)
    trainer.state.global_step = step_of(checkpoint)


def _save_adapter(trainer, folder: Path, went_back: Path | None) -> None:
    """The trained adapter alone, without the frozen copy of its start; to be called by every process.

    went_back: the checkpoint that the trainer was left at.
    """
    weights = {}
    if trainer.is_deepspeed_enabled:  # ZeRO-3: no process has them whole
        weights = {"state_dict": trainer.accelerator.get_state_dict(trainer.deepspeed)}
    if trainer.accelerator.is_main_process:
        policy = trainer.accelerator.unwrap_model(trainer.model)
        policy.save_pretrained(folder, selected_adapters=["default"], **weights)
        trainer.processing_class.save_pretrained(folder)
        if trainer.is_deepspeed_enabled and went_back:  # where they are of later steps still
            shutil.copy(went_back / WEIGHTS, folder / WEIGHTS)
