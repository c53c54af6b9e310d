"""Prediction sets side by side: means with intervals, paired tests, pass@k curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.metrics import LOOSE_COLUMN, TABLE_COLUMNS, aggregate, paired_difference, pass_at_k_curve
from arcnb.arc.predictions import PredictionSet
from arcnb.arc.seeds import rng

if TYPE_CHECKING:
    import pandas as pd

SCORE_READ = [
    "task_id", "round", "index", "turn", "status", "error_type", "fingerprint", "program", "finish_reason",
    "n_prompt_tokens", "n_tokens", "outputs",
    "train_pixel_score", "train_correct_grids", "train_is_correct",
    "test_pixel_score", "test_correct_grids", "test_is_correct",
]  # fmt: skip
RESAMPLES = 2000


class EvaluationError(ValueError):
    """Prediction sets that cannot be evaluated; the message names the folder."""


def read_sets(folders: Sequence[str], names: Sequence[str] = ()) -> dict[str, pd.DataFrame]:
    """{name: frame} of prediction folders. EvaluationError for a folder without predictions."""
    if not folders:
        raise EvaluationError("no prediction set was named")
    if names and len(names) != len(folders):
        raise EvaluationError(f"{len(folders)} prediction sets but {len(names)} names")
    frames = {}
    for folder, name in zip(folders, names or [Path(folder).parent.name for folder in folders], strict=True):
        if not Path(folder).is_dir():
            raise EvaluationError(f"prediction set {folder} does not exist")
        if name in frames:
            raise EvaluationError(f"two prediction sets are called {name!r}; give names")
        frames[name] = PredictionSet(folder).read(columns=SCORE_READ)
        if frames[name].empty:
            raise EvaluationError(f"prediction set {folder} holds no predictions")
    return frames


def comparison_table(
    frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str], seed: int = 0
) -> pd.DataFrame:
    """One row a set, the columns of the aggregate table; "mean [low, high]", 95% by bootstrap over tasks."""
    import pandas as pd

    rows = {}
    for name, frame in frames.items():
        table = aggregate(frame, task_ids)
        rows[name] = {
            column: _interval(table[column].to_numpy(float), seed)
            for column in (*TABLE_COLUMNS, LOOSE_COLUMN)
        }
    return pd.DataFrame(rows).T


def _interval(values: np.ndarray, seed: int) -> str:
    values = values[~np.isnan(values)]
    if not len(values):
        return "unknown"
    mean = values.mean()
    if np.all(values == values[0]):
        return f"{mean:.3g}"
    draws = rng(seed, "table interval").integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def headlines(frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str]) -> list[str]:
    """What came out of each set, in one plain sentence."""
    sentences = []
    for name, frame in frames.items():
        table = aggregate(frame, task_ids)
        solved, known = int(table["is_correct"].sum()), int(table["is_correct"].notna().sum())
        shares = table[["valid code", "valid outputs", "unique outputs"]].mean()
        sentences.append(
            f"{name}: {solved or 'none'} of {known} tasks solved (train and test by one program); of the "
            f"completions {shares['valid code']:.1%} hold a program, {shares['valid outputs']:.1%} ran with "
            f"valid outputs, {shares['unique outputs']:.1%} gave different outputs"
        )
    return sentences


def paired_table(frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str], seed: int = 0) -> list[str]:
    """Each set against the one before it, in one sentence; empty for a single set."""
    sentences = []
    for (name_a, frame_a), (name_b, frame_b) in pairwise(frames.items()):
        difference = paired_difference(frame_a, frame_b, "is_correct", seed, task_ids)
        sentences.append(f"{name_a} -> {name_b}: {difference}")
    return sentences


def curves(
    frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str], seed: int = 0
) -> dict[str, pd.DataFrame]:
    """{name: pass@k curve} over the same tasks."""
    return {name: pass_at_k_curve(frame, seed=seed, task_ids=task_ids) for name, frame in frames.items()}
