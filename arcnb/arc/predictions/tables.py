"""Predictions as Arrow tables and data frames, and the way to and from records.

In a record and in a frame `outputs` is a list of grids. In a table it is a text: grids parted by spaces, each
its width, a colon and its cells row by row, `-` for none, as in `2:1234 - 1:5`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arcnb.arc.grids import MAX_SIDE, Grid, as_grid
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

RANKING = [
    "train_is_correct",
    "test_is_correct",
    "train_correct_grids",
    "test_correct_grids",
    "train_pixel_score",
]

_COLOUR = bytes(range(10)).rjust(48 + 10, b"\xff").ljust(256, b"\xff")  # b"0" becomes 0
_DIGIT = b"0123456789".ljust(256, b"x")
_OUTPUTS = re.compile(r"(?:(?:-|[0-9]{1,2}:[0-9]{1,900})(?: (?!$)|$))*")


def records(table: pa.Table) -> Iterator[Prediction]:
    """The predictions of a table with all fields, one by one."""
    for batch in table.to_batches(max_chunksize=1024):
        columns = {name: batch[name].to_pylist() for name in FIELD_NAMES if name != "outputs"}
        columns["outputs"] = _outputs_from_arrow(batch["outputs"])
        for values in zip(*(columns[name] for name in FIELD_NAMES), strict=True):
            yield Prediction(*values)


def to_frame(table: pa.Table) -> pd.DataFrame:
    """The table as a frame; `outputs` becomes lists of grids."""
    if "outputs" not in table.column_names:
        return table.to_pandas()
    frame = table.drop_columns("outputs").to_pandas()
    frame.insert(table.column_names.index("outputs"), "outputs", _outputs_from_arrow(table["outputs"]))
    return frame


def prediction_ids(frame: pd.DataFrame) -> pd.Series:
    """`Prediction.id` of each row of a frame with KEY_COLUMNS: texts, by the frame's index."""
    ids = frame[KEY_COLUMNS[0]].astype(str)
    for name in KEY_COLUMNS[1:]:
        ids = ids + "/" + frame[name].astype(str)
    return ids


def solving(frame: pd.DataFrame) -> pd.Series:
    """Whether each prediction of a frame is right on train and test; one of unknown scores is not. Scores
    count by it; `right_where_known` is the looser sense."""
    return frame[["train_is_correct", "test_is_correct"]].astype(float).eq(1).all(axis=1)


def right_where_known(frame: pd.DataFrame) -> pd.Series:
    """`Prediction.solved` of each row of a frame: right on every grid whose expected output is known, which
    test outputs need not be. Training goes by it."""
    return (frame["train_is_correct"] == 1) & (frame["test_is_correct"].fillna(1) == 1)


def best_first(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a frame with the columns RANKING by how close they came, equal ones in their order; unknown
    scores count as 0."""
    return frame.sort_values(
        RANKING, ascending=False, kind="stable", key=lambda scores: scores.astype(float).fillna(0.0)
    )


def other_versions(frame: pd.DataFrame, fingerprints: Mapping[str, str]) -> list[str]:
    """Ids of the tasks, sorted, of which rows (task_id, task_fingerprint) answer another version than this.

    fingerprints: by task id; tasks that are not in it do not count.
    """
    rows = frame[["task_id", "task_fingerprint"]].drop_duplicates().itertuples(index=False)
    return sorted({id_ for id_, version in rows if fingerprints.get(id_, version) != version})


def to_table(predictions: list[Prediction]) -> pa.Table:
    """The records as a table of PREDICTION_SCHEMA. ArcnbError names one that does not fit it."""
    columns = {field.name: _column(field, predictions) for field in PREDICTION_SCHEMA}
    return pa.table(columns, schema=PREDICTION_SCHEMA)


def _column(field: pa.Field, predictions: list[Prediction]) -> pa.Array:
    def made(chosen: list[Prediction]) -> pa.Array:
        values = [getattr(prediction, field.name) for prediction in chosen]
        return pa.array([*map(outputs_text, values)] if field.name == "outputs" else values, field.type)

    try:
        return made(predictions)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        for prediction in predictions:
            try:
                made([prediction])
            except ArcnbError as error:
                raise ArcnbError(f"prediction {prediction.id}: {error}") from None
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                value = getattr(prediction, field.name)
                message = f"prediction {prediction.id}: {field.name} is {value!r}, not {field.type}"
                raise ArcnbError(message) from None
        raise


def _outputs_from_arrow(column: pa.Array | pa.ChunkedArray) -> list[list[Grid | None] | None]:
    """Equal outputs share their grids, which nobody can write to, but not the list."""
    grids = {text: outputs_from_text(text) for text in pc.unique(column).to_pylist()}
    return [None if text is None else list(grids[text]) for text in column.to_pylist()]


def outputs_text(outputs: Sequence[Grid | None] | None) -> str | None:
    """Outputs as they stand in a part. ArcnbError says which of them is no grid."""
    if outputs is None:
        return None
    return " ".join(
        "-" if output is None else _grid_text(output, f"output {i}") for i, output in enumerate(outputs)
    )


def outputs_from_text(text: str | None) -> list[Grid | None] | None:
    """The grids, read-only, in a text of the column `outputs`; ArcnbError when it is none."""
    if text is None:
        return None
    if not _OUTPUTS.fullmatch(text):
        raise ArcnbError(f"outputs: {text[:60]!r} is no text of grids")
    return [None if grid == "-" else _grid(grid) for grid in text.split(" ")] if text else []


def _grid_text(output: Grid, where: str) -> str:
    array = output if isinstance(output, np.ndarray) and output.dtype == np.uint8 else np.empty(0)
    fits = array.ndim == 2 and min(array.shape) >= 1 and max(array.shape) <= MAX_SIDE
    cells = array.tobytes().translate(_DIGIT) if fits else b"x"
    if b"x" in cells:  # as_grid says what is wrong, or makes a grid of it
        array = as_grid(output, where)
        cells = array.tobytes().translate(_DIGIT)
    return f"{array.shape[1]}:{cells.decode('ascii')}"


def _grid(text: str) -> Grid:
    width, cells = text.split(":")
    height, rest = divmod(len(cells), int(width) or 1)
    if rest or not 1 <= int(width) <= MAX_SIDE or height > MAX_SIDE:
        raise ArcnbError(f"outputs: {len(cells)} cells are no grid of width {width}")
    return np.frombuffer(cells.encode("ascii").translate(_COLOUR), np.uint8).reshape(height, int(width))
