"""How many tokens tasks cost: prompts and programs, for one model and one way of writing prompts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.encodings import grid_encoding
from arcnb.arc.grids import N_COLORS
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import View, check_augment
from arcnb.errors import ArcnbError, number_of, some
from arcnb.machine.processes import shared_context
from arcnb.machine.progress import progress
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.registry import ModelPath, load_tokenizer, only_tokenise

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.97, 1.0)
CONTEXTS = (1024, 2048, 4096, 8192, 16384)


def longest_prompt(task: Task, prompt_format: PromptFormat, tokenizer, augment: str = "all") -> int:
    """Tokens of the task's longest prompt in all views that `augment`, an entry of AUGMENTATIONS, allows.

    The shown test input changes a prompt's length, a turn does (a tall grid has more line breaks), and so do
    colors that are not written in equally many tokens. The order of the pairs does not. Where tokens of one
    cell depend on its neighbors' colors, as of `symbols`, this is an estimate.
    """
    check_augment(augment)
    cost = _color_tokens(tokenizer, prompt_format.encoding)
    even = bool((cost == cost[:, :1]).all())
    order = tuple(range(len(task.train)))
    longest = 0
    for index in range(len(task.test)):
        # With uneven colors it matters which side's cells begin the lines.
        for turn in range(1 if augment in ("none", "colors") else 2 if even else 4):
            view = View(Augmentation(n_rot90=turn), order, index)
            shown = view.apply(task)
            if not even and augment in ("all", "colors"):
                shown = Augmentation(color_map=_longest_colors(shown, cost)).apply_task(shown)
            longest = max(longest, len(prompt_format.prompt_ids(tokenizer, shown)))
    return longest


@lru_cache(8)  # every task asks for it
def _color_tokens(tokenizer, encoding: str) -> np.ndarray:
    """What a cell of each color costs, float64 (2, 10): as a line's first cell, and behind others; tokens,
    but for a constant of each row."""
    write = grid_encoding(encoding).to_text
    shapes = [
        [(color,) * width] * height for height, width in ((8, 1), (1, 1), (1, 9)) for color in range(10)
    ]
    texts = [f"\n{write(grid)}\n" for grid in shapes]
    tall, cell, wide = np.reshape([len(ids) for ids in tokenizer(texts)["input_ids"]], (3, N_COLORS))
    return np.stack([tall / 8, (wide - cell) / 8])


def _longest_colors(shown: Task, cost: np.ndarray) -> tuple[int, ...]:
    """The color_map that makes the shown grids cost most, by `_color_tokens`."""
    from scipy.optimize import linear_sum_assignment

    pairs = (*shown.train, *shown.test)
    grids = [grid for pair in pairs for grid in (pair.input, pair.output) if grid is not None]
    first = np.bincount(np.concatenate([grid[:, 0] for grid in grids]), minlength=N_COLORS)
    later = np.bincount(np.concatenate([grid[:, 1:].ravel() for grid in grids]), minlength=N_COLORS)
    tokens = np.outer(first, cost[0]) + np.outer(later, cost[1])
    return tuple(linear_sum_assignment(tokens, maximize=True)[1].tolist())


def _measured(
    model: ModelPath, prompt_format: PromptFormat, augment: str, tasks: Sequence[Task]
) -> list[tuple[str, int, int | None]]:
    tokenizer = load_tokenizer(model)
    return [
        (
            task.task_id,
            longest_prompt(task, prompt_format, tokenizer, augment),
            len(prompt_format.completion_ids(tokenizer, task.program)) if task.program else None,
        )
        for task in tasks
    ]


def prompt_lengths(
    tasks: Sequence[Task],
    model: ModelPath,
    prompt_format: PromptFormat,
    workers: int = 1,
    augment: str = "all",
) -> pd.DataFrame:
    """One row a task: task_id, prompt_tokens of its longest prompt in the views that `augment` allows,
    program_tokens (NA without a program).

    Measured in processes of their own, also for workers=1, so that this one need not load torch.
    """
    import pandas as pd

    measure = partial(_measured, model, prompt_format, augment)
    tasks = list(tasks)
    chunks = [tasks[start : start + 256] for start in range(0, len(tasks), 256)]
    n_processes = max(1, min(workers, len(chunks)))
    with ProcessPoolExecutor(n_processes, shared_context("fork"), only_tokenise) as pool:
        measured = list(progress(pool.map(measure, chunks), "measuring prompts", len(chunks), "chunk"))
    frame = pd.DataFrame(
        [row for rows in measured for row in rows], columns=["task_id", "prompt_tokens", "program_tokens"]
    )
    return frame.astype({"prompt_tokens": "Int64", "program_tokens": "Int64"})


def length_percentiles(lengths: pd.DataFrame) -> pd.DataFrame:
    """Token percentiles (50 to 97, max) of prompts and programs, one row each."""
    import pandas as pd

    columns = [name for name in ("prompt_tokens", "program_tokens") if lengths[name].notna().any()]
    rows = {name: lengths[name].dropna().astype(int).quantile(list(QUANTILES)) for name in columns}
    table = pd.DataFrame(rows).T.round(0).astype(int)
    table.columns = ["max" if q == 1.0 else f"{q:.0%}" for q in QUANTILES]
    return table


def fitting(lengths: pd.DataFrame, max_prompt_length: int) -> pd.DataFrame:
    """The rows of tasks whose longest prompt has at most so many tokens. ArcnbError when there is none."""
    kept = lengths[lengths["prompt_tokens"] <= max_prompt_length]
    if kept.empty:
        raise ArcnbError(
            f"no task of {len(lengths)} has a prompt of at most max_prompt_length={max_prompt_length}; "
            f"the shortest has {lengths['prompt_tokens'].min()} tokens"
        )
    return kept


def fitting_table(lengths: pd.DataFrame, completion_tokens: int = 512) -> pd.DataFrame:
    """How many tasks fit which context when completion_tokens are kept for the answer."""
    import pandas as pd

    fits = [int((lengths["prompt_tokens"] + completion_tokens <= context).sum()) for context in CONTEXTS]
    shares = [f"{count / len(lengths):.0%}" for count in fits]
    return pd.DataFrame(
        {"tasks that fit": fits, "share": shares}, index=pd.Index(CONTEXTS, name="context (tokens)")
    )


def kept_text(lengths: pd.DataFrame, max_prompt_length: int) -> str:
    """How many of the measured tasks fit, how long their prompts are, and which do not fit."""
    kept = fitting(lengths, max_prompt_length)
    out = [task_id for task_id in lengths["task_id"] if task_id not in set(kept["task_id"])]
    tokens = kept["prompt_tokens"]
    said = f"Kept: {len(kept)} of {number_of(len(lengths), 'task')}, with prompts of "
    said += f"{tokens.median():,.0f} tokens (median), at most {tokens.max():,}."
    return said + (f" Left out, with more than {max_prompt_length:,} tokens: {some(out)}." if out else "")
