"""Rows for supervised fine-tuning: a task's prompt, then its program.

    rows = sft_rows(tasks, model, prompt_format, n_rows=2000, seed=0, max_length=4096)
    rows = conversation_rows(run / "sft.parquet", model, max_length=4096)   # of notebook 04
    packed_rows(rows.dataset, 4096)      # several short rows in one, each blind to the others

Row i shows task i mod n through a view drawn from (seed, i): order of the train pairs and shown test input.
The loss counts completion tokens only; of a conversation, whose earlier turns are read, the last answer's.
Rows that exceed max_length are left out and counted, never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np

from arcnb.arc.tasks.task import Task
from arcnb.arc.views import View
from arcnb.errors import ArcnbError, number_of
from arcnb.machine.pools import in_order
from arcnb.machine.processes import shared_context
from arcnb.machine.progress import progress
from arcnb.machine.reading import naming
from arcnb.models.prompts.chat import answer_ids, render
from arcnb.models.prompts.conversation_files import read_conversations
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.prompts.rendering import template_digest
from arcnb.models.registry import ModelPath, load_tokenizer, only_tokenise

IGNORED = -100  # label of a token that does not count in the loss
LEARNT = ("task_id", "answer")  # texts of a conversation to learn from
CHUNK = 64  # rows that a process makes at a time
_LEAST = Task.from_dict(
    "least", {"train": [{"input": [[0]], "output": [[0]]}], "test": [{"input": [[0]]}]}
)  # no task has a shorter prompt


@cache
def _tokenizer(model: ModelPath):
    return load_tokenizer(model)


@dataclass
class SftRows:
    """Rows that are all there. Used like a RowStream: in a `with`, and with its `counts` and `lengths`.

    dataset: columns input_ids, labels, length. too_long: task id -> tokens, of the rows left out.
    n_without_program, n_reserved: tasks left out.
    """

    dataset: object
    too_long: dict[str, int] = field(default_factory=dict)
    n_without_program: int = 0
    n_reserved: int = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def __enter__(self) -> SftRows:
        return self

    def __exit__(self, *error) -> None:
        pass

    def lengths(self) -> list[int]:
        """Tokens of every row."""
        return [len(ids) for ids in self.dataset["input_ids"]]

    def packed(self, max_length: int) -> SftRows:
        """The same in fewer rows (see `packed_rows`)."""
        return replace(self, dataset=packed_rows(self.dataset, max_length))

    def counts(self) -> dict:
        """rows, tokens, too_long (task id -> tokens), n_without_program, n_reserved."""
        left_out = {name: getattr(self, name) for name in ("too_long", "n_without_program", "n_reserved")}
        return {"rows": len(self), "tokens": sum(self.lengths()), **left_out}


Drawn: TypeAlias = "tuple[int, Task, int]"  # row, task, how often the task was seen before


@dataclass(frozen=True)
class RowBuilder:
    """Makes rows. A plain picklable object, so that worker processes can have it. Its text says
    what the template holds, which may be edited."""

    model: ModelPath
    prompt_format: PromptFormat
    seed: int
    augment: Callable[[Task, int], Task] | None = None
    template_sha256: str = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "template_sha256", template_digest(self.prompt_format.template))

    def __call__(self, drawn: Sequence[Drawn]) -> list[tuple[str, np.ndarray, int]]:
        """(task id, int32 token ids, number of prompt tokens) of each row."""
        tokenizer = _tokenizer(self.model)
        rows = []
        for index, task, number in drawn:
            if self.augment:
                task = self.augment(task, number)
            view = View.sample(task, self.seed, "sft", index, augment="none")
            prompt = self.prompt_format.prompt_ids(tokenizer, view.apply(task))
            answer = self.prompt_format.completion_ids(tokenizer, task.program)
            rows.append((task.task_id, np.array(prompt + answer, dtype=np.int32), len(prompt)))
        return rows

    def rows(
        self,
        drawn: Iterable[Drawn],
        workers: int = 1,
        chunk: int = CHUNK,
    ) -> Iterator[list[tuple[str, np.ndarray, int]]]:
        """Chunks of so many rows, in order, made by so many processes."""
        chunks = _chunks(drawn, chunk)
        if workers <= 1:
            yield from map(self, chunks)
            return
        with ProcessPoolExecutor(workers, shared_context(), only_tokenise) as pool:
            yield from in_order(pool, self, chunks, 3 * workers)


def _chunks(items: Iterable, size: int) -> Iterator[list]:
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


@dataclass
class RowTable:
    """Rows as columns of a dataset; those over max_length are left out and noted in too_long."""

    max_length: int
    too_long: dict[str, int]
    columns: dict[str, list] = field(default_factory=lambda: {"input_ids": [], "labels": [], "length": []})

    def add(self, task_id: str, ids: np.ndarray, n_prompt: int) -> bool:
        """Take a row in, or note its task and length; whether it was taken."""
        if len(ids) > self.max_length:
            self.too_long[task_id] = max(self.too_long.get(task_id, 0), len(ids))
            return False
        labels = ids.copy()
        labels[:n_prompt] = IGNORED
        for name, value in (("input_ids", ids), ("labels", labels), ("length", len(ids))):
            self.columns[name].append(value)
        return True

    def __len__(self) -> int:
        return len(self.columns["length"])

    def dataset(self):
        """The rows so far."""
        import pyarrow as pa
        from datasets import Dataset

        return Dataset(pa.table(self.columns))


def sft_rows(
    tasks: Sequence[Task],
    model: ModelPath,
    prompt_format: PromptFormat,
    *,
    n_rows: int,
    seed: int,
    max_length: int,
    augment: Callable[[Task, int], Task] | None = None,
    workers: int = 1,
    called: str = "tasks",
) -> SftRows:
    """Tokenised rows 0..n_rows-1 of the tasks that have a program. ArcnbError, with the parameter that named
    the tasks (`called`), when none is left.

    augment: (task, how often it has come round) -> the task to show; it has to be picklable for workers (see
    `arcnb.synth.rearc.augmented.FreshAugmentations`).
    """
    with_program = [task for task in tasks if task.program]
    if not with_program:
        raise ArcnbError(
            f"{called}: none of {number_of(len(tasks), 'task')} has a program, which the loss is of "
            "(rearc, dsl and BARC-style rows have some)"
        )
    builder = RowBuilder(model, prompt_format, seed, augment)
    table = RowTable(max_length, {})
    drawn = ((i, with_program[i % len(with_program)], i // len(with_program)) for i in range(n_rows))
    with progress(None, "tokenising", n_rows, "row") as bar:
        for rows in builder.rows(drawn, workers):
            for row in rows:
                table.add(*row)
            bar.update(len(rows))
    if not len(table):
        raise ArcnbError(
            f"every row exceeds max_length={max_length}; the shortest has {min(table.too_long.values())}"
        )
    return SftRows(table.dataset(), table.too_long, len(tasks) - len(with_program))


def conversation_rows(
    path: str | Path,
    model: ModelPath,
    *,
    max_length: int,
    reserved: Callable[[Mapping], bool] | None = None,
) -> SftRows:
    """Tokenised rows `input_ids, labels, length`; labels count the last answer and its end token only.

    Rows beyond max_length and tasks of which `reserved` is true, asked by a row, are left out and counted.
    ArcnbError when none is left, or for other files.
    """
    found = list(read_conversations(path, LEARNT))
    left_out = set()
    for place, row in found if reserved is not None else ():
        with naming(place):
            if reserved(row):
                left_out.add(row["task_id"])
    tokenizer, table = load_tokenizer(model), RowTable(max_length, {})
    for place, row in found:
        if row["task_id"] in left_out:
            continue
        with naming(place):
            read = render(tokenizer, row["messages"], row["prefix"])
        learnt = answer_ids(tokenizer, row["answer"])
        table.add(row["task_id"], np.array(read + learnt, dtype=np.int32), len(read))
    if not len(table):
        too_long = table.too_long
        longest = f"; the shortest has {min(too_long.values())} tokens" if too_long else ""
        n = len(left_out)
        asked_for = "train_on_held_out=True takes reserved ones"
        kept = f" (reserved or eval tasks left out: {n}; {asked_for})" if n else ""
        raise ArcnbError(
            f"{path}: none of {len(found)} conversations{kept} fits max_length={max_length}{longest}"
        )
    return SftRows(table.dataset(), table.too_long, n_reserved=len(left_out))


def check_max_length(model: ModelPath, max_length: int, prompt_format: PromptFormat) -> None:
    """ArcnbError where rows would exceed what the model was built for, or where no row could be short enough.

    The shortest is of a task whose grids are single cells. What tasks of a recipe need is known only once
    they are made.
    """
    if model.context and max_length > model.context:
        raise ArcnbError(
            f"max_length={max_length} exceeds the {model.context} tokens that {model.name!r} was built for"
        )
    try:
        least = len(prompt_format.prompt_ids(_tokenizer(model), _LEAST))
    except ArcnbError:  # a template that shows more pairs than one by their numbers
        return
    if least >= max_length:
        raise ArcnbError(
            f"no row fits max_length={max_length}: with template {prompt_format.template} already the prompt "
            f"of a task with one pair of single cells has {least} tokens, and its program comes on top"
        )


def packed_rows(dataset, max_length: int):
    """The rows packed into fewer of at most max_length (best fit, decreasing), with their `seq_lengths`.

    Rows are whole: none is longer than max_length, which `sft_rows` has seen to.
    """
    from trl import pack_dataset

    return pack_dataset(dataset.select_columns(["input_ids", "labels"]), max_length, strategy="bfd")


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
