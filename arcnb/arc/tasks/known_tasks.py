"""Tasks that this process has at hand, so that a prediction can show itself beside the task it answers.

Nothing is kept alive by this: a task that nobody holds any more is forgotten.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arcnb.arc.tasks.task import Task

_by_id: weakref.WeakValueDictionary[str, Task] = weakref.WeakValueDictionary()


def remember(tasks: Iterable[Task]) -> None:
    """Make tasks findable by id; of two with one id the last."""
    for task in tasks:
        _by_id[task.task_id] = task


def find(task_id: str, fingerprint: str) -> Task | None:
    """The task of that id, if it is at hand and has the very grids that the fingerprint was taken of."""
    task = _by_id.get(task_id)
    return task if task is not None and task.fingerprint == fingerprint else None
