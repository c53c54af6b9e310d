"""The explorer: what it filters, what it shows, with a kernel and without."""

import base64
import gzip
import json
import re
from dataclasses import replace

import pytest

from arcnb.arc.grids import as_grid
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Pair, Task
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.lab.explorer import static
from arcnb.lab.explorer.entries import TaskFilter, entries
from arcnb.lab.explorer.live import Explorer
from arcnb.lab.pages.fragments import external_references, without_external
from arcnb.programs.executor.executor import Executor
from arcnb.programs.judging import judge

FLIP = "def transform(grid):\n    return grid[:, ::-1]"


def task(name: str, grid: list[list[int]]) -> Task:
    grid = as_grid(grid)
    return Task(name, (Pair(grid, as_grid(grid[:, ::-1])),), (Pair(grid, as_grid(grid[:, ::-1])),))


@pytest.fixture
def tasks():
    return TaskSet("three", (task("a1", [[1, 2]]), task("b2", [[3, 4, 5]] * 4), task("b3", [[0] * 9])))


@pytest.fixture
def predictions(tasks, tmp_path):
    def row(index, of, right, **changes):
        scores = {"train_is_correct": right, "test_is_correct": right, "train_correct_grids": float(right)}
        program = f"# {index} </script> <img src='https://example.org/x'>\n{FLIP}"
        fields = {
            "status": "ok",
            "program": program,
            "outputs": [as_grid([[right]])] * 2,
            "fingerprint": f"{right}",
        }
        return Prediction(of.task_id, of.fingerprint, 0, index, completion="c", **(fields | scores | changes))

    broken = {"status": "error", "outputs": None, "fingerprint": None, "error_message": "no"}
    made = PredictionSet(tmp_path / "set")
    rows = [row(0, tasks[0], 0), row(1, tasks[0], 1), row(2, tasks[0], 0), row(3, tasks[1], 0, **broken)]
    made.write_part(rows, 0)
    return made


def test_entries_know_what_they_are_filtered_by(tasks, predictions):
    found = entries(tasks, {"s": predictions})
    assert [(e.side, set(e.colors), e.rate) for e in found] == [
        (2, {1, 2}, pytest.approx(1 / 3)), (4, {3, 4, 5}, 0.0), (9, {0}, None)
    ]  # fmt: skip
    assert [row.index for _, row in found[0].predictions] == [1, 0], "best first, equal outputs once"
    assert [row.index for _, row in found[1].predictions] == [3], "what failed is there to look at, too"


def test_a_rate_is_unknown_where_the_test_outputs_are(tasks, tmp_path):
    unjudged = PredictionSet(tmp_path / "unjudged")
    hidden = tasks[0].fingerprints[1]
    unjudged.write_part([Prediction("a1", hidden, 0, 0, status="ok", train_is_correct=1)], 0)
    (first, *_) = entries(tasks, {"s": unjudged})
    assert first.rate is None
    assert len(first.predictions) == 1


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (TaskFilter(), "a1 b2 b3"),
        (TaskFilter(text=" B"), "b2 b3"),
        (TaskFilter(sides=(3, 8)), "b2"),
        (TaskFilter(colors=frozenset({3, 5})), "b2"),
        (TaskFilter(colors=frozenset({1, 3})), ""),
        (TaskFilter(rates=(0.01, 1.0)), "a1"),
        (TaskFilter(rates=(0.0, 0.0)), "b2"),
        (TaskFilter(predicted=True), "a1 b2"),
    ],
)
def test_filters(tasks, predictions, wanted, ids):
    assert [e.task.task_id for e in entries(tasks, {"s": predictions}) if wanted(e)] == ids.split()


def unpacked(fragment):
    return json.loads(gzip.decompress(base64.b64decode(re.search(r'"data": "([^"]+)"', fragment)[1])))


def test_without_a_kernel_everything_is_in_the_page(tasks, predictions, monkeypatch):
    monkeypatch.setenv("ARCNB_RUN_DIR", "/somewhere")
    bundle = Explorer(tasks, predictions)._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    page = bundle["text/html"]
    assert without_external(page) == page
    assert external_references(page) == []
    assert page.count("</script>") == 1, "no program ends the script"
    first = unpacked(page)[0]
    assert first["pairs"] == [["12", "21"], ["12", "21"]]
    assert first["predictions"][0]["program"].endswith(FLIP)
    assert first["predictions"][0]["outputs"] == ["1", "1"]
    assert "needs a script" in page
    assert "<svg" in page


