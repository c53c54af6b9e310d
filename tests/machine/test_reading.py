"""One reader for rows that others wrote: told apart by content, every fault named by file, row and field."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arcnb.errors import ArcnbError
from arcnb.machine.reading import read_object, read_rows

ROWS = [{"a": 1}, {"b": [2, None]}]
LINES = b'{"a": 1}\n{"b": [2, null]}\n'


def written(path, content: bytes):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["x.json", "x.jsonl", "x.json.gz", "x.parquet"])
@pytest.mark.parametrize(
    "content",
    [
        LINES,
        b"\n\r\n" + LINES.replace(b"\n", b"\r\n"),
        json.dumps(ROWS).encode(),
        json.dumps(ROWS, indent=1).encode(),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_content_says_what_a_file_is_and_not_its_name(name, content, packed, mark, tmp_path):
    content = mark + content
    path = written(tmp_path / name, gzip.compress(content) if packed else content)
    assert [row for _, row in read_rows(path)] == ROWS


@pytest.mark.parametrize("name", ["x.parquet", "x.json"])
@pytest.mark.parametrize("packed", [False, True])
def test_parquet_gives_its_rows(name, packed, tmp_path):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": list(range(300))}), sink)
    data = sink.getvalue().to_pybytes()
    rows = list(read_rows(written(tmp_path / name, gzip.compress(data) if packed else data)))
    assert rows[299] == (f"{tmp_path / name}, row 300", {"a": 299})


def test_one_object_is_one_row_however_it_is_laid_out(tmp_path):
    for content in (b'{"a": 1}', b'{\n"a":\n1}\n', b'[\n{"a": 1}\n]'):
        assert [row for _, row in read_rows(written(tmp_path / "x.json", content))] == [{"a": 1}]
    assert list(read_rows(written(tmp_path / "x.json", b"\n"))) == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"{bad", "not JSON, damaged or cut short at column 2"),
        (b"[1]", "it is list, not an object"),
        (b'{"a": "\xff"}', "not UTF-8 text at byte 7"),
        (b'{"a": [{"b": "x \\ud83d"}]}', "a[0].b holds half a surrogate pair"),
        (b'{"\\ud83d": 1}', "key holds half a surrogate pair"),
        (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "nested deeper than 60 levels"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested deeper than 60 levels"),
        (b'{"a": ' + b"1" * 5000 + b"}", "cannot be read (Exceeds the limit"),
    ],
)
@pytest.mark.parametrize("before", [b"", b'{"b": 1}\n'])
def test_a_bad_line_is_named_and_costs_that_row_alone_where_the_caller_says_so(
    line, sentence, before, tmp_path
):
    path = written(tmp_path / "x.jsonl", before + line + b'\n{"c": 1}\n')
    found = [row for _, row in read_rows(path, strict=False)]
    (error,) = [row for row in found if isinstance(row, ArcnbError)]
    assert sentence in str(error)
    assert str(error).startswith(f"{path}, line {1 + bool(before)}: ")
    assert {"c": 1} in found
    with pytest.raises(ArcnbError) as caught:
        list(read_rows(path))
    assert str(caught.value) == str(error)


def test_pairs_of_surrogates_and_backslashes_are_no_fault(tmp_path):
    row = {"a": "\\ud83d \U0001f600", "b": "[" * 99}
    assert [row for _, row in read_rows(written(tmp_path / "x.json", json.dumps(row).encode()))] == [row]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.parquet", b"PAR1", "damaged or cut short"),
        ("x.parquet", b"\0AR1", "not Parquet, damaged or cut short"),
        ("x.parquet.gz", b"", "not Parquet, damaged or cut short"),
        ("x.json.gz", gzip.compress(LINES * 99, mtime=0)[:-9], "damaged or cut short"),
        ("x.json", b'[{"a": 1}', "not JSON, damaged or cut short at line 1"),
        ("x.json", b'{"a": 1, "a": 2}', "key 'a' occurs twice"),
        ("x.csv", b"a,b\n", "rows come from files named .json, .jsonl or .parquet"),
        ("none.json", None, "no such file"),
        ("", None, "a folder, not a file"),
    ],
)
def test_what_is_no_file_of_rows_is_named(name, content, sentence, tmp_path):
    if content is not None:
        written(tmp_path / name, content)
    with pytest.raises(ArcnbError) as caught:
        list(read_rows(tmp_path / name, strict=False))
    assert sentence in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_a_document_is_an_object(tmp_path):
    assert read_object(written(tmp_path / "x.json", gzip.compress(b'{"a": [1]}'))) == {"a": [1]}
    with pytest.raises(ArcnbError, match=r"x\.json: holds a list, not an object"):
        read_object(written(tmp_path / "x.json", b"[1]"))
