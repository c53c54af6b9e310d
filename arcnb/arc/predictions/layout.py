"""How the columns of predictions stand in a Parquet part: nothing that follows from other columns, twice.

completion   `completion_start`, then the program, then `completion_end`; the whole text in `completion_start`
             and a null in `completion_end` where the program does not occur in it.
outputs      a text, see tables. Equal texts are equal outputs.
fingerprint  not at all: it follows from the outputs. Where a record has a different one,
             `other_fingerprint` holds it (an empty text for None).

Everything else stands there under its own name. Whole completions would make parts 1.4 times as large, and
packed ones 1.30 and 1.37 times (128 predictions of each of 160 tasks, made by bench/aggregate_table.py of 40
and of 128 programs a task); 1,064 predictions of the demo model, a fifth without a program, 1.11 times.
Fingerprints would cost 1.06 to 1.08 times.

    frame = pandas.read_parquet(folder)
    frame["outputs"].map(outputs_from_text)  # grids again; PredictionSet.read does it by itself
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from arcnb.arc.predictions.prediction import output_fingerprint
from arcnb.arc.predictions.tables import PREDICTION_SCHEMA, outputs_from_text

_STANDS_IN = {
    "completion": ("completion_start", "program", "completion_end"),
    "fingerprint": ("outputs", "other_fingerprint"),
}
_MISSING = pa.scalar(None, pa.string())
_RENAMED = {"completion": "completion_start", "fingerprint": "other_fingerprint"}

PART_SCHEMA = pa.schema([
    *(field.with_name(_RENAMED.get(field.name, field.name)) for field in PREDICTION_SCHEMA),
    pa.field("completion_end", pa.string()),
])  # fmt: skip


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
    columns = {name: made[name] if name in made else table[name] for name in PART_SCHEMA.names}
    return pa.table(columns, PART_SCHEMA)


def part_columns(columns: Iterable[str]) -> list[str]:
    """The columns of a part in which these columns of the records stand."""
    return list(dict.fromkeys(name for column in columns for name in _STANDS_IN.get(column, (column,))))


def from_part(part: pa.Table, columns: Sequence[str]) -> pa.Table:
    """These columns of the records, from a table with the `part_columns` of them."""
    return pa.table({name: _column(part, name) for name in columns})


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
