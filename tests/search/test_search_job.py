"""A search as a job: several processes, submissions that are valid whenever they are read.

Run: pytest tests/search/test_search_job.py
"""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from arcnb.arc.predictions import Prediction, PredictionSet
from arcnb.arc.submission import SubmissionError, validate_submission
from arcnb.arc.tasksets import load_tasks, write_tasks
from arcnb.models.generation import EngineOptions, Sampling
from arcnb.search.budgets import Budget
from arcnb.search.learner import LoraSettings
from arcnb.search.learning_plan import SearchPlan
from arcnb.search.rounds import PlanError
from arcnb.search.search_job import SearchJob, read_job, run_shards, usable_backend
from arcnb.search.submission_file import SubmissionFile
from tests.search.learning_engine import small_tasks

ROOT = Path(__file__).parents[2]


@pytest.fixture
def job(tmp_path, small_model) -> SearchJob:
    write_tasks(small_tasks(), tmp_path / "tasks.parquet")
    return SearchJob(
        str(tmp_path / "tasks.parquet"), str(tmp_path / "out"), small_model.path, "", "transformers",
        arms=("alone", "learn"), submission=str(tmp_path / "submission.json"), workers=1,
        plan=SearchPlan(Budget(4), 2, 2, 2), lora=LoraSettings(rank=2), sampling=Sampling(max_tokens=4),
        engine=EngineOptions(max_model_len=2048),
    )  # fmt: skip


def test_several_processes_share_the_tasks_and_one_submission(tmp_path, job):
    outcomes = run_shards(job, 2)
    assert set(outcomes) == {"alone 0", "alone 1", "learn 0", "learn 1"}
    for arm in job.arms:
        frame = job.predictions(arm).read(columns=["task_id"])
        assert dict(frame.groupby("task_id").size()) == dict.fromkeys(small_tasks().ids, 4)
    validate_submission(json.loads((tmp_path / "submission.json").read_bytes()), small_tasks())
    assert sum(outcome["tasks"] for name, outcome in outcomes.items() if name.startswith("learn")) == 3
    assert any("nothing to learn from" in line for name in outcomes for line in outcomes[name]["failures"])


def test_a_job_survives_its_file(tmp_path, job):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(asdict(job)))
    assert read_job(path) == job


def test_a_process_that_fails_is_quoted(tmp_path, job):
    with pytest.raises(PlanError, match=r"2 of 2 processes failed.*no backend|unknown backend"):
        run_shards(replace(job, backend="abacus"), 2)
    validate_submission(json.loads((tmp_path / "submission.json").read_bytes()), small_tasks())


def test_bad_jobs_are_refused(job):
    with pytest.raises(PlanError, match="arms"):
        replace(job, arms=("learn", "guess"))
    with pytest.raises(PlanError, match="time budget"):
        replace(job, seconds=-1)


def test_a_named_backend_is_taken_as_it_is():
    assert usable_backend("vllm") == "vllm"


def rows_of(tasks, n):
    grids = [pair.input for task in tasks for pair in task.test]
    return [
        Prediction(
            task.task_id, task.fingerprint, 0, i, program=f"# {i}", status="ok", train_correct_grids=i / n,
            outputs=[grids[0]] * (len(task.train) + len(task.test)),
        )
        for task in tasks for i in range(n)
    ]  # fmt: skip


# Rewrites the submission of sys.argv[1] as fast as it can.
WRITER = """
import sys
from pathlib import Path
from tests.search.test_search_job import *
folder = Path(sys.argv[1])
file = SubmissionFile(folder / "submission.json", small_tasks(), PredictionSet(folder / "p"))
while True:
    file.refresh(small_tasks().ids)
"""


def test_killed_at_any_moment_the_submission_is_whole(tmp_path):
    tasks, path, moments = small_tasks(), tmp_path / "submission.json", random.Random(1)
    PredictionSet(tmp_path / "p").write_part(rows_of(tasks, 3), 0)
    SubmissionFile(path, tasks, PredictionSet(tmp_path / "p"))
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    first = path.read_bytes()
    end = time.monotonic() + 60
    while path.read_bytes() == first and time.monotonic() < end:
        time.sleep(0.01)
    for _ in range(300):
        validate_submission(json.loads(path.read_bytes()), tasks)
    for writer in writers:
        time.sleep(moments.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    submission = json.loads(path.read_bytes())
    validate_submission(submission, tasks)
    assert submission["fill4"][0]["attempt_1"] != [[0]]


def test_a_damaged_submission_is_begun_anew_and_a_good_one_kept(tmp_path):
    tasks, path = small_tasks(), tmp_path / "submission.json"
    predictions = PredictionSet(tmp_path / "p")
    path.write_text('{"fill4": [')
    file = SubmissionFile(path, tasks, predictions)
    assert file.padded() == 3
    predictions.write_part(rows_of(tasks, 2), 0)
    file.refresh(["fill4"])
    assert SubmissionFile(path, tasks, predictions).padded() == 2
    other = load_tasks("arc-agi-1/training")[:2]
    with pytest.raises(SubmissionError):
        validate_submission(json.loads(path.read_bytes()), other)
