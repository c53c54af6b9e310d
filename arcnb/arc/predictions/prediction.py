"""The prediction record: one completion of the model and everything that became of it.

Inference, judging, refinement, rewards, search and evaluation read and write this record and no other. It
only grows: sampling fills the first half, judging (program, outputs, scores) the second. `PredictionSet`,
the folder of Parquet parts that holds them, is in prediction_set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.grids import Grid
from arcnb.arc.pictures.cards import prediction_card
from arcnb.arc.pictures.figures import SMALL_PICTURE, prediction_html, produced_html
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import View


@dataclass
class Prediction:
    """One row of a prediction set. None means not known (yet). Comparing records leaves out their outputs.

    What was asked:
      task_id, task_fingerprint; round, index, turn: which completion of the task this is;
      parent: id of the refined prediction; seed of the sampling; hflip, n_rot90, color_map: augmentation of
      the prompt; pair_order: train pairs in the order shown; test_index: the test input shown; model,
      adapter.
    What came back:
      completion: text, whatever it was; completion_prefix: assistant text that was put before it;
      n_prompt_tokens, n_tokens; finish_reason ("stop", "length"); logprob: sum over the completion's tokens.
    What became of it:
      program: Python text or None; extraction: how it was found, or why not; status: "ok", "no_code", ...
      of the executor; error_type, error_message, error_line; outputs: grids for train then test inputs in the
      ORIGINAL frame; fingerprint: of the outputs, only when status is "ok"; the six scores (None where the
      expected outputs are unknown); seconds (wall) and cpu_seconds of running the program, in steps of
      0.1 ms.
    """

    task_id: str
    task_fingerprint: str
    round: int
    index: int
    turn: int = 0
    parent: str | None = None
    seed: int = 0
    hflip: bool = False
    n_rot90: int = 0
    color_map: list[int] | None = None
    pair_order: list[int] | None = None
    test_index: int = 0
    model: str = ""
    adapter: str | None = None
    completion: str = ""
    completion_prefix: str = ""
    n_prompt_tokens: int | None = None
    n_tokens: int | None = None
    finish_reason: str | None = None
    logprob: float | None = None
    program: str | None = None
    extraction: str | None = None
    status: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_line: int | None = None
    outputs: list[Grid | None] | None = field(default=None, compare=False)
    fingerprint: str | None = None
    train_pixel_score: float | None = None
    train_correct_grids: float | None = None
    train_is_correct: int | None = None
    test_pixel_score: float | None = None
    test_correct_grids: float | None = None
    test_is_correct: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None

    @property
    def id(self) -> str:
        """`task_id/round/index/turn`, unique within a prediction set."""
        return f"{self.task_id}/{self.round}/{self.index}/{self.turn}"

    @property
    def key(self) -> PredictionKey:
        """What `id` says, as a tuple (task_id, round, index, turn)."""
        return (self.task_id, self.round, self.index, self.turn)

    @property
    def view(self) -> View:
        """The view of the task that the prompt showed."""
        return View.of(vars(self))

    @property
    def augmentation(self) -> Augmentation:
        """The augmentation of the task that the prompt showed."""
        return Augmentation(self.hflip, self.n_rot90, self.color_map and tuple(self.color_map))

    @property
    def solved(self) -> bool:
        """Whether the program is right on every grid whose expected output is known; of rows
        `tables.right_where_known`."""
        return bool(self.train_is_correct) and self.test_is_correct in (None, 1)

    @property
    def closeness(self) -> tuple[float, float]:
        """How close the outputs came on train, to be compared: share of right grids, then similarity."""
        return self.train_correct_grids or 0.0, self.train_pixel_score or 0.0

    @property
    def failure(self) -> str:
        """What went wrong with the program, on one line; empty where nothing did."""
        if self.status in (None, "ok"):
            return ""
        at = f" (line {self.error_line})" if self.error_line else ""
        what = ": ".join(filter(None, (self.error_type, self.error_message)))
        return " ".join(f"{self.status}{': ' if what else ''}{what}{at}".split())

    @property
    def verdict(self) -> str:
        """One line: which prediction this is and how right it is."""
        if self.status is None:
            return f"{self.id} · not judged yet"
        if self.train_correct_grids is None:
            return f"{self.id} · {self.failure or self.status}"
        test = "test outputs unknown"
        if self.test_correct_grids is not None:
            test = f"{self.test_correct_grids:.0%} of test grids right"
        solved = "solved: " if self.train_is_correct and self.test_is_correct else ""
        wrong = f" · {self.failure}" if self.failure else ""
        return f"{self.id} · {solved}{self.train_correct_grids:.0%} of train grids right, {test}{wrong}"

    def card(self, task: Task | None, head: str = "") -> str:
        """HTML of what was produced, beside what the task asked for where that is given, and of the program.

        head replaces the verdict.
        """
        if task is None:
            pictures = produced_html(self.outputs)
        else:
            pictures = prediction_html(task.task_id, task.named_pairs, self.outputs)
        completion = self.completion_prefix + self.completion
        return prediction_card(head or self.verdict, pictures, self.program or "", completion)

    def small_card(self, task: Task, head: str) -> str:
        """HTML of two pairs, wrong and test pairs first, and of the program, for several side by side."""
        pairs, made = task.named_pairs, self.outputs or [None] * len(task.named_pairs)
        right = [np.array_equal(pair[2], output) for pair, output in zip(pairs, made, strict=True)]
        shown = sorted(range(len(pairs)), key=lambda i: (right[i], i < len(task.train), i))[:2]
        pictures = prediction_html(
            "", [pairs[i] for i in shown], [made[i] for i in shown], picture=SMALL_PICTURE
        )
        return f'<div class="arcnb-card">{prediction_card(head, pictures, self.program or "", None)}</div>'

    def _repr_html_(self) -> str:
        return self.card(None)


PredictionKey = tuple[str, int, int, int]
FIELD_NAMES = tuple(f.name for f in fields(Prediction))
KEY_COLUMNS = ("task_id", "round", "index", "turn")
SCORES = ("pixel_score", "correct_grids", "is_correct")
SCORE_COLUMNS = tuple(f"{part}_{score}" for part in ("train", "test") for score in SCORES)


def output_fingerprint(outputs: Sequence[Grid]) -> str:
    """Of shape and cells of all outputs, in order: equal outputs, equal fingerprint.

    The first 64 bits of a SHA-256, in hex. Among 100,000 different outputs of a task two share one with a
    chance of 1 in 3.7 billion.
    """
    digest = hashlib.sha256()
    for grid in outputs:
        digest.update(b"%dx%d:" % grid.shape + grid.tobytes())
    return digest.hexdigest()[:16]