def test_what_is_too_large_is_left_out_and_said(tasks, monkeypatch):
    monkeypatch.setattr(static, "MAX_BYTES", 150)
    page = static.explorer_html(entries(tasks), "many </script><!--<script>")
    assert 0 < len(unpacked(page)) < 3
    assert f"{3 - len(unpacked(page))} more are left out" in page
    assert page.count("</script>") == 1
    assert "<!--" not in page, "behind which a script ends at the second end alone"


def test_predictions_of_other_tasks_are_not_passed_over_in_silence(tasks, tmp_path):
    other = PredictionSet(tmp_path / "other")
    other.write_part([Prediction("zz", "f", 0, 0, completion="c")], 0)
    assert "3 tasks, and no predictions of them" in Explorer(tasks, other)._repr_mimebundle_()["text/html"]
    assert "no predictions" not in Explorer(tasks).title


def test_predictions_of_another_version_of_a_task_are_left_out_and_said(tasks, predictions):
    """ARC-AGI-2 has tasks of ARC-AGI-1 by the same ids, with their pairs in another order."""
    turned = TaskSet("turned", (replace(tasks[0], train=tasks[1].train), *tasks[1:]))
    first, second, _ = entries(turned, {"s": predictions})
    assert (first.rate, first.predictions, first.changed) == (None, (), True)
    assert (second.rate, len(second.predictions), second.changed) == (0.0, 1, False)
    left_out = "turned: 3 tasks; predictions of another version of 1 of them are left out"
    assert left_out in Explorer(turned, predictions)._repr_mimebundle_()["text/html"]
    assert "turned: 1 task, and no predictions of them; " in Explorer(turned[:1], predictions).title


def test_with_a_kernel_it_is_alive_and_runs_an_edited_program(tasks, predictions):
    explorer = Explorer(tasks, predictions)
    assert "application/vnd.jupyter.widget-view+json" in explorer._repr_mimebundle_()
    panel = explorer.panel
    assert panel.count.value == "2 of 3 tasks", "it opens on tasks with predictions"
    assert panel.program.value.endswith(FLIP)
    panel.turn("next-prediction")
    assert panel.prediction.value == 1
    panel.predicted.value = False
    assert panel.count.value == "3 of 3 tasks"
    panel.colors[3].value = True
    assert panel.count.value == "1 of 3 tasks"
    assert "task" not in panel.result.value
    panel.program.value = FLIP
    panel.go.click()
    assert "100% of train grids right, 100% of test grids right" in panel.result.value
    assert panel.result.value.count("<svg") == 6
    panel.program.value = "def transform(grid):\n    return missing"
    panel.go.click()
    assert "NameError" in panel.result.value
    panel.text.value = "zzz"
    assert panel.view.value == "No task fits."
    panel.go.click()


def test_what_a_tried_program_prints_is_shown_and_stays_in_the_sandbox(tasks, predictions):
    explorer = Explorer(tasks, predictions)
    explorer.widget()
    panel = explorer.panel
    panel.program.value = "def transform(grid):\n    print('<shape>', grid.shape)\n    return grid.no_such"
    panel.go.click()
    assert "AttributeError" in panel.result.value
    assert panel.result.value.count("&lt;shape&gt; (1, 2)") == 2, "once an input"
    lazy = (
        "from __future__ import annotations\nprint('top')\ndef transform(grid: Grid):\n    return print('in')"
    )
    panel.program.value = lazy
    panel.go.click()
    assert panel.result.value.count("top\nin\n") == 2
    panel.program.value = "def transform(grid):\n    return grid"
    panel.go.click()
    assert "It prints" not in panel.result.value


def test_a_task_without_predictions_starts_from_a_first_program(tasks):
    explorer = Explorer(tasks)
    explorer.widget()
    assert explorer.panel.program.value.startswith("def transform(grid)")
    assert explorer.panel.view.value.count("<svg") == 4


def test_the_program_of_a_turned_prediction_runs_on_the_turned_grids(tasks, tmp_path):
    """It was written for columns; the task has rows."""
    turned = "import numpy as np\ndef transform(grid):\n    return np.flipud(grid)"
    one, made = tasks[0], PredictionSet(tmp_path / "turned")
    asked = Prediction(one.task_id, one.fingerprint, 0, 0, completion=f"```python\n{turned}\n```", n_rot90=1)
    with Executor(1) as executor:
        (row,) = judge([asked], {one.task_id: one}, executor)
    assert row.solved
    made.write_part([row], 0)
    explorer = Explorer(tasks, made)
    explorer.widget()
    explorer.panel.go.click()
    said = explorer.panel.result.value
    assert "your program on the grids as its prompt showed them" in said
    assert "100% of train grids right, 100% of test grids right" in said
