"""Predictions as Arrow tables and data frames, and the way to and from records.

In a table `outputs` is a text (see layout); in a record and in a frame it is a list of grids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arcnb.arc.grids import Grid
from arcnb.arc.predictions.layout import outputs_from_text, outputs_text
from arcnb.arc.predictions.prediction import FIELD_NAMES, KEY_COLUMNS, Prediction
from arcnb.errors import ArcnbError

if TYPE_CHECKING:
    import pandas as pd

_TYPES = {
    "round": pa.int32(), "index": pa.int32(), "turn": pa.int32(), "seed": pa.int64(),
    "hflip": pa.bool_(), "n_rot90": pa.int8(), "color_map": pa.list_(pa.int8()),
    "pair_order": pa.list_(pa.int16()), "test_index": pa.int16(),
    "n_prompt_tokens": pa.int32(), "n_tokens": pa.int32(), "logprob": pa.float64(),
    "error_line": pa.int32(),
    "train_pixel_score": pa.float64(), "train_correct_grids": pa.float64(), "train_is_correct": pa.int8(),
    "test_pixel_score": pa.float64(), "test_correct_grids": pa.float64(), "test_is_correct": pa.int8(),
    "seconds": pa.float64(), "cpu_seconds": pa.float64(),
}  # fmt: skip
_REQUIRED = {
    *KEY_COLUMNS, "task_fingerprint", "seed", "hflip", "n_rot90", "test_index", "model", "completion",
    "completion_prefix",
}  # fmt: skip

PREDICTION_SCHEMA = pa.schema(
    [pa.field(name, _TYPES.get(name, pa.string()), nullable=name not in _REQUIRED) for name in FIELD_NAMES]
)


def records(table: pa.Table) -> Iterator[Prediction]:
    """The predictions of a table with all fields, one by one."""
    for batch in table.to_batches(max_chunksize=1024):
        columns = {name: batch[name].to_pylist() for name in FIELD_NAMES if name != "outputs"}
        columns["outputs"] = _outputs_from_arrow(batch["outputs"])
        for values in zip(*(columns[name] for name in FIELD_NAMES), strict=True):
            yield Prediction(*values)


def predictions_frame(predictions: Iterable[Prediction]) -> pd.DataFrame:
    """Predictions in memory as the data frame that `PredictionSet.read` would give, in the given order."""
    return to_frame(to_table(list(predictions)))


def to_frame(table: pa.Table) -> pd.DataFrame:
    """The table as a frame; `outputs` becomes lists of grids."""
    if "outputs" not in table.column_names:
        return table.to_pandas()
    frame = table.drop_columns("outputs").to_pandas()
    frame.insert(table.column_names.index("outputs"), "outputs", _outputs_from_arrow(table["outputs"]))
    return frame


def to_table(predictions: list[Prediction]) -> pa.Table:
    """The records as a table of PREDICTION_SCHEMA. ArcnbError names one that does not fit it."""
    columns = {}
    for field in PREDICTION_SCHEMA:
        if field.name == "outputs":
            columns[field.name] = _outputs_to_arrow(predictions)
        else:
            columns[field.name] = _column(field, predictions)
    return pa.table(columns, schema=PREDICTION_SCHEMA)


def _column(field: pa.Field, predictions: list[Prediction]) -> pa.Array:
    values = [getattr(prediction, field.name) for prediction in predictions]
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        for prediction, value in zip(predictions, values, strict=True):
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                message = f"prediction {prediction.id}: {field.name} is {value!r}, not {field.type}"
                raise ArcnbError(message) from None
        raise


def _outputs_to_arrow(predictions: list[Prediction]) -> pa.Array:
    texts = []
    for prediction in predictions:
        try:  # what is written has to be readable: reading refuses what is no grid
            texts.append(outputs_text(prediction.outputs))
        except ArcnbError as error:
            raise ArcnbError(f"prediction {prediction.id}: {error}") from None
    return pa.array(texts, pa.string())


def _outputs_from_arrow(column: pa.Array | pa.ChunkedArray) -> list[list[Grid | None] | None]:
    """Equal outputs share their grids, which nobody can write to, but not the list."""
    grids = {text: outputs_from_text(text) for text in pc.unique(column).to_pylist()}
    return [None if text is None else list(grids[text]) for text in column.to_pylist()]
