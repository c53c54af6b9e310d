"""Second-turn conversations: task, the program the model wrote, what it did, the request for a better one.

The first turn is rebuilt exactly from the recorded view. Feedback is computed in the frame the model saw
and speaks of train pairs only. Works for any depth: a prediction of turn t gives a conversation for t + 1,
whose history is rebuilt through its parents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.part_files import new_file
from arcnb.arc.predictions import Prediction, PredictionSet
from arcnb.arc.seeds import rng
from arcnb.arc.tasks import Task
from arcnb.arc.views import View
from arcnb.models.chat import prompt_ids
from arcnb.models.prompt_format import PromptFormat
from arcnb.models.prompts import Prompt
from arcnb.models.refinement import ProgramError, build_refinement
from arcnb.search.selection import choose

if TYPE_CHECKING:
    import pandas as pd


class RefinementError(ValueError):
    """Nothing to refine, or predictions of another version of a task; the message says which."""


@dataclass
class RefinementDataset:
    """rows: one conversation each, see `refinement_rows`; parents: the predictions that they refine."""

    rows: list[dict]
    parents: list[Prediction]
    n_tasks: int
    n_solved: int
    too_long: dict[str, int] = field(default_factory=dict)  # prediction id -> tokens

    def outcome(self) -> dict:
        """Plain numbers for the run's manifest."""
        lengths = [row["n_prompt_tokens"] for row in self.rows]
        return {
            "conversations": len(self.rows),
            "tasks": len({row["task_id"] for row in self.rows}),
            "tasks_seen": self.n_tasks,
            "tasks_already_solved": self.n_solved,
            "left_out_as_too_long": self.too_long,
            "longest_prompt": max(lengths),
        }

    def summary(self) -> pd.DataFrame:
        """The outcome as a one-column table."""
        import pandas as pd

        return pd.DataFrame({"refinement dataset": self.outcome()})


def recorded_view(prediction: Prediction) -> View:
    """The view that the prediction's prompt showed."""
    return View(prediction.augmentation, tuple(prediction.pair_order), prediction.test_index)


def conversation(
    task: Task, prediction: Prediction, ancestors: Mapping[str, Prediction], prompt_format: PromptFormat
) -> Prompt:
    """The prompt that asks to improve `prediction`; ancestors: id -> prediction, for turns above 0."""
    view = recorded_view(prediction)
    shown = view.apply(task)
    if prediction.parent:
        first = conversation(task, ancestors[prediction.parent], ancestors, prompt_format)
    else:
        first = prompt_format.prompt(shown)
    if prediction.status == "ok":
        outcome = {"outputs": [view.augmentation.apply(prediction.outputs[i]) for i in view.pair_order]}
    else:
        kind = prediction.error_type or prediction.status
        outcome = {"error": ProgramError(kind, prediction.error_message or "", prediction.error_line)}
    return build_refinement(
        shown,
        first,
        prediction.completion,
        template=prompt_format.refine_template,
        encoding=prompt_format.encoding,
        **outcome,
    )


def refinement_rows(
    sets: Sequence[PredictionSet],
    tasks: Sequence[Task],
    tokenizer,
    prompt_format: PromptFormat,
    *,
    chooser: str = "distinct",
    per_task: int = 4,
    keep_solved: bool = False,
    max_prompt_tokens: int = 7000,
    seed: int = 0,
) -> RefinementDataset:
    """Conversations to refine at most `per_task` predictions of each task, as rows

    `{task_id, parent, turn, messages, prefix, prompt_ids, n_prompt_tokens, hflip, n_rot90, color_map,
    pair_order, test_index}`. RefinementError when no candidate is left, or for another version of a task.
    """
    by_id = {task.task_id: task for task in tasks}
    grouped: dict[str, list[Prediction]] = {}
    for prediction in (row for one in sets for row in one.iter_predictions()):
        task = by_id.get(prediction.task_id)
        if task is None or task.fingerprint != prediction.task_fingerprint:
            raise RefinementError(
                f"prediction {prediction.id} answers a task that is not in this task set as it was"
            )
        grouped.setdefault(prediction.task_id, []).append(prediction)
    dataset = RefinementDataset([], [], len(grouped), 0)
    for task_id, predictions in grouped.items():
        solved = any(p.train_is_correct for p in predictions)
        dataset.n_solved += solved
        if solved and not keep_solved:
            continue
        ancestors = {p.id: p for p in predictions}
        for parent in choose(chooser, predictions, per_task, rng(seed, "refine", task_id)):
            prompt = conversation(by_id[task_id], parent, ancestors, prompt_format)
            ids = prompt_ids(tokenizer, prompt)
            if len(ids) > max_prompt_tokens:
                dataset.too_long[parent.id] = len(ids)
                continue
            dataset.rows.append(_row(parent, prompt, ids))
            dataset.parents.append(parent)
    if not dataset.rows:
        raise RefinementError(
            f"nothing to refine: of {len(grouped)} tasks {dataset.n_solved} are solved, "
            f"{len(dataset.too_long)} conversations exceed {max_prompt_tokens} tokens, "
            f"and chooser {chooser!r} found no other candidate"
        )
    return dataset


def _row(parent: Prediction, prompt: Prompt, ids: list[int]) -> dict:
    return {
        "task_id": parent.task_id,
        "parent": parent.id,
        "turn": parent.turn + 1,
        "messages": list(prompt.messages),
        "prefix": prompt.prefix,
        "prompt_ids": ids,
        "n_prompt_tokens": len(ids),
        "hflip": parent.hflip,
        "n_rot90": parent.n_rot90,
        "color_map": parent.color_map,
        "pair_order": parent.pair_order,
        "test_index": parent.test_index,
    }


def write_refinement(dataset: RefinementDataset, path: Path) -> Path:
    """Write the rows as Parquet, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with new_file(path, same_is_fine=True) as file:
        pq.write_table(pa.Table.from_pylist(dataset.rows), file, compression="zstd")
    return path


def show_conversation(row: Mapping) -> str:
    """The conversation as text, one message after the other under its role."""
    return "\n".join(f"--- {message['role']}\n{message['content']}" for message in row["messages"])
