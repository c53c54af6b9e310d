"""Conversations to look at: the task as the prompt showed it, what the program made of it, every message."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.tasks.task import Task
from arcnb.search.comparing.showcase import verdict


def show_conversation(row: Mapping) -> str:
    """The conversation as text, one message after the other under its role, ending as the answer begins."""
    turns = [f"--- {message['role']}\n{message['content']}" for message in row["messages"]]
    return "\n".join([*turns, f"--- assistant begins\n{row['prefix']}"])


@dataclass(frozen=True)
class ConversationView:
    """Draws itself in a notebook: for each row the train grids in the prompt's frame, then the messages."""

    tasks: Mapping[str, Task]
    rows: Sequence[Mapping]
    parents: Sequence[Prediction]

    def _repr_html_(self) -> str:
        shown = zip(self.rows, self.parents, strict=True)
        return "".join(self._card(row, parent) for row, parent in shown) or "<p>No conversation.</p>"

    def __repr__(self) -> str:
        return "\n\n".join(show_conversation(row) for row in self.rows) or "No conversation."

    def _card(self, row: Mapping, parent: Prediction) -> str:
        from arcnb.arc.pictures.figures import prediction_html

        view = parent.view
        shown = view.apply(self.tasks[parent.task_id])
        outputs = None
        if parent.outputs is not None:
            outputs = [view.augmentation.apply(parent.outputs[i]) for i in view.pair_order]
        pictures = prediction_html(replace(shown, test=()), outputs)
        head = f"{verdict_of(parent)} · turn {row['turn']} · {row['n_prompt_tokens']:,} prompt tokens"
        messages = "".join(
            f"<details{' open' if number == len(row['messages']) - 1 else ''}>"
            f"<summary>{html.escape(message['role'])}</summary>"
            f"<pre>{html.escape(message['content'])}</pre></details>"
            for number, message in enumerate(row["messages"])
        )
        return f"<h4>{html.escape(head)}</h4>{pictures}{messages}"


def verdict_of(prediction: Prediction) -> str:
    """One line on a prediction, also on one whose program failed."""
    if prediction.status == "ok":
        return verdict(prediction)
    line = f" in line {prediction.error_line}" if prediction.error_line else ""
    return f"{prediction.id} · {prediction.error_type or prediction.status}{line}"
