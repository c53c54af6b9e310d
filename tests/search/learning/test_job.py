"""A search as a job: several processes, submissions that are valid whenever they are read."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.submission import validate_submission
from arcnb.arc.tasks.task_set import load_tasks, write_tasks
from arcnb.errors import ArcnbError
from arcnb.search.learning import job
from arcnb.search.learning.job import (
    arm_predictions,
    keep_tasks,
    last_moment,
    run_shards,
    start_process,
    task_file,
    usable_backend,
)
from arcnb.search.learning.plan import SearchPlan
from arcnb.search.learning.submission_file import SubmissionFile
from tests.arc.golden_grids import cases
from tests.lab.watching import process_exists, wait_for
from tests.paths import ROOT
from tests.search.learning_engine import padded, small_tasks


@pytest.fixture
def searching(tmp_path, small_model):
    """searching(arms="learn", ...) is a settled plan of a small search, its tasks where they belong."""

    def make(**changes) -> SearchPlan:
        asked = {
            "output": str(tmp_path / "out"), "model": small_model.path, "backend": "transformers",
            "submission": True, "submission_file": str(tmp_path / "submission.json"), "workers": 1,
            "n_predictions": 4, "first_round": 2, "per_round": 2, "per_prompt": 2, "lora_r": 2,
            "max_completion_length": 4, "num_processes": 1,
        }  # fmt: skip
        plan = SearchPlan.of(asked | changes).settled(tmp_path)
        write_tasks(small_tasks(), task_file(plan))
        return plan

    return make


@pytest.mark.long("processes share a notebook's tasks")
def test_the_notebook_shares_the_tasks_between_processes_and_keeps_one_submission(tmp_path, small_model):
    write_tasks(small_tasks(), tmp_path / "tasks.parquet")
    settings = {
        "tasks": tmp_path / "tasks.parquet", "n_tasks": 0, "model": small_model.path, "adapter": "",
        "backend": "transformers", "num_processes": 2, "submission": "true", "n_predictions": 4,
        "first_round": 2, "per_round": 2, "per_prompt": 2, "max_completion_length": 4, "lora_r": 2,
        "workers": 1, "n_pictures": 1,
    }  # fmt: skip
    command = [sys.executable, "-m", "arcnb.lab.cli", "run", "07", "--quiet", "--name", "n"]
    command += [str(part) for name, value in settings.items() for part in ("-p", name, value)]
    environment = os.environ | {"ARCNB_RUNS": str(tmp_path / "runs")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    (run,) = (tmp_path / "runs").glob("*-n")
    reports = json.loads((run / "manifest.json").read_text())["outcome"]["reports"]
    assert set(reports) == {"alone 0", "alone 1", "learn 0", "learn 1"}
    for arm in ("alone", "learn"):
        assert sum(report["tasks"] for name, report in reports.items() if arm in name) == 3
        frame = PredictionSet(run / "search" / arm / "predictions").read(columns=["task_id"])
        assert dict(frame.groupby("task_id").size()) == dict.fromkeys(small_tasks().ids, 4)
    validate_submission(json.loads((run / "submission.json").read_bytes()), small_tasks())
    said = [line for report in reports.values() for line in report["failures"]]
    assert all("nothing to learn from" in line for line in said)
    assert len(said) == 3  # a random model writes no programs, and every task has an adapter of its own


def test_named_tasks_are_taken_of_all():
    tasks = small_tasks()
    first, *_, last = tasks.ids
    plan = SearchPlan.of({"n_tasks": 2})
    assert (plan.n_built, plan.named(tasks)) == (2, tasks)
    plan = SearchPlan.of({"task_ids": f"{last}, {first}"})
    assert (plan.n_built, plan.named(tasks).ids) == (0, tasks.subset([last, first]).ids)


def test_a_plan_survives_its_file(searching):
    plan = searching(target_modules=["q_proj", "o_proj"], arms="learn", budget_seconds=1)
    assert SearchPlan.of(json.loads(json.dumps(plan.values()))) == plan


def test_no_more_processes_start_than_there_are_tasks_but_a_search_keeps_its_shards(searching, monkeypatch):
    started = []
    monkeypatch.setattr("arcnb.search.learning.job.visible_gpus", lambda: range(8))
    monkeypatch.setattr(
        "arcnb.search.learning.job._in_processes",
        lambda plan, count, end: started.append(count) or {},
    )
    plan = searching(num_processes=0)
    journal = arm_predictions(plan, "learn").folder.with_name("steps-shard00-of-08.jsonl")
    for _ in range(2):
        with pytest.raises(ArcnbError, match="made nothing"):
            run_shards(plan)
        journal.parent.mkdir(exist_ok=True)
        journal.touch()
    assert started == [len(small_tasks()), 8]


def test_a_process_that_fails_is_quoted(tmp_path, searching):
    with pytest.raises(ArcnbError, match=r"2 of 2 processes failed.*max_length is 9999, but"):
        run_shards(searching(max_length=9999, arms="alone", workers=5, num_processes=2))
    given = SearchPlan.of(json.loads((tmp_path / "out" / "plan.json").read_text()))
    assert given.programs.workers == 2, "the processes share the workers"
    validate_submission(json.loads((tmp_path / "submission.json").read_bytes()), small_tasks())


def test_a_process_that_was_killed_is_not_quoted_but_said_to_be(searching, monkeypatch):
    killed = [sys.executable, "-c", "import os; print('all is well', flush=True); os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(job, "start_process", lambda command, log: start_process(killed, log))
    with pytest.raises(ArcnbError, match=r"2 of 2 processes failed; the first was killed by SIGKILL.*0\.log"):
        run_shards(searching(num_processes=2))


def test_a_search_that_could_make_nothing_says_why(tmp_path, searching):
    with pytest.raises(
        ArcnbError, match=r"'alone' made nothing: prompts of up to \d+ tokens and answers of 2,047"
    ):
        run_shards(searching(max_completion_length=2047))
    with pytest.raises(ArcnbError, match="its time, 0 s, was up before the first completion"):
        run_shards(searching(output=str(tmp_path / "late"), time_budget_hours=1e-7))
    validate_submission(json.loads((tmp_path / "submission.json").read_bytes()), small_tasks())


def test_a_search_goes_on_with_the_tasks_that_it_was_begun_with(searching):
    plan, tasks = searching(), small_tasks()
    path = task_file(plan)
    pq.write_table(pq.read_table(path), path, compression="none")  # other bytes, as of another Arrow
    keep_tasks(plan, tasks)
    for others in (tasks.subset(tasks.ids[:2]), tasks.subset(tasks.ids[::-1])):
        with pytest.raises(ArcnbError, match=r"out was begun with the tasks fill4, odd1, odd2; use a new"):
            keep_tasks(plan, others)


@pytest.mark.parametrize(("hours", "spent"), [(0.03, 0.0), (0.03, 20.0), (11.5, 300.0)])
def test_a_search_ends_before_its_time_is_up(hours, spent):
    left = last_moment(hours, spent) - time.monotonic()
    assert 0 < left < 3600 * hours - spent - 25
    assert last_moment(0.0, spent) == float("inf")


def test_layers_that_the_model_lacks_are_named_before_anything_is_sampled(searching):
    plan = searching(target_modules=["q_proj", "nowhere_proj"])
    with pytest.raises(ArcnbError, match=r"has no layer 'nowhere_proj'; there are .*k_proj, .*q_proj"):
        run_shards(plan)
    assert not len(arm_predictions(plan, "alone"))
    assert set(run_shards(searching(target_modules=["self_attn.q_proj"]))) == {"alone", "learn"}


# A process of a search that has work for a minute, and the notebook that starts it. sys.argv[1] is a folder.
WORK = """
import signal, sys, time
from pathlib import Path
from arcnb.search.learning import job
job.GRACE = 1
signal.signal(signal.SIGINT, job.interrupted)
said = False
while True:
    try:
        if not said:
            said = True
            print("at work", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        if sys.argv[1] == "obeys":
            break
"""
NOTEBOOK = """
import sys
from pathlib import Path
from arcnb.search.learning.job import start_process
print(start_process([sys.executable, "-c", *sys.argv[2:]], Path(sys.argv[1])).pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("temper", ["obeys", "swallows"])
def test_the_processes_of_a_notebook_that_is_killed_are_interrupted_and_end(tmp_path, temper):
    log = tmp_path / "log"
    command = [sys.executable, "-c", NOTEBOOK, str(log), WORK, temper]
    notebook = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = int(notebook.stdout.readline())
    wait_for(lambda: "at work" in log.read_text())
    notebook.kill()
    notebook.wait()
    wait_for(lambda: not process_exists(pid))
    assert "interrupted" in log.read_text()


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
from tests.search.learning.test_job import *
folder = Path(sys.argv[1])
file = SubmissionFile(folder / "submission.json", small_tasks(), PredictionSet(folder / "p"))
while True:
    file.refresh(small_tasks().ids)
"""


def test_killed_at_any_moment_the_submission_is_whole(tmp_path):
    tasks, path, moments = small_tasks(), tmp_path / "submission.json", random.Random(1)
    PredictionSet(tmp_path / "p").write_part(rows_of(tasks, 3), 0)
    SubmissionFile(path, tasks, PredictionSet(tmp_path / "p"))
    first = path.read_bytes()
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    wait_for(lambda: path.read_bytes() != first)
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
    assert padded(file) == 3
    predictions.write_part(rows_of(tasks, 2), 0)
    file.refresh(["fill4"])
    assert padded(SubmissionFile(path, tasks, predictions)) == 2
    other = load_tasks("arc-agi-1/training")[:2]
    with pytest.raises(ArcnbError):
        validate_submission(json.loads(path.read_bytes()), other)


@pytest.mark.parametrize("case", cases("arc25_learning.json", "task_batches"), ids=lambda case: case["id"])
def test_tasks_learn_together_in_the_groups_of_the_reference(case):
    plan = SearchPlan.of({"group_size": case["args"]["group_size"]})
    assert plan.groups(case["args"]["task_ids"]) == case["expect"]["value"]
