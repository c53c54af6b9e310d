"""Files that others wrote: JSON, JSON lines and Parquet, plain or gzip, told apart by their content.

    for place, row in read_rows("mine.json"): ...    # ("mine.json, line 3", {...})
    content = read_object("submission.json")         # one JSON document

Whatever is wrong with a file is an `ArcnbError`, one sentence that names file, row and field.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from arcnb.errors import ArcnbError

NO_PERMISSION = "cannot be read: permission denied"
MAX_DEPTH = 60  # levels of a JSON value: what reads, copies or writes it by recursion must not break off

_NAME = re.compile(r"\.(jsonl?|parquet)(\.gz)?$")
_BLANK = b" \t\r\n\xef\xbb\xbf"  # and a byte order mark
_BATCH = 256  # rows of Parquet in memory at a time
_HALF_ESCAPED, _HALF = re.compile(rb"\\u[dD][89a-fA-F]"), re.compile("[\ud800-\udfff]")
_LEVEL = np.zeros(256, np.int8)
_LEVEL[list(b"[{")], _LEVEL[list(b"]}")] = 1, -1


def read_rows(path: str | Path, strict: bool = True) -> Iterator[tuple[str, Mapping | ArcnbError]]:
    """(place, row) of every row: the elements of a JSON document that is a list, else the document itself.

    A row is an object. What is none, and a line that is no JSON, is raised where `strict`; else it arrives as
    the `ArcnbError` about it. A file that cannot be read at all raises in either case.
    """
    with named_errors(path), opened(path) as file:
        if not _NAME.search(str(path)):
            raise ArcnbError(f"{path}: rows come from files named .json, .jsonl or .parquet (or .gz)")
        if ".parquet" in Path(path).suffixes and not (_is_parquet(file) or _begins_as_json(file)):
            raise ArcnbError(f"{path}: not Parquet, damaged or cut short at its beginning")
        for place, row in _parquet_rows(file, path) if _is_parquet(file) else _json_rows(file, path):
            if not isinstance(row, Mapping | ArcnbError):
                row = ArcnbError(f"{place}: it is {type(row).__name__}, not an object")
            if strict and isinstance(row, ArcnbError):
                raise row
            yield place, row


def read_object(path: str | Path) -> dict:
    """The one JSON object of a file. ArcnbError also where a key occurs twice."""
    with named_errors(path), opened(path) as file:
        content = _parsed(file.read(), str(path), unique=True)
    if not isinstance(content, dict):
        raise ArcnbError(f"{path}: holds a {type(content).__name__}, not an object")
    return content


def is_parquet(path: str | Path) -> bool:
    """Whether a file begins as Parquet files do."""
    with named_errors(path), opened(path) as file:
        return _is_parquet(file)


def unpacked(value: object, place: str) -> object:
    """A field that tables often keep as JSON text."""
    return _parsed(value.encode("utf-8", "surrogatepass"), place) if isinstance(value, str) else value


def pairs_of(columns: Mapping, names: tuple[str, str], place: str) -> list[dict]:
    """The list of structs that some writers turn into a struct of lists; the second list may be missing."""
    lists = {name: columns[name] for name in names if columns.get(name) is not None}
    lengths = {len(values) if isinstance(values, list) else None for values in lists.values()}
    if None in lengths or len(lengths) != 1:
        raise ArcnbError(f"{place}: its {' and '.join(names)} are not lists of the same length")
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def shown(value: object) -> str:
    """A name that others gave, for a sentence: on one line, and no longer than 60 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def text_of(row: Mapping, field: str, place: str, optional: bool = False) -> str | None:
    """A field that holds text; None for a missing one where `optional`."""
    value = row.get(field)
    if isinstance(value, str) or (optional and value is None):
        return value
    raise ArcnbError(
        f"{place}: {field} is {'missing' if value is None else f'{shown(repr(value))}, not text'}"
    )


@contextmanager
def naming(place: str | Path) -> Iterator[None]:
    """Put the place, a file and row, before the sentence of an `ArcnbError` that does not know it."""
    try:
        yield
    except ArcnbError as error:
        raise ArcnbError(f"{place}: {error}") from None


