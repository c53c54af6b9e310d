"""A submission that is valid from the first second on, and better with every round.

    file = SubmissionFile(Path("submission.json"), tasks, predictions)   # every attempt [[0]] so far
    file.refresh(ids)                                                    # attempts of these tasks made anew

The file is written whole under another name and then renamed, so whoever reads it, at whatever moment, finds
every task and both attempts. Several processes with a shard each keep one file between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.submission import (
    SUBMISSION_COLUMNS,
    Submission,
    create_submission,
    validate_submission,
    write_submission,
)
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.errors import ArcnbError
from arcnb.machine.locks import locked
from arcnb.machine.reading import read_object


class SubmissionFile:
    """The submission of all `tasks`, whichever of them this process works on."""

    def __init__(self, path: Path, tasks: TaskSet, predictions: PredictionSet, rule: str = "train-score"):
        self.path, self.tasks, self.predictions, self.rule = path, tasks, predictions, rule
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if not self._is_valid():
                self._write(
                    create_submission(predictions.read(columns=SUBMISSION_COLUMNS, task_ids=[]), tasks, rule)
                )

    def refresh(self, task_ids: Iterable[str]) -> None:
        """Choose the attempts of these tasks again, from all that the prediction set holds by now."""
        some = self.tasks.subset(list(task_ids))
        frame = self.predictions.read(columns=SUBMISSION_COLUMNS, task_ids=some.ids)
        part = create_submission(frame, some, self.rule)
        with self._locked():
            self._write(read_object(self.path) | part)

    def _is_valid(self) -> bool:
        try:
            validate_submission(read_object(self.path), self.tasks)
        except ArcnbError:
            return False
        return True

    def _write(self, submission: Submission | dict) -> None:
        ordered = {task_id: submission[task_id] for task_id in self.tasks.ids}
        validate_submission(ordered, self.tasks)
        write_submission(ordered, self.path)

    def _locked(self) -> AbstractContextManager[bool]:
        """Only one process at a time reads and replaces the file."""
        return locked(self.path.with_name(f".{self.path.name}.lock"))
