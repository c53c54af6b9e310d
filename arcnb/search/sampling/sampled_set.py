"""A prediction set and how its rows are made, as one object that the stages of sampling pass on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.sampling.backends import Sampling


@dataclass(frozen=True)
class SampledSet:
    """Rows about these tasks, made by these prompts and this sampling.

    model, adapter: what the rows say they are sampled from. part_rows, part_seconds: a part is written with
    so many rows, or after so long.
    """

    tasks: Sequence[Task]
    predictions: PredictionSet
    prompt_format: PromptFormat
    sampling: Sampling
    model: str = ""
    adapter: str = ""
    part_rows: int = 2048
    part_seconds: float = 60.0
