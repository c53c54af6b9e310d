"""Prediction sets on disk: a folder of Parquet parts, each written whole and never again.

A part is named `round00003-shard00-of-02-part00000.parquet`. A killed writer leaves at most a hidden
temporary file, which no reader looks at and the next writer removes. When two parts hold the same (task_id,
round, index, turn), as after two processes did the same shard, readers keep the row of the part whose name
sorts first.

A stage writes many small parts, so that little is lost when it is killed. `pack` puts a shard's parts into
one, task by task: equal outputs and similar programs then stand together and take a fraction of the space.
How the columns stand in a part is told in layout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from arcnb.arc.pictures.cards import SET_COLUMNS, prediction_set_card
from arcnb.arc.predictions.layout import PART_SCHEMA, from_part, part_columns, to_part
from arcnb.arc.predictions.prediction import FIELD_NAMES, KEY_COLUMNS, Prediction, PredictionKey
from arcnb.arc.predictions.tables import PREDICTION_SCHEMA, records, solving, to_frame, to_table
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.machine.files import is_temporary, new_file, remove_abandoned
from arcnb.machine.reading import NO_PERMISSION, named_errors

if TYPE_CHECKING:
    import pandas as pd

_PART_NAME = re.compile(r"round(\d{5})-shard(\d{2,})-of-(\d{2,})-pa(?:rt|ck)(\d{5})\.parquet")
SLICE = 50  # tasks whose predictions are in memory at the same time
_PACKED_ROWS = 65536  # of a row group, at least: what packing holds in memory

# How parts are compressed. Dictionaries pay for texts that repeat; whole columns as one page let zstd see
# what the programs of a part have in common.
_WRITING = {
    "compression": "zstd",
    "compression_level": 9,
    "data_page_size": 1 << 26,
    "dictionary_pagesize_limit": 1 << 26,
    "write_statistics": list(KEY_COLUMNS),  # statistics of a text column are two whole texts
    "store_schema": False,
    "use_dictionary": [
        "task_id", "task_fingerprint", "parent", "model", "adapter", "completion_prefix", "finish_reason",
        "extraction", "status", "error_type", "error_message", "completion_start", "completion_end",
        "program", "outputs", "other_fingerprint", "seconds", "cpu_seconds", "n_tokens",
        "color_map.list.element",
    ],
}  # fmt: skip

# Once, at the end, when nobody waits for the next part: many times slower, for another fifth.
_PACKING = _WRITING | {"compression_level": 19}


def slices(tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
    """The tasks, as many at a time as may have their predictions in memory together."""
    return (tasks[start : start + SLICE] for start in range(0, len(tasks), SLICE))


def check_set(folder: str | Path) -> None:
    """ArcnbError for what is no folder, of a set that is to be read."""
    path = Path(folder)
    if path.is_file():
        raise ArcnbError(f"prediction set {path} is a file; name the folder that it is in")
    if not path.is_dir():
        raise ArcnbError(f"prediction set {path} does not exist")


class PredictionSet:
    """The predictions in `folder`, which need not exist before the first part is written."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"<PredictionSet {self.folder}: {len(self.parts())} parts>"

    def _repr_html_(self) -> str:
        frame = self.read(SET_COLUMNS)
        return prediction_set_card(str(self.folder), frame.assign(solved=solving(frame)))

    def __len__(self) -> int:
        return self._table(KEY_COLUMNS).num_rows

    def parts(self) -> list[Path]:
        """The complete parts, sorted by name. A Parquet file with another name is refused."""
        with named_errors(self.folder):  # which glob would take for an empty folder
            if not self.folder.is_dir():
                return []
            parts = sorted(p for p in self.folder.iterdir() if p.suffix == ".parquet" and not is_temporary(p))
        for part in parts:
            if not _PART_NAME.fullmatch(part.name):
                raise ArcnbError(f"{part}: not named like a part of a prediction set")
        return parts

    def write_part(
        self, rows: Iterable[Prediction], round: int, shard: int = 0, n_shards: int = 1
    ) -> Path | None:
        """Write predictions as one new part, complete on disk when this returns; its path, None for no rows.

        Raises `ArcnbError`, in one sentence, when a record does not fit the schema or the file
        cannot be written (a full disk, say); parts written before stay as they are.
        """
        if not 0 <= shard < n_shards:
            raise ArcnbError(f"shard {shard} is not one of the {n_shards} shards 0..{n_shards - 1}")
        table = to_table(list(rows))
        if not table.num_rows:
            return None
        remove_abandoned(self.folder)
        stem = f"round{round:05d}-shard{shard:02d}-of-{n_shards:02d}"
        while True:  # another process may take a number between looking and writing
            path = self._new_path(f"{stem}-part")
            try:
                with new_file(path) as file:
                    pq.write_table(to_part(table), file, **_WRITING)
                return path
            except FileExistsError:
                continue

    def pack(self, shard: int = 0, n_shards: int = 1) -> Path | None:
        """Put the parts of a finished shard into one, which then takes their place; None if there is no more
        than one.

        Nothing may be writing to that shard; other shards may. The packed part is complete on disk before the
        first of the others goes, and readers drop rows that they see twice, so a pack that was killed does no
        harm. Raises `ArcnbError` when it cannot be written; the parts then stay.
        """
        remove_abandoned(self.folder)
        mine = [part for part in self.parts() if f"-shard{shard:02d}-of-{n_shards:02d}-" in part.name]
        if len(mine) < 2:
            return None
        path = self._new_path(f"round{0:05d}-shard{shard:02d}-of-{n_shards:02d}-pack")
        ids = pc.unique(pa.concat_tables([_read_part(part, ["task_id"], None) for part in mine])["task_id"])
        ids, rows = sorted(ids.to_pylist()), sum(pq.read_metadata(part).num_rows for part in mine)
        slice_ = max(1, len(ids) * _PACKED_ROWS // rows)
        try:
            with new_file(path) as file, pq.ParquetWriter(file, PART_SCHEMA, **_PACKING) as writer:
                for start in range(0, len(ids), slice_):
                    chosen = pa.array(ids[start : start + slice_], pa.string())
                    table = pa.concat_tables([_read_part(part, FIELD_NAMES, chosen) for part in mine])
                    writer.write_table(to_part(table.take(_first_of_each_key(table))), row_group_size=1 << 20)
        except FileExistsError as error:
            raise ArcnbError(str(error)) from error
        for part in mine:
            part.unlink()
        return path

    def read(
        self, columns: Sequence[str] | None = None, task_ids: Iterable[str] | None = None
    ) -> pd.DataFrame:
        """The rows as a data frame, duplicates dropped, in the order of (task_id, round, index, turn).

        columns: names to read (default all); task_ids: only these tasks. `outputs` holds lists of grids.
        Unknown numbers are NaN and unknown texts are missing values: ask with `.isna()`.
        """
        for name in columns or ():
            if name not in FIELD_NAMES:
                raise ArcnbError(f"no column {name!r} in a prediction; there are {', '.join(FIELD_NAMES)}")
        return to_frame(self._table(FIELD_NAMES if columns is None else columns, task_ids))

    def iter_predictions(self, task_ids: Iterable[str] | None = None) -> Iterator[Prediction]:
        """The records one by one, in the order of `read`, which does not depend on how the parts were cut.

        All chosen rows are held in memory until the last is read; take `task_ids` in slices where that is
        too much.
        """
        yield from records(self._table(FIELD_NAMES, task_ids))

    def get(self, keys: Iterable[PredictionKey]) -> dict[PredictionKey, Prediction]:
        """The predictions with these keys, as far as there are any: few of many, read in one pass."""
        wanted = set(keys)

        def keep(table: pa.Table) -> pa.Table:
            rows = [row for row, key in enumerate(_keys(table)) if key in wanted]
            return table.take(pa.array(rows, pa.int64()))

        return {one.key: one for one in records(self._table(FIELD_NAMES, {key[0] for key in wanted}, keep))}

    def _new_path(self, stem: str) -> Path:
        taken = [int(path.stem[-5:]) for path in self.folder.glob(f"{stem}*.parquet")]
        return self.folder / f"{stem}{1 + max(taken, default=-1):05d}.parquet"

    def _table(
        self,
        columns: Sequence[str],
        task_ids: Iterable[str] | None = None,
        keep: Callable[[pa.Table], pa.Table] = lambda table: table,
    ) -> pa.Table:
        """Columns of the rows of some tasks or all, as far as `keep` keeps them, sorted by their keys."""
        wanted = [name for name in FIELD_NAMES if name in {*columns, *KEY_COLUMNS}]
        chosen = None if task_ids is None else pa.array(sorted(set(task_ids)), pa.string())
        while True:
            parts = self.parts()
            try:
                tables = [keep(_read_part(part, wanted, chosen)) for part in parts]
                break
            except ArcnbError:
                if all(part.exists() for part in parts):
                    raise
                # another process has just packed these parts into one: look again
        table = pa.concat_tables([_schema(wanted).empty_table(), *tables])
        return table.take(_first_of_each_key(table)).select(list(columns))


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([PREDICTION_SCHEMA.field(name) for name in columns])


def _keys(table: pa.Table) -> Iterator[PredictionKey]:
    return zip(*(table[name].to_pylist() for name in KEY_COLUMNS), strict=True)


def _read_part(part: Path, columns: Sequence[str], task_ids: pa.Array | None) -> pa.Table:
    schema, wanted = _schema(columns), part_columns(columns)
    try:
        with pa.OSFile(str(part)) as file:
            opened = pq.ParquetFile(file)
            groups = [_read_group(opened, i, wanted, task_ids) for i in range(opened.num_row_groups)]
        tables = [from_part(group, columns).cast(schema) for group in groups]
        return pa.concat_tables(tables or [schema.empty_table()])
    except PermissionError:  # says nothing of the content
        raise ArcnbError(f"{part}: {NO_PERMISSION}") from None
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ArcnbError(f"{part}: damaged or not a prediction part ({reason})") from None


def _read_group(
    file: pq.ParquetFile, number: int, columns: Sequence[str], task_ids: pa.Array | None
) -> pa.Table:
    """Rows of a row group, of some tasks or of all. In a packed part most groups hold none of some tasks."""
    if task_ids is None:
        return file.read_row_group(number, columns=columns).select(columns)
    of_task = pc.is_in(file.read_row_group(number, columns=["task_id"])["task_id"], value_set=task_ids)
    if not pc.any(of_task).as_py():
        return file.schema_arrow.empty_table().select(columns)
    return file.read_row_group(number, columns=columns).select(columns).filter(of_task)


def _first_of_each_key(table: pa.Table) -> pa.Array:
    """Row numbers sorted by key, of the first row of each key (rows come in order of part names)."""
    row = pa.array(range(table.num_rows), pa.int64())
    keys = table.select(list(KEY_COLUMNS)).append_column("row", row)
    first = keys.group_by(list(KEY_COLUMNS)).aggregate([("row", "min")])
    return first.sort_by([(name, "ascending") for name in KEY_COLUMNS])["row_min"]
