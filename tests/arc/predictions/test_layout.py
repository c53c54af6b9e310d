"""How predictions stand in a Parquet part: small, exact, and readable without this package."""

import random

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from arcnb.arc.grids import as_grid
from arcnb.arc.predictions.prediction import Prediction, output_fingerprint
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.tables import outputs_from_text, outputs_text
from arcnb.errors import ArcnbError

A, B = as_grid([[1, 2], [3, 4]]), as_grid([[5]])


def lists(outputs):
    return outputs and [None if grid is None else grid.tolist() for grid in outputs]


def written(folder, **fields) -> tuple[Prediction, dict]:
    """A record with these fields as it comes back, and the row that stands in the file."""
    predictions = PredictionSet(folder)
    part = predictions.write_part([Prediction("t", "f", 0, 0, **fields)], round=0)
    (back,) = predictions.iter_predictions()
    return back, pq.read_table(part).to_pylist()[0]


@pytest.mark.parametrize(
    ("completion", "program", "start", "end"),
    [
        ("Look:\n```python\nx = 1\n```", "x = 1", "Look:\n```python\n", "\n```"),
        ("x = 1", "x = 1", "", ""),
        ("x = 1 or x = 1 ", "x = 1", "", " or x = 1 "),
        ("    x = 1\n    y = 2", "x = 1\ny = 2", "    x = 1\n    y = 2", None),  # taken out of an indentation
        (" = 1\n```", "x = 1", " = 1\n```", None),  # begins in the prefix
        ("nothing", None, "nothing", None),
        ("nothing", "", "nothing", None),
        ("", None, "", None),
        ("", "x = 1", "", None),
        ("half a charac\ufffd\0x = 1", "x = 1", "half a charac\ufffd\0", ""),
    ],
)
def test_a_completion_is_what_stands_around_its_program(completion, program, start, end, tmp_path):
    back, row = written(tmp_path, completion=completion, program=program)
    assert (back.completion, back.program) == (completion, program)
    assert (row["completion_start"], row["program"], row["completion_end"]) == (start, program, end)
    assert "completion" not in row, "the program would stand there twice"


def test_any_completion_comes_back_whatever_its_program(tmp_path):
    draw = random.Random(0)
    pieces = ["x", "xx", "\n", "```", "\0", "é", "\ufffd", "", " ", "\U0001f600"]
    records = []
    for i in range(500):
        completion = "".join(draw.choices(pieces, k=draw.randrange(9)))
        begin, end = draw.randrange(9), draw.randrange(9)
        program = draw.choice(
            [None, "", completion, completion[begin:end], "".join(draw.choices(pieces, k=3))]
        )
        records.append(Prediction("t", "f", 0, i, completion=completion, program=program))
    predictions = PredictionSet(tmp_path)
    predictions.write_part(records, round=0)
    assert list(predictions.iter_predictions()) == records
    assert predictions.read(["completion"])["completion"].tolist() == [one.completion for one in records]
    frame = pd.read_parquet(tmp_path)  # the line of the README
    whole = (frame.completion_start + frame.program + frame.completion_end).fillna(frame.completion_start)
    assert whole.tolist() == [one.completion for one in records]


def test_outputs_are_texts_of_width_and_cells(tmp_path):
    assert outputs_text([A, None, B]) == "2:1234 - 1:5"
    draw = np.random.default_rng(0)
    sides = [(1, 1), (1, 30), (30, 1), (30, 30), (3, 10), (10, 3)]
    grids = [as_grid(draw.integers(0, 10, side)) for side in sides]
    rows = [None, [], [None], [A, None, B], grids, [None, *grids, None]]
    assert [lists(outputs_from_text(outputs_text(row))) for row in rows] == [lists(row) for row in rows]
    predictions = PredictionSet(tmp_path)
    predictions.write_part([Prediction("t", "f", 0, i, outputs=row) for i, row in enumerate(rows)], round=0)
    assert [lists(one.outputs) for one in predictions.iter_predictions()] == [lists(row) for row in rows]
    column = pd.read_parquet(tmp_path)["outputs"].map(outputs_from_text, na_action="ignore")  # of the README
    assert pd.isna(column[0])
    assert [lists(grids) for grids in column[1:]] == [lists(row) for row in rows[1:]]


@pytest.mark.parametrize(
    "text",
    [" ", "2:1234 ", " 2:1234", "2:123", "0:1", "2:", "31:" + "0" * 31, "1:" + "0" * 31, "2:12a4", "1234",
     "2:1234  -", "2:12\u0663\u0663", "x", "2:1234\n"],
)  # fmt: skip
def test_a_text_that_is_no_outputs_is_refused(text):
    with pytest.raises(ArcnbError, match="outputs: "):
        outputs_from_text(text)


def test_rows_of_equal_outputs_have_lists_of_their_own(tmp_path):
    predictions = PredictionSet(tmp_path)
    predictions.write_part([Prediction("t", "f", 0, i, outputs=[A]) for i in range(2)], round=0)
    one, two = predictions.iter_predictions()
    one.outputs.append(B)
    assert lists(two.outputs) == lists([A])
    with pytest.raises(ValueError, match="read-only"):
        two.outputs[0][0, 0] = 9


@pytest.mark.parametrize(
    ("outputs", "fingerprint", "stands"),
    [
        ([A, B], output_fingerprint([A, B]), None),
        ([A, B], "b" * 16, "b" * 16),
        ([A, B], None, ""),
        ([A, None], None, None),
        ([A, None], "c", "c"),
        (None, None, None),
        (None, "d" * 64, "d" * 64),  # coding problems have no grids
    ],
)
def test_a_fingerprint_is_stored_only_where_it_does_not_follow(outputs, fingerprint, stands, tmp_path):
    back, row = written(tmp_path, outputs=outputs, fingerprint=fingerprint)
    assert (back.fingerprint, row["other_fingerprint"]) == (fingerprint, stands)
    frame = PredictionSet(tmp_path).read(["fingerprint"])
    assert frame["fingerprint"].astype(object).where(frame["fingerprint"].notna(), None).tolist() == [
        fingerprint
    ]
