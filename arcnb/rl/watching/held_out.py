"""Eval tasks while training: M tasks x R samples by the trainer's own generation, as pass@k.

The same tasks, prompts and number of samples every time, with the sampling parameters of training, so that
curves over steps compare like with like. Predictions are kept as a prediction set (round = optimizer step).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import stdev

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.pass_rates import pass_at_k
from arcnb.arc.seeds import derive_seed
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import View
from arcnb.models.prompts.chat import padded_left
from arcnb.models.prompts.format import PromptFormat
from arcnb.programs.executor.executor import Executor
from arcnb.programs.judging import judge
from arcnb.rl.rewards.rollout import answer_columns
from arcnb.rl.watching.evaluations import Evaluations


@dataclass
class HeldOut:
    """tasks: M tasks, none of them trained on. repeats: R samples each. every: optimizer steps between two
    evaluations (0: never). A task is solved by a program that is right on train and test. judge: runs the
    programs; shown: the task as its prompt shows it, and the record's columns that say how. Both are ARC's
    unless said."""

    tasks: Sequence[Task]
    repeats: int
    every: int
    prompt_format: PromptFormat
    tokenizer: object
    executor: Executor
    predictions: PredictionSet
    seed: int = 0
    max_completion_length: int = 0
    judge: Callable[..., Iterable[Prediction]] | None = field(default=None, kw_only=True)
    shown: Callable[[Task], tuple[Task, dict]] | None = field(default=None, kw_only=True)

    def __post_init__(self):
        self.judge = self.judge or partial(judge, executor=self.executor)
        self.shown = self.shown or plainly_shown
        if self.every and (self.repeats < 1 or not len(self.tasks)):
            raise ValueError(
                f"evaluation of the eval tasks every {self.every} steps needs tasks and repeats, not "
                f"{len(self.tasks)} tasks x {self.repeats} repeats"
            )

    def evaluate(self, trainer, step: int) -> dict[str, float]:
        """Sample, judge, keep. {"held_out/...": value}, the same in every process.

        pass@1 is the share of samples that solve their task, pass@1_error its standard error over tasks,
        change its difference from the best evaluation before (95%: change_low to change_high), pass@R the
        share of tasks that any sample solves, unique_outputs the share of distinct outputs among a task's
        samples.
        """
        from accelerate.utils import gather_object

        started = time.monotonic()
        process, n_processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
        # Every process takes the same number of tasks, since generation is collective with a vLLM server.
        share = -(-len(self.tasks) // n_processes)
        mine = [self.tasks[(process * share + i) % len(self.tasks)] for i in range(share)]
        prompts = [self.prompt_format.prompt_ids(self.tokenizer, self.shown(task)[0]) for task in mine]
        completions = sample(trainer, prompts, self.repeats, derive_seed(self.seed, "held out", process))
        # The last process may hold tasks of the first once more: they are sampled and left out here.
        real = [i for i in range(share) if process * share + i < len(self.tasks)]
        predictions = [
            self._prediction(mine[i], step, repeat, ids, len(prompts[i]), trainer.eos_token_ids)
            for i in real
            for repeat, ids in enumerate(completions[i])
        ]
        judged = list(self.judge(predictions, {task.task_id: task for task in mine}))
        self.predictions.write_part(judged, round=step, shard=process, n_shards=n_processes)
        rows = [row_of(prediction) for prediction in judged]
        rates = pass_rates(gather_object(rows), self.repeats) | self._changes(trainer, step)
        return rates | {"held_out/seconds": time.monotonic() - started}

    def _changes(self, trainer, step: int) -> dict[str, float]:
        """pass@1 against the best evaluation before, task by task, once all processes have kept theirs."""
        from accelerate.utils import broadcast_object_list

        change = None
        if trainer.accelerator.is_main_process:
            change = Evaluations.read(self.predictions).change_from_best(step)
        (change,) = broadcast_object_list([change])
        if change is None:
            return {}
        ends = {"": change.difference, "_low": change.low, "_high": change.high}
        return {f"held_out/change{end}": value for end, value in ends.items()}

    def _prediction(
        self, task: Task, step: int, repeat: int, ids: list[int], n_prompt: int, ends: Collection[int]
    ) -> Prediction:
        shown, columns = self.shown(task)
        return Prediction(
            **answer_columns(task, ids, ends),
            round=step,
            index=repeat,
            seed=self.seed,
            **columns,
            completion=self.tokenizer.decode(ids, skip_special_tokens=True),
            completion_prefix=self.prompt_format.prompt(shown).prefix,
            n_prompt_tokens=n_prompt,
        )


def plainly_shown(task: Task) -> tuple[Task, dict]:
    """An ARC task as it is stored, with its first test input."""
    view = View.plain(task)
    return view.apply(task), view.columns()


def row_of(one: Prediction) -> tuple[str, bool, bool, str | None, bool]:
    """What evaluation is summed up from: task, solved, valid outputs, their fingerprint, truncated."""
    return (one.task_id, one.solved, one.status == "ok", one.fingerprint, one.finish_reason == "length")


def pass_rates(rows: list[tuple], repeats: int) -> dict[str, float]:
    """{"held_out/...": value} of the rows of all samples, `repeats` a task."""
    by_task: dict[str, list[tuple]] = {}
    for row in rows:
        by_task.setdefault(row[0], []).append(row)
    groups = list(by_task.values())
    values = {}
    for k in sorted({1, repeats} | {k for k in (2, 4, 8, 16, 32) if k < repeats}):
        chances = [pass_at_k(len(group), sum(row[1] for row in group), k) for group in groups]
        values[f"held_out/pass@{k}"] = sum(chances) / len(chances)
        if k == 1 and len(chances) > 1:
            values["held_out/pass@1_error"] = stdev(chances) / len(chances) ** 0.5
    values["held_out/valid_outputs"] = sum(row[2] for row in rows) / len(rows)
    values["held_out/truncated"] = sum(row[4] for row in rows) / len(rows)
    distinct = [len({row[3] for row in group} - {None}) / len(group) for group in groups]
    values["held_out/unique_outputs"] = sum(distinct) / len(distinct)
    return values


SEQUENCES_AT_ONCE = 64  # by transformers' generate; vLLM schedules by itself


def sample(trainer, prompts: Sequence[list[int]], n: int, seed: int) -> list[list[list[int]]]:
    """n completions (token ids) of each prompt by the trainer's own engine and sampling parameters.

    With vLLM (colocated, server, or unsloth's) its weights are brought up to date first. transformers'
    samples derive from `seed`, and the random state of training is left as it was.
    """
    repeated = [ids for ids in prompts for _ in range(n)]
    if getattr(trainer.args, "use_vllm", False):
        trainer.vllm_generation.sync_weights()
        _, completions, *_ = trainer.vllm_generation.generate(
            prompts=repeated, images=None, num_generations=n
        )
    else:
        completions = []
        for start in range(0, len(repeated), SEQUENCES_AT_ONCE):
            chunk = repeated[start : start + SEQUENCES_AT_ONCE]
            completions += _by_transformers(trainer, chunk, derive_seed(seed, start))
    return [completions[i * n : (i + 1) * n] for i in range(len(prompts))]


def _by_transformers(trainer, prompts: Sequence[list[int]], seed: int) -> list[list[int]]:
    import torch
    from trl.models import unwrap_model_for_generation

    ids, mask = padded_left(prompts, trainer.processing_class.pad_token_id)
    device = trainer.accelerator.device
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        torch.no_grad(),
        unwrap_model_for_generation(
            trainer.model_wrapped, trainer.accelerator, generation_kwargs=trainer.generation_kwargs
        ) as model,
    ):
        torch.manual_seed(seed)
        out = model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            generation_config=trainer.generation_config,
        )
    ends = set(trainer.eos_token_ids)
    completions = [row[ids.size(1) :].tolist() for row in out]
    lengths = [next((i for i, token in enumerate(ids, 1) if token in ends), None) for ids in completions]
    return [ids[:length] for ids, length in zip(completions, lengths, strict=True)]
