"""How the columns of predictions stand in a Parquet part: nothing that follows from other columns, twice.

completion   `completion_start`, then the program, then `completion_end`; the whole text in `completion_start`
             and a null in `completion_end` where the program does not occur in it.
outputs      a text: grids parted by spaces, each its width, a colon and its cells row by row, `-` for none:
             `2:1234 - 1:5`. Equal texts are equal outputs.
fingerprint  not at all: it is that of the outputs. Where a record says another one, `other_fingerprint` has
             it (an empty text for None).

Everything else stands there under its own name. Whole completions would make parts 1.4 times as large, and
packed ones 1.30 and 1.37 times (128 predictions of each of 160 tasks, made by bench/aggregate_table.py of 40
and of 128 programs a task); 1,064 predictions of the demo model, a fifth without a program, 1.11 times.
Fingerprints would cost 1.06 to 1.08 times.

    frame = pandas.read_parquet(folder)
    frame["outputs"].map(outputs_from_text)  # grids again; PredictionSet.read does it by itself
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arcnb.arc.grids import MAX_SIDE, Grid, as_grid
from arcnb.arc.predictions.prediction import output_fingerprint
from arcnb.errors import ArcnbError

_COLOUR = bytes(range(10)).rjust(48 + 10, b"\xff").ljust(256, b"\xff")  # b"0" becomes 0
_DIGIT = b"0123456789".ljust(256, b"x")
_OUTPUTS = re.compile(r"(?:(?:-|[0-9]{1,2}:[0-9]{1,900})(?: (?!$)|$))*")
_STANDS_IN = {
    "completion": ("completion_start", "program", "completion_end"),
    "fingerprint": ("outputs", "other_fingerprint"),
}
_MISSING = pa.scalar(None, pa.string())


def part_schema(records: pa.Schema) -> pa.Schema:
    """The columns of a part that holds records of this schema."""
    fields = []
    for field in records:
        if field.name == "completion":
            fields.append(field.with_name("completion_start"))
            fields.append(pa.field("completion_end", field.type))
        else:
            fields.append(field.with_name("other_fingerprint") if field.name == "fingerprint" else field)
    return pa.schema(fields)


def to_part(table: pa.Table) -> pa.Table:
    """The table of records as it is written."""
    starts, ends = [], []
    for completion, program in zip(*(table[c].to_pylist() for c in ("completion", "program")), strict=True):
        start, found, end = completion.partition(program) if program else (completion, "", "")
        starts.append(start)
        ends.append(end if found else None)
    said = pc.fill_null(table["fingerprint"], "")
    follows = pc.equal(said, pc.fill_null(_fingerprints(table["outputs"]), ""))
    made = {"completion_start": starts, "completion_end": ends}
    made["other_fingerprint"] = pc.if_else(follows, _MISSING, said)
    schema = part_schema(table.schema)
    return pa.table({name: made[name] if name in made else table[name] for name in schema.names}, schema)


def part_columns(columns: Iterable[str]) -> list[str]:
    """The columns of a part in which these columns of the records stand."""
    return list(dict.fromkeys(name for column in columns for name in _STANDS_IN.get(column, (column,))))


def from_part(part: pa.Table, columns: Sequence[str]) -> pa.Table:
    """These columns of the records, from a table with the `part_columns` of them."""
    return pa.table({name: _column(part, name) for name in columns})


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


def _column(part: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    if name == "completion":
        with_program = pc.binary_join_element_wise(*(part[column] for column in _STANDS_IN[name]), "")
        return pc.coalesce(with_program, part["completion_start"])
    if name == "fingerprint":
        other = part["other_fingerprint"]
        said = pc.if_else(pc.equal(other, ""), _MISSING, other)
        return pc.if_else(pc.is_null(other), _fingerprints(part["outputs"]), said)
    return part[name]


def _fingerprints(outputs: pa.ChunkedArray) -> pa.Array:
    """The fingerprint of each text of outputs, null where a grid is missing; each different text once."""
    texts = outputs.combine_chunks().dictionary_encode()
    made = []
    for text in texts.dictionary.to_pylist():
        grids = outputs_from_text(text)
        made.append(None if any(grid is None for grid in grids) else output_fingerprint(grids))
    return pa.array(made, pa.string()).take(texts.indices)
