"""Rows for supervised fine-tuning: a task's prompt, then its program.

    rows = sft_rows(tasks, model, prompt_format, n_rows=2000, seed=0, max_tokens=4096)
    packed_rows(rows.dataset, 4096)      # several short rows in one, each blind to the others

Row i shows task i mod n through a view drawn from (seed, i): order of the train pairs and shown test input.
The loss counts completion tokens only. Rows that exceed max_tokens are left out and counted, never cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context

import numpy as np

from arcnb.arc.tasks import Task
from arcnb.arc.views import View
from arcnb.models.prompt_format import PromptFormat
from arcnb.models.registry import ModelPath, load_tokenizer
from arcnb.progress import progress

IGNORED = -100  # label of a token that does not count in the loss


class SftError(ValueError):
    """Fine-tuning that cannot start; the message names the parameter or the tasks."""


@cache
def _tokenizer(model: ModelPath):
    return load_tokenizer(model)


@dataclass
class SftRows:
    """dataset: columns input_ids, labels, length. too_long: task id -> tokens, of the rows left out."""

    dataset: object
    too_long: dict[str, int] = field(default_factory=dict)
    n_without_program: int = 0

    def __str__(self) -> str:
        return (
            f"{len(self.dataset):,} rows of {sum(self.dataset['length']):,} tokens; left out: rows of "
            f"{len(self.too_long)} tasks as too long, {self.n_without_program} tasks without a program"
        )


@dataclass(frozen=True)
class RowBuilder:
    """Makes row i. A plain picklable object, so that worker processes can be forked or spawned."""

    tasks: Sequence[Task]
    model: ModelPath
    prompt_format: PromptFormat
    seed: int
    augment: Callable[[Task, int], Task] | None

    def __call__(self, indices: Sequence[int]) -> list[tuple[str, np.ndarray, int]]:
        """(task id, int32 token ids, number of prompt tokens) of the rows with these indices."""
        tokenizer = _tokenizer(self.model)
        rows = []
        for index in indices:
            task = self.tasks[index % len(self.tasks)]
            if self.augment:
                task = self.augment(task, index // len(self.tasks))
            view = View.sample(task, self.seed, "sft", index, augment="none")
            prompt = self.prompt_format.prompt_ids(tokenizer, view.apply(task))
            answer = self.prompt_format.completion_ids(tokenizer, task.program)
            rows.append((task.task_id, np.array(prompt + answer, dtype=np.int32), len(prompt)))
        return rows


def sft_rows(
    tasks: Sequence[Task],
    model: ModelPath,
    prompt_format: PromptFormat,
    *,
    n_rows: int,
    seed: int,
    max_tokens: int,
    augment: Callable[[Task, int], Task] | None = None,
    workers: int = 1,
    start_method: str | None = None,
) -> SftRows:
    """Tokenised rows 0..n_rows-1 of the tasks that have a program. SftError when none is left.

    augment: (task, how often it has come round) -> the task to show; it has to be picklable for workers (see
    `arcnb.synth.augmented.FreshAugmentations`).
    """
    import pyarrow as pa
    from datasets import Dataset

    if model.context and max_tokens > model.context:
        raise SftError(
            f"max_tokens={max_tokens} exceeds the {model.context} tokens that {model.name!r} was built for"
        )
    with_program = [task for task in tasks if task.program]
    if not with_program:
        raise SftError(f"none of the {len(tasks)} tasks has a program to learn from")
    builder = RowBuilder(with_program, model, prompt_format, seed, augment)
    chunks = [range(start, min(start + 256, n_rows)) for start in range(0, n_rows, 256)]
    columns: dict[str, list] = {"input_ids": [], "labels": [], "length": []}
    too_long: Counter = Counter()
    for rows in progress(_mapped(builder, chunks, workers, start_method), "tokenising", len(chunks), "chunk"):
        for task_id, ids, n_prompt in rows:
            if len(ids) > max_tokens:
                too_long[task_id] = max(too_long[task_id], len(ids))
                continue
            labels = ids.copy()
            labels[:n_prompt] = IGNORED
            columns["input_ids"].append(ids)
            columns["labels"].append(labels)
            columns["length"].append(len(ids))
    if not columns["length"]:
        raise SftError(
            f"every row exceeds max_tokens={max_tokens}; the shortest has {min(too_long.values())}"
        )
    return SftRows(Dataset(pa.table(columns)), dict(too_long), len(tasks) - len(with_program))


def _mapped(builder: RowBuilder, chunks, workers: int, start_method: str | None):
    if workers <= 1:
        yield from map(builder, chunks)
        return
    # The builder holds all tasks: it goes to each process once, not along with every chunk.
    with ProcessPoolExecutor(
        workers, mp_context=get_context(start_method), initializer=_set_builder, initargs=(builder,)
    ) as pool:
        yield from pool.map(_build, chunks)


_builder: RowBuilder | None = None


def _set_builder(builder: RowBuilder) -> None:
    global _builder
    _builder = builder


def _build(indices: Sequence[int]) -> list[tuple[str, np.ndarray, int]]:
    return _builder(indices)


def packed_rows(dataset, max_tokens: int):
    """The rows packed into fewer of at most max_tokens (best fit, decreasing), with their `seq_lengths`.

    Rows are whole: none is longer than max_tokens, which `sft_rows` has seen to.
    """
    from trl import pack_dataset

    return pack_dataset(dataset.select_columns(["input_ids", "labels"]), max_tokens, strategy="bfd")


def collator(pad_token_id: int) -> Callable:
    """Right padding without an attention mask; positions start anew with every packed row.

    Under causal attention no real token sees the padding on its right and padding has no label, so a mask
    would change nothing but the kernel: without it, attention runs as plain causal flash attention. Where
    positions start anew, transformers keeps the rows apart by itself.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def collate(examples: list[dict]) -> dict:
        padding = {"input_ids": pad_token_id, "labels": IGNORED}
        batch = {
            name: pad_sequence([torch.as_tensor(row[name]) for row in examples], True, value).long()
            for name, value in padding.items()
        }
        length = batch["input_ids"].shape[1]
        lengths = [row.get("seq_lengths", [len(row["input_ids"])]) for row in examples]
        positions = [torch.cat([torch.arange(n) for n in of_row]) for of_row in lengths]
        # The padding goes on counting: a position out of turn would make every row look like a packed one.
        batch["position_ids"] = torch.stack(
            [torch.cat([row, torch.arange(length - len(row)) + row[-1] + 1]) for row in positions]
        )
        return batch

    return collate
