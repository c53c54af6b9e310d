"""The tutorial from a file of tasks to a submission, with a random model."""

import json
import os
import re
import subprocess
import sys

import pytest

from arcnb.arc import load_tasks, validate_submission
from tests.in_process import carried_out
from tests.paths import ROOT

PAGE = ROOT / "docs/tutorials/your_tasks.md"


@pytest.fixture
def tasks(tmp_path):
    """The tutorial's file of tasks."""
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "tasks.json").write_text(re.search(r"```json\n(.*?)```", text, flags=re.DOTALL)[1])
    return tmp_path / "tasks.json"


def test_the_file_of_tasks_is_prepared(tasks, tmp_path):
    made = carried_out(tmp_path / "runs", "01", tasks=tasks)
    assert load_tasks(made.path / "tasks.parquet").ids == load_tasks(str(tasks)).ids == ["mirror"]


@pytest.mark.repetition  # tests/docs/test_commands.py reads the commands, and tests/road goes their road
@pytest.mark.long("three notebooks")
def test_a_file_of_tasks_becomes_a_submission(tasks, tmp_path, small_model):
    small = f"-p model {small_model.folder} -p backend transformers -p n_predictions 2 "
    small += "-p max_length 1024 -p max_completion_length 8"
    environment = os.environ | {"ARCNB_RUNS": str(tmp_path / "runs"), "PYTHONPATH": str(ROOT)}
    steps = re.findall(
        r"^    (arcnb run 0[136] .*?)(?:\s+#.*)?$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert len(steps) == 3
    for step in steps:
        command = step.replace("arcnb", f"{sys.executable} -m arcnb.lab.cli", 1).replace(
            "runs/*", "$ARCNB_RUNS/*"
        )
        if " 03 " in step:
            command = command.replace("-p n_predictions 64 -p per_prompt 8", small)
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
    (answers,) = (tmp_path / "runs").glob("*-answers")
    submission = json.loads((answers / "submission.json").read_text())
    validate_submission(submission, load_tasks(str(tasks)))
    assert len(submission["mirror"]) == 1
