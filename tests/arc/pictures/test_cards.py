"""Predictions and prediction sets show themselves."""

import re

import numpy as np

from arcnb.arc.grids import as_grid
from arcnb.arc.pictures.figures import grid_svg
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Pair, Task


def task(color: int = 1) -> Task:
    return Task(
        "cards<1>", (Pair(as_grid([[color]]), as_grid([[2]])),), (Pair(as_grid([[3]]), as_grid([[4]])),)
    )


def prediction(of: Task, **changes) -> Prediction:
    judged = {
        "completion": "Here:\n```python\ndef transform(grid): return grid\n```",
        "program": "def transform(grid): return grid  # <b>",
        "status": "ok",
        "outputs": [as_grid([[2]]), as_grid([[5]])],
        "train_correct_grids": 1.0,
        "train_is_correct": 1,
        "test_correct_grids": 0.0,
        "test_is_correct": 0,
    }
    return Prediction(of.task_id, of.fingerprint, 0, 7, **(judged | changes))


def test_a_prediction_stands_beside_its_task():
    html = prediction(task()).card(task())
    assert "cards&lt;1&gt;/0/7/0 · 100% of train grids right, 0% of test grids right" in html
    assert re.findall(r'class="arcnb-cap">([^<]*)<', html)[-1] == "difference"
    assert "grid  # &lt;b&gt;" in html
    assert html.count("<summary>") == 2


def test_a_prediction_alone_shows_its_outputs():
    html = prediction(task())._repr_html_()
    assert html.count("<svg") == 2
    assert "produced" in html


def test_a_small_card_shows_wrong_pairs_first_and_the_program_under_a_head():
    html = prediction(task()).small_card(task(), head="best & first")
    assert "<h4>best &amp; first</h4>" in html
    assert "<summary>" not in html
    assert "<pre>def transform" in html
    assert html.index("test 0: &#10007; 1 of 1 cells differ") < html.index("train 0: &#10003; right")


def test_a_picture_says_its_numbers_to_who_does_not_see_it():
    html = prediction(task()).small_card(task(), head="h")
    assert 'aria-label="grid 1x1: 3"' in html
    assert 'aria-label="difference 1x1: 1 of 1 cells"' in html
    assert 'aria-label="grid 11x10 with the values 0 7"' in grid_svg(np.array([[0] * 10] * 10 + [[7] * 10]))


def test_what_went_wrong_is_said():
    broken = prediction(
        task(), status="error", error_type="NameError", error_message="x\nis not", error_line=3, outputs=None,
        train_correct_grids=0.0, program=None,
    )  # fmt: skip
    html = broken._repr_html_()
    assert "error: NameError: x is not (line 3)" in html
    assert "no outputs" in html
    assert "not judged yet" in Prediction("a", "", 0, 0)._repr_html_()


def test_a_prediction_set_says_what_it_holds(tmp_path):
    predictions = PredictionSet(tmp_path / "set")
    assert "0 predictions" in predictions._repr_html_()
    of = task()
    rows = [prediction(of), prediction(of, test_is_correct=1, test_correct_grids=1.0)]
    rows[1].index = 8
    predictions.write_part([*rows, Prediction("other", "", 0, 0, status="no_code")], 0)
    html = re.sub(r">\s+<", "><", predictions._repr_html_())
    assert "3 predictions" in html
    assert "2 tasks, 1 solved · ok 2 · no_code 1" in html
    assert "<td>cards&lt;1&gt;</td><td>2</td><td>50.0%</td><td>100%</td>" in html
    assert "<td>other</td><td>1</td><td>0.0%</td><td></td>" in html


def test_a_few_predictions_of_many_are_found_by_their_keys(tmp_path):
    predictions = PredictionSet(tmp_path / "set")
    rows = [Prediction(f"t{i % 70}", "", 0, i, completion=str(i)) for i in range(140)]
    predictions.write_part(rows, 0)
    found = predictions.get([rows[3].key, rows[139].key, ("t0", 9, 9, 9), ("nothing", 0, 0, 0)])
    assert found == {rows[3].key: rows[3], rows[139].key: rows[139]}
    assert predictions.get([]) == {}
