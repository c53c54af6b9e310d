"""Second and later turns: tell the model what its program did and ask for a better one.

The feedback is about train pairs only; nothing is said about test pairs. Programs that failed are refined
too: the class of the error or the limit that was hit, the message and the failing line take the place of the
grids. Two templates come with the package: "refine" is short (few wrong cells are listed, many are shown as
the grid), "refine_full" says everything about every pair.

    prompt = build_refinement(task, first_prompt, completion, outputs=outputs)

`task` and `outputs` are in the frame of the first prompt (augmented, if that was).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from arcnb.arc.encodings import grid_encoding
from arcnb.arc.grids import Grid, grid_size
from arcnb.arc.scores.similarity import pixel_similarity
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.models.prompts.rendering import DEFAULT_ENCODING, Prompt, render_prompt

_LONGEST_MESSAGE = 300  # characters of an error message that are shown
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
_LONGEST_SOURCE = 120  # characters of the failing line


@dataclass(frozen=True)
class ProgramError:
    """How a program failed: class and message of the error, line of the program (from 1) and its text.

    status: the executor's verdict ("error", "timeout", "memory", ...), by which templates tell limits apart.
    """

    type: str
    message: str = ""
    line: int | None = None
    source: str = ""
    status: str = "error"


@dataclass(frozen=True)
class WrongCell:
    """A cell of an output, counted from 0, with what it holds and should hold in the prompt's encoding."""

    row: int
    column: int
    produced: str
    expected: str


@dataclass(frozen=True)
class PairFeedback:
    """What a template is told about one train pair. Sizes are "3x4"; wrong_cells is empty if they differ."""

    correct: bool
    similarity: float
    expected_size: str
    produced_size: str
    produced: str
    wrong_cells: tuple[WrongCell, ...]


def build_refinement(
    task: Task,
    first: Prompt,
    completion: str,
    outputs: Sequence[Grid] | None = None,
    error: ProgramError | None = None,
    template: str | Path = "refine",
    encoding: str = DEFAULT_ENCODING,
) -> Prompt:
    """The conversation so far, the answer `first.prefix + completion`, and the request to correct it.

    outputs: what the program produced for the train inputs (more are ignored); or else error: how it failed.
    The result can be refined again. Raises ArcnbError.
    """
    if (outputs is None) == (error is None):
        raise ArcnbError(f"task {task.task_id}: a refinement needs either outputs or an error")
    pairs = () if outputs is None else feedback(task, outputs, encoding)
    if error is not None:
        lines = error.message.strip().splitlines() or ["no message"]
        source = error.source.strip()[:_LONGEST_SOURCE]
        message = _ADDRESS.sub("0x...", lines[-1])  # another one in every process
        error = replace(error, message=message[:_LONGEST_MESSAGE], source=source)
    asked = render_prompt(template, {"pairs": pairs, "error": error})
    answer = {"role": "assistant", "content": first.prefix + completion}
    return Prompt((*first.messages, answer, asked.messages[-1]), asked.prefix)


def feedback(
    task: Task, outputs: Sequence[Grid], encoding: str = DEFAULT_ENCODING
) -> tuple[PairFeedback, ...]:
    """Feedback on each train pair of `task`, given the grids that a program produced for them."""
    if len(outputs) < len(task.train):
        raise ArcnbError(f"task {task.task_id}: {len(outputs)} outputs for {len(task.train)} train pairs")
    write = grid_encoding(encoding).to_text
    return tuple(
        _pair_feedback(pair.output, output, write) for pair, output in zip(task.train, outputs, strict=False)
    )


def _pair_feedback(expected: Grid, produced: Grid, write) -> PairFeedback:
    cells: tuple[WrongCell, ...] = ()
    if expected.shape == produced.shape:
        cells = tuple(
            WrongCell(int(r), int(c), _cell_text(produced[r, c], write), _cell_text(expected[r, c], write))
            for r, c in np.argwhere(expected != produced)
        )
    return PairFeedback(
        bool(np.array_equal(expected, produced)),
        float(pixel_similarity(expected, produced)),
        grid_size(expected),
        grid_size(produced),
        write(produced),
        cells,
    )


def _cell_text(value: int, write) -> str:
    """One color as the encoding writes it, or its digit where the encoding adds more than the color."""
    text = write(np.array([[value]], dtype=np.uint8))
    return text if len(text.split()) == 1 else str(int(value))
