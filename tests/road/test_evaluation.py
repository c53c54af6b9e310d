"""Notebook 06 on a small set, part of it without test outputs."""

import json
from dataclasses import replace

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.submission import validate_submission
from arcnb.arc.tasks.task import Pair
from arcnb.arc.tasks.task_set import TaskSet, write_tasks
from tests.arc_tasks import short_tasks
from tests.in_process import carried_out
from tests.search.comparing.test_evaluation import judged, right


def test_an_evaluation_scores_the_outputs_that_are_known_and_names_the_others(tmp_path):
    *known, last = short_tasks()
    tasks = [*known, replace(last, test=tuple(Pair(pair.input) for pair in last.test))]
    write_tasks(tasks, tmp_path / "tasks.parquet")
    for name, n_solved in (("before", 1), ("after", 2)):
        outputs = [right(task) if number < n_solved else task.inputs for number, task in enumerate(known)]
        rows = [judged(task, 0, shown) for task, shown in zip(known, outputs, strict=True)]
        ran = judged(tasks[-1], 0, right(last))
        rows.append(ran if name == "after" else replace(ran, status="error", outputs=None, fingerprint=None))
        PredictionSet(tmp_path / name / "predictions").write_part(rows, 0)
    sets = f"{tmp_path}/before/predictions, {tmp_path}/after/predictions"

    asked = {"predictions": sets, "tasks": tmp_path / "tasks.parquet", "submission_set": "after"}
    run = carried_out(tmp_path / "runs", "06", **asked)
    came = run.outcome
    assert list(came)[:5] == ["headline", "solved", "of", "pass@1", "submission"]
    assert (came["solved"], came["of"], came["submission"]) == (2, 3, pytest.approx(2 / 3))
    assert [(row["set"], row["solved"], row["of"]) for row in came["sets"]] == [
        ("before", 1, 3),
        ("after", 2, 3),
    ]
    assert f"Not scored, as test outputs are unknown: 1 of 4 tasks, {last.task_id}" in run.text
    assert came["headline"].endswith("1 more is unknown and not scored.")


@pytest.mark.filterwarnings("error::FutureWarning")  # of a picture without a value
def test_where_no_test_output_is_known_all_but_the_comparisons_is_made(tmp_path):
    tasks = [replace(task, test=tuple(Pair(pair.input) for pair in task.test)) for task in short_tasks()]
    write_tasks(tasks, tmp_path / "tasks.parquet")
    for name in ("before", "after"):
        rows = [judged(task, index, task.inputs) for task in tasks for index in range(2)]
        PredictionSet(tmp_path / name / "predictions").write_part(rows, 0)
    before, after = (tmp_path / name / "predictions" for name in ("before", "after"))

    arms = {"compare": f"sampled = {before}; other = {after}", "first": 1, "budget": 2}
    asked = {"predictions": f"{before}, {after}", "tasks": tmp_path / "tasks.parquet", **arms}
    run = carried_out(tmp_path / "runs", "06", **asked, trained=tmp_path / "tasks.parquet")
    assert (
        "before -> after: not compared, as there is no task whose test outputs are known to both" in run.text
    )
    assert "Not compared, as no task's test outputs are known to both: sampled and other." in run.text
    assert "The sets have no task in common whose test outputs are known." in run.text
    submission = json.loads((run.path / "submission.json").read_text())
    validate_submission(submission, TaskSet("tasks", tuple(tasks)))
    assert run.outcome["fair_comparison"] == []
    assert "solved" not in run.outcome
