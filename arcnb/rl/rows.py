"""The prompts GRPO trains on: row i is a function of (seed, i), whatever ran before it.

An epoch shows every task once, in an order of its own; each row draws its own view of its task. A
resumed or sharded run therefore sees what an unbroken run would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from arcnb.arc.seeds import rng
from arcnb.arc.tasks import Task
from arcnb.arc.views import View
from arcnb.models.chat import prompt_ids
from arcnb.models.prompt_format import PromptFormat
from arcnb.models.prompt_lengths import longest_prompt


@dataclass
class PromptRows:
    """`rows` for the trainer; `too_long` maps a task id to the tokens of its longest skipped prompt."""

    rows: list[dict]
    too_long: dict[str, int] = field(default_factory=dict)


def row_task(tasks: Sequence[Task], seed: int, index: int) -> Task:
    """The task of row `index`: position index mod n in the order of epoch index div n."""
    epoch, position = divmod(index, len(tasks))
    return tasks[int(rng(seed, "epoch", epoch).permutation(len(tasks))[position])]


def prompt_rows(
    tasks: Sequence[Task],
    n_rows: int,
    prompt_format: PromptFormat,
    tokenizer,
    *,
    seed: int,
    max_prompt_tokens: int,
    augment: str = "all",
) -> PromptRows:
    """n_rows rows `{prompt, prefix, row, task_id, hflip, n_rot90, color_map, pair_order, test_index}`.

    A task whose prompt is too long leaves the pool before rows are drawn, counted by its longest view.
    ValueError when no task fits.
    """
    too_long = {}
    fitting = []
    for task in tasks:
        longest = longest_prompt(task, prompt_format, tokenizer)
        if longest > max_prompt_tokens:
            too_long[task.task_id] = longest
        else:
            fitting.append(task)
    if not fitting:
        raise ValueError(f"no task of {len(tasks)} has a prompt within {max_prompt_tokens} tokens")
    rows = []
    for index in range(n_rows):
        task = row_task(fitting, seed, index)
        view = View.sample(task, seed, "row", index, augment=augment)
        augmentation = view.augmentation
        prompt = prompt_format.prompt(view.apply(task))
        rows.append(
            {
                "prompt": trainer_text(tokenizer, prompt_ids(tokenizer, prompt)),
                "prefix": prompt.prefix,
                "row": index,
                "task_id": task.task_id,
                "hflip": augmentation.hflip,
                "n_rot90": augmentation.n_rot90,
                "color_map": list(augmentation.color_map or range(10)),
                "pair_order": list(view.pair_order),
                "test_index": view.test_index,
            }
        )
    return PromptRows(rows, too_long)


def trainer_text(tokenizer, prompt_ids: list[int]) -> str:
    """The text that the trainer's tokenizer call turns into exactly prompt_ids.

    TRL tokenises text prompts with special tokens added; text that already starts with the
    begin-of-text token would get a second one (huggingface/trl issue 3853). ValueError where no text
    gives the ids, because then sampling and training would see different prompts.
    """
    text = tokenizer.decode(prompt_ids, skip_special_tokens=False)
    candidates = [text]
    if tokenizer.bos_token and text.startswith(tokenizer.bos_token):
        candidates.append(text.removeprefix(tokenizer.bos_token))
    for candidate in candidates:
        if tokenizer(text=candidate)["input_ids"] == prompt_ids:
            return candidate
    raise ValueError(
        "the tokenizer does not give this prompt's token ids back; use another grid encoding or template"
    )
