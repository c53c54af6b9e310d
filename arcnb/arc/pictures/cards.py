"""What a prediction and a prediction set show at the end of a notebook cell."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from arcnb.arc.pictures.figures import framed
from arcnb.errors import number_of

if TYPE_CHECKING:
    import pandas as pd

_MOST = 4000  # characters of a completion that are shown
_TASKS = 12  # tasks that a set lists

SET_COLUMNS = ("task_id", "status", "train_is_correct", "test_is_correct", "train_correct_grids")


def prediction_card(head: str, pictures: str, program: str, completion: str | None) -> str:
    """Head, grids and, folded, program and completion; without a completion the program is not folded."""
    if completion is None:
        text = f"<pre>{escape(_shortened(program))}</pre>"
    else:
        text = _folded("program", program) + _folded("completion", completion)
    return f"<h4>{escape(head)}</h4>{pictures}{text}"


def _folded(name: str, text: str) -> str:
    if not text.strip():
        return ""
    return f"<details><summary>{name}</summary><pre>{escape(_shortened(text))}</pre></details>"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]}\n... {len(text) - _MOST} more characters"


def prediction_set_card(name: str, frame: pd.DataFrame) -> str:
    """How many predictions of how many tasks, how they ended, and the tasks that come closest.

    frame: the SET_COLUMNS of the predictions, and `solved`, which says of each whether it solves its task.
    """
    import pandas as pd

    head = f"{escape(name)}: {len(frame):,} predictions"
    if frame.empty:
        return framed(head, "")
    frame = frame.assign(right=frame["train_correct_grids"].astype(float))
    by_task = frame.groupby("task_id").agg(
        n=("solved", "size"), solved=("solved", "mean"), right=("right", "max")
    )
    by_task = by_task.sort_values(["solved", "right"], ascending=False, kind="stable")
    statuses = frame["status"].fillna("not judged").value_counts()
    facts = " · ".join([
        f"{number_of(len(by_task), 'task')}, {int((by_task['solved'] > 0).sum())} solved",
        *(f"{escape(str(name))} {count:,}" for name, count in statuses.items()),
    ])  # fmt: skip
    titles = ["task", "predictions", "solve", "best: train grids right"]
    shares = dict(zip(titles[2:], ("{:.1%}".format, "{:.0%}".format), strict=True))
    with pd.option_context("display.max_colwidth", None):
        shown = by_task[:_TASKS].reset_index().set_axis(titles, axis=1)
        table = shown.to_html(index=False, border=0, na_rep="", formatters=shares)
    left = len(by_task) - _TASKS
    rest = f'<div class="arcnb-note">and {left} more tasks</div>' if left > 0 else ""
    return framed(head, f'<div><div class="arcnb-note">{facts}</div>{table}{rest}</div>')
