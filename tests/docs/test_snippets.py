"""Python in the pages runs as it stands there, and prints what stands below it."""

import contextlib
import importlib.util
import io
import re

import pytest

from arcnb.arc import PredictionSet, load_tasks
from arcnb.arc.predictions.prediction import Prediction
from arcnb.programs import Executor
from arcnb.programs.judging import judge
from tests.paths import ROOT

DOCS = ROOT / "docs"


def blocks(page):
    """(code, what is printed or None) of each Python block of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, flags=re.DOTALL)


def printed(code, names):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "page", "exec"), names)
    return out.getvalue()


@pytest.mark.parametrize("page", ["tutorials/one_task.md", "tutorials/your_model.md"])
def test_tutorials_print_what_they_say(page):
    names = {}
    for code, expected in blocks(page):
        assert printed(code, names) == expected


@pytest.fixture
def predictions(tmp_path):
    """A set of three judged predictions of two tasks: right, wrong, no program."""
    tasks = load_tasks("arc-agi-1/training").subset(["3c9b0459", "6150a2bd"])
    head = "def transform(grid): return "
    texts = {"3c9b0459": (head + "grid[::-1, ::-1]", head + "grid"), "6150a2bd": ("I do not know.",)}
    asked = [
        Prediction(one, tasks[one].fingerprint, 0, index, completion=text)
        for one, found in texts.items()
        for index, text in enumerate(found)
    ]  # fmt: skip
    made = PredictionSet(tmp_path / "predictions")
    with Executor(workers=1) as executor:
        made.write_part(list(judge(asked, tasks, executor)), round=0)
    return str(made.folder)


def test_predictions_are_read_as_the_page_says(predictions):
    names = {"predictions": predictions}
    first, *others = [code for code, _ in blocks("how-to/read_predictions.md")]
    assert printed(first, names).startswith("3 predictions, 1 of 2 tasks solved\ndef transform(grid)")
    for code in others:
        if "duckdb" not in code or importlib.util.find_spec("duckdb"):
            assert printed(code, names) or "outputs_from_text" in code
    read = PredictionSet(predictions).read()
    assert list(names["completion"]) == list(read.completion)
    assert names["rows"].num_rows == 3
