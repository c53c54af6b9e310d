"""Rows of conversations: first turns that can be found again by their text, and frozen later turns.

TRL gives a rollout function the prompts alone. Rows are made in the process that trains when the trainer asks
for them, so a row can be looked up by the text that it had.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from arcnb.arc.predictions.prediction import SCORE_COLUMNS
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import COLUMNS, View
from arcnb.errors import ArcnbError
from arcnb.machine.reading import naming, shown
from arcnb.models.prompts.chat import render
from arcnb.models.prompts.conversation_files import read_conversations
from arcnb.models.prompts.format import PromptFormat
from arcnb.rl.rows.prompt_rows import PromptRows, none_within, trainer_text

TEXTS = ("task_id", "task_fingerprint", "parent", "parent_status")
SCORES = tuple(f"parent_{score}" for score in SCORE_COLUMNS)
OTHERS = ("turn", *COLUMNS, *SCORES)
_REMEMBERED = 8192  # rows; many more than a trainer asks for ahead


@dataclass
class RememberingRows(PromptRows):
    """PromptRows that know which row a prompt came from."""

    _made: OrderedDict = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, rows: PromptRows) -> RememberingRows:
        """The same rows."""
        return cls(**{entry.name: getattr(rows, entry.name) for entry in fields(PromptRows)})

    def __getitem__(self, index: int) -> dict:
        row = super().__getitem__(index)
        self._made[row["prompt"]] = row
        self._made.move_to_end(row["prompt"])
        while len(self._made) > _REMEMBERED:
            self._made.popitem(last=False)
        return row

    def made(self, prompt: str) -> dict:
        """The row that has this prompt. ArcnbError when it was made in another process."""
        if prompt not in self._made:
            raise ArcnbError(
                "turns above 1 needs the rows made in the training process; leave dataloader_num_workers at 0"
            )
        return self._made[prompt]


@dataclass
class FrozenRows(PromptRows):
    """Conversations of notebook 04 as rows: `PromptRows`' columns, `turn`, `parent` and `parent_<score>`.

    conversations: the file's rows. An epoch shows each once, in an order of its own, in the recorded view.
    """

    conversations: Sequence[dict] = ()

    def __len__(self) -> int:
        return len(self.conversations)

    def __getitem__(self, index: int) -> dict:
        epoch, position = divmod(index, len(self.conversations))
        order = rng(self.seed, "epoch", epoch).permutation(len(self.conversations))
        row = self.conversations[int(order[position])]
        ids = render(self.tokenizer, row["messages"], row["prefix"])
        return {
            "prompt": trainer_text(self.tokenizer, ids),
            "prefix": row["prefix"],
            "row": index,
            "task_id": row["task_id"],
            **{name: row[name] for name in COLUMNS},
            "turn": row["turn"],
            "parent": row["parent"],
            **{name: row[name] for name in ("parent_status", *SCORES)},
        }


def frozen_rows(
    path: str | Path,
    tasks: Sequence[Task],
    prompt_format: PromptFormat,
    tokenizer,
    *,
    seed: int,
    max_prompt_tokens: int,
) -> FrozenRows:
    """The rows of a `refine.parquet` whose prompts fit; `too_long` says by parent which do not.

    Their tasks are those the conversations are about. ArcnbError for another file or other tasks, and when
    no conversation is left.
    """
    found = list(read_conversations(path, TEXTS, OTHERS))
    by_id = {task.task_id: task for task in tasks}
    fitting, too_long = [], {}
    for place, row in found:
        task = by_id.get(row["task_id"])
        if task is None:
            name = shown(row["task_id"])
            raise ArcnbError(f"{place} refines task {name}, which is not in the task set, or reserved")
        if task.fingerprint != row["task_fingerprint"]:
            name = shown(row["task_id"])
            raise ArcnbError(f"{place} refines another version of task {name}: the fingerprints differ")
        _check_numbers(row, task, place)
        with naming(place):
            length = len(render(tokenizer, row["messages"], row["prefix"]))
        if length > max_prompt_tokens:
            too_long[row["parent"]] = length
        else:
            fitting.append(row)
    if not fitting:
        raise none_within(max_prompt_tokens, f"{path}: none of {len(found)} conversations is")
    used = {row["task_id"] for row in fitting}
    of_rows = [task for task in tasks if task.task_id in used]
    return FrozenRows(of_rows, prompt_format, tokenizer, seed, too_long=too_long, conversations=fitting)


def _check_numbers(row: Mapping, task: Task, place: str) -> None:
    """ArcnbError unless turn, scores and the view of the task are such."""
    scores = [name for name in SCORES if not isinstance(row[name], int | float | None)]
    if scores or not isinstance(row["turn"], int):
        raise ArcnbError(f"{place}: {(scores or ['turn'])[0]} is no number")
    try:
        View.of(row).apply(task)
    except (ArcnbError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise ArcnbError(
            f"{place}: {', '.join(COLUMNS)} are no view of task {task.task_id} ({error})"
        ) from None