@contextmanager
def named_errors(path: str | Path) -> Iterator[None]:
    """Whatever goes wrong with a file while it is read, as an `ArcnbError` that names it."""
    import pyarrow as pa

    try:
        yield
    except ArcnbError:
        raise
    except (FileNotFoundError, IsADirectoryError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else "a folder, not a file"
        raise ArcnbError(f"{path}: {reason}") from None
    except PermissionError:  # says nothing of the content
        raise ArcnbError(f"{path}: {NO_PERMISSION}") from None
    except (OSError, EOFError, ValueError, OverflowError, zlib.error, pa.ArrowException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ArcnbError(f"{path}: damaged or cut short ({reason})") from None


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """The file, unpacked where it is compressed."""
    with open(path, "rb") as file:
        if file.peek(2)[:2] == b"\x1f\x8b":
            with gzip.open(file) as content:
                yield content
        else:
            yield file


def _is_parquet(file: BinaryIO) -> bool:
    return file.peek(4)[:4] == b"PAR1"


def _begins_as_json(file: BinaryIO) -> bool:
    return file.peek(64).lstrip(_BLANK)[:1] in (b"[", b"{")


def _parquet_rows(file: BinaryIO, path: str | Path) -> Iterator[tuple[str, object]]:
    import pyarrow.parquet as pq

    number = 0
    for batch in pq.ParquetFile(file).iter_batches(_BATCH):
        for number, row in enumerate(batch.to_pylist(), number + 1):  # noqa: B020
            yield f"{path}, row {number}", row


def _json_rows(file: BinaryIO, path: str | Path) -> Iterator[tuple[str, object]]:
    """JSON lines where the first line of several is a value, or the second in what is no document."""
    head = [line for _, line in islice(_lines(file), 2)]
    if len(head) < 2 or not _is_value(head[0]):
        file.seek(0)
        data = file.read()
        try:
            content = _parsed(data, str(path), unique=True) if head else []
        except ArcnbError:
            if len(head) < 2 or not _is_value(head[1]):
                raise
        else:
            if not isinstance(content, list):
                yield str(path), content
                return
            yield from ((f"{path}, row {number}", row) for number, row in enumerate(content, 1))
            return
    for number, line in _lines(file):
        place = f"{path}, line {number}"
        try:
            yield place, _parsed(line, place)
        except ArcnbError as error:
            yield place, error


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    file.seek(0)
    return ((number, line) for number, line in enumerate(file, 1) if line.strip(_BLANK))


def _is_value(line: bytes) -> bool:
    try:
        _parsed(line, "")
    except ArcnbError:
        return False
    return True


def _parsed(data: bytes, place: str, unique: bool = False) -> object:
    """The JSON value. unique: a whole document, whose lines are counted and in which no key occurs twice."""

    def once(pairs: list[tuple[str, object]]) -> dict:
        mapping = dict(pairs)
        if len(mapping) != len(pairs):
            key = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
            raise ArcnbError(f"{place}: task id or key {key!r} occurs twice")
        return mapping

    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=once if unique else None)
    except UnicodeDecodeError as error:
        raise ArcnbError(f"{place}: not UTF-8 text at byte {error.start}") from None
    except json.JSONDecodeError as error:
        where = f"{f'line {error.lineno}, ' if unique else ''}column {error.colno}"
        raise ArcnbError(f"{place}: not JSON, damaged or cut short at {where} ({error.msg})") from None
    except RecursionError:
        raise ArcnbError(f"{place}: nested deeper than {MAX_DEPTH} levels") from None
    except ArcnbError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise ArcnbError(f"{place}: cannot be read ({str(error).splitlines()[0]})") from None
    depth = _LEVEL[np.frombuffer(data, np.uint8)].cumsum(dtype=np.int32).max(initial=0)
    if depth > MAX_DEPTH or _HALF_ESCAPED.search(data):  # brackets and backslashes of texts count here, too
        _check_value(value, place)
    return value


def _check_value(value: object, place: str) -> None:
    """ArcnbError for a value that is nested too deeply, or a text that holds half a surrogate pair."""
    todo = [("", 0, value)]
    while todo:
        field, depth, one = todo.pop()
        if depth > MAX_DEPTH:
            raise ArcnbError(f"{place}: {field[:40]}...: nested deeper than {MAX_DEPTH} levels")
        if isinstance(one, str) and _HALF.search(one):
            where = field.strip(".") or "a text"
            raise ArcnbError(
                f"{place}: {where} holds half a surrogate pair, which is no character: {one!r:.60}"
            )
        if isinstance(one, dict):
            todo += [(f"{field}.key", depth + 1, key) for key in one]
            todo += [(f"{field}.{key}"[:200], depth + 1, item) for key, item in one.items()]
        elif isinstance(one, list):
            todo += [(f"{field}[{number}]"[:200], depth + 1, item) for number, item in enumerate(one)]
