"""A search on a disk that knows no file locks."""

import errno
import json

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.search.learning.journal import StepJournal
from arcnb.search.learning.submission_file import SubmissionFile


@pytest.fixture
def no_locks(monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)


def test_a_shard_is_worked_on_and_the_missing_locks_are_said(tmp_path, no_locks, capsys):
    with StepJournal(tmp_path / "journal.jsonl").alone(60) as _:
        pass
    assert "has no file locks: see to it that no other process works in it" in capsys.readouterr().out


def test_a_submission_is_written(tmp_path, no_locks):
    tasks = load_tasks("arc-agi-1/training").subset(["007bbfb7"])
    file = SubmissionFile(tmp_path / "submission.json", tasks, PredictionSet(tmp_path / "predictions"))
    assert list(json.loads(file.path.read_text())) == ["007bbfb7"]
