"""BARC-style rows become tasks."""

import gzip
import json

import numpy as np
import pytest

from arcnb.arc.tasks.task_set import TaskSet, load_tasks
from arcnb.errors import ArcnbError
from arcnb.synth.barc_tasks import barc_tasks, transform_of_source
from arcnb.synth.sources import build_tasks
from arcnb.synth.splits import HELD_OUT_TRAINING, is_held_out, trainable_tasks
from arcnb.synth.validation.reports import TaskReport
from tests.arc.golden_grids import cases

SCRIPT = """from common import *
import numpy as np

def main(input_grid):
    return np.flipud(input_grid)

def generate_input():
    return np.random.randint(0, 10, (3, 3))

if __name__ == "__main__":
    print(main(generate_input()))
"""


def flips(n: int, side: int = 3, offset: int = 0) -> list:
    """`n` examples of turning a grid upside down."""
    grids = [np.full((side, side), (i + offset) % 9) for i in range(n)]
    for i, grid in enumerate(grids):
        grid[0] = 9
        grid[-1, i % side] = 8
    return [[grid.tolist(), grid[::-1].tolist()] for grid in grids]


def write(path, rows) -> str:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return str(path)


def test_rows_become_tasks_with_program_and_provenance(tmp_path):
    rows = [
        {"examples": flips(4), "source": SCRIPT},
        {
            "examples": flips(5, 4),
            "messages": [
                {"role": "user", "content": "Solve"},
                {
                    "role": "assistant",
                    "content": "Think.\n```python\ndef transform(grid):\n    return grid[::-1]\n```",
                },
            ],
        },
        {"examples": flips(6, 5)},
    ]
    first, second, third = barc_tasks(write(tmp_path / "a.jsonl.gz", rows))
    assert first.task_id == "barc_000000"
    assert "def transform(input_grid)" in first.program
    assert "generate_input" not in first.program
    assert second.program.startswith("def transform")
    assert third.program is None
    assert first.meta["row"] == 0
    assert first.meta["file"] == "a.jsonl.gz"
    assert len(first.meta["program_sha256"]) == 64
    assert len(first.test) == 1
    assert 2 <= len(first.train) <= 3


def test_parquet_gives_the_same_tasks(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"examples": flips(4), "source": SCRIPT}, {"examples": flips(7, 4), "source": ""}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    jsonl = list(barc_tasks(write(tmp_path / "a.jsonl", rows)))
    assert [t.fingerprint for t in barc_tasks(tmp_path / "a.parquet")] == [t.fingerprint for t in jsonl]


def test_every_rejection_is_counted(tmp_path):
    identity = [[grid, grid] for grid, _ in flips(4)]
    large = [[np.full((30, 30), i).tolist(), np.full((30, 30), 9 - i).tolist()] for i in range(4)]
    repeated = flips(1) * 5
    invalid = [[[[1, 2], [3]], [[1]]], [[[11]], [[1]]], [[["a"]], [[1]]], *flips(2)]
    rows = [
        {"examples": flips(4)},
        {"examples": identity},
        {"examples": large},
        {"examples": repeated},
        {"examples": invalid},
        {"examples": flips(4)[:2]},
        {"nothing": 1},
    ]
    report = TaskReport()
    kept = list(barc_tasks(write(tmp_path / "a.jsonl", rows), report=report))
    assert len(kept) == 1
    assert report.rejected == {"identity": 1, "too large": 1, "few examples": 3, "unreadable": 1}


@pytest.mark.parametrize("case", cases("arc25_learning.json", "barc_keep"), ids=lambda case: case["id"])
def test_tasks_are_kept_up_to_the_references_size(tmp_path, case):
    """4,500 cells in all pairs together, and not one more."""
    examples = [
        [np.full(given, i).tolist(), np.full(wanted, 9 - i).tolist()]
        for i, (given, wanted) in enumerate(case["args"]["shapes"])
    ]
    report = TaskReport()
    kept = list(barc_tasks(write(tmp_path / "a.jsonl", [{"examples": examples}]), report=report))
    assert bool(kept) == case["expect"]["value"]
    grids = all(max(shape) <= 30 for pair in case["args"]["shapes"] for shape in pair)
    assert report.rejected == ({} if kept else {"too large" if grids else "few examples": 1})
    sizes = [
        [list(pair.input.shape), list(pair.output.shape)]
        for task in kept
        for pair in (*task.train, *task.test)
    ]
    assert sorted(sizes) == (sorted(case["args"]["shapes"]) if kept else [])


def test_duplicate_rows_and_pairs_are_dropped(tmp_path):
    """Of six pairs some are drawn, of every row others: rows are compared before."""
    pairs = flips(6)
    rows = [{"examples": examples} for examples in (pairs, pairs, pairs[::-1], pairs + pairs, flips(6, 4))]
    report = TaskReport()
    tasks = list(barc_tasks(write(tmp_path / "a.jsonl", rows), seed=0, report=report))
    assert [task.meta["row"] for task in tasks] == [0, 4]
    assert report.rejected == {"duplicate": 3}
    [doubled] = barc_tasks(write(tmp_path / "b.jsonl", [{"examples": flips(3) + flips(3)}]))
    assert len({pair.input.tobytes() for pair in (*doubled.train, *doubled.test)}) == 3


@pytest.mark.parametrize("n_others", [0, 25])
def test_a_row_of_a_reserved_task_is_reserved_whatever_is_drawn(tmp_path, n_others):
    """Also where its own pairs are few beside others, and are not drawn."""
    tasks = list(load_tasks("arc-agi-1/training").subset(HELD_OUT_TRAINING[:8]))
    tasks += load_tasks("arc-agi-1/evaluation")[:8]
    rows = [
        {"examples": [[p.input.tolist(), p.output.tolist()] for p in (*one.train, *one.test)]}
        for one in tasks
    ]
    for number, row in enumerate(rows):
        row["examples"] += flips(n_others, side=4, offset=number)
    path = write(tmp_path / "a.jsonl", [*rows, {"examples": flips(9, 5)}])
    for seed in range(3):
        *reserved, other = barc_tasks(path, seed)
        assert len(reserved) > 12, "some are too large"
        assert not is_held_out(other)
        with pytest.raises(ArcnbError, match=f"all of its {len(reserved)} tasks are reserved"):
            trainable_tasks(TaskSet("rows", tuple(reserved)))


def test_the_seed_decides_the_draw(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"examples": flips(9, 4)} for _ in range(1)])
    assert [t.fingerprint for t in barc_tasks(path, 1)] == [t.fingerprint for t in barc_tasks(path, 1)]
    assert len({next(barc_tasks(path, seed)).fingerprint for seed in range(6)}) > 1


def test_integral_floats_are_colors_and_fractions_are_not(tmp_path):
    floats = [[[[float(cell) for cell in row] for row in grid] for grid in pair] for pair in flips(3)]
    path = write(tmp_path / "a.jsonl", [{"examples": floats}])
    assert len(list(barc_tasks(path))) == 1
    floats[0][0][0][0] = 1.5
    assert list(barc_tasks(write(tmp_path / "b.jsonl", [{"examples": floats}]))) == []


def test_programs_that_do_not_parse_are_dropped_and_counted(tmp_path):
    broken = [{"role": "assistant", "content": "```python\ndef transform(grid:\n```"}]
    rows = [{"examples": flips(4), "source": "def main(:"}, {"examples": flips(5), "messages": broken}]
    report = TaskReport()
    tasks = list(build_tasks(write(tmp_path / "a.jsonl", rows), report=report))
    assert [task.program for task in tasks] == [None, None]
    assert report.programs_dropped == 2
    assert ("accepted, program dropped", 2) in report.rows()


@pytest.mark.parametrize(
    "source",
    [
        "def main(grid):\n    return grid if grid.all() else up(grid)\ndef up(x):\n    return main(x + 1)",
        "def transform(x):\n    return x + 2\ndef main(grid):\n    return transform(grid)",
    ],
    ids=["main is called by a helper", "a helper is called transform"],
)
def test_a_script_calls_what_it_called_before(source):
    space: dict = {}
    exec(transform_of_source(source), space)
    assert space["transform"](np.array([[-1, 0]])).tolist() == [[1, 2]]


def test_scripts_that_do_not_parse_have_no_program():
    assert transform_of_source("def main(:") is None
    assert transform_of_source(f"def main(grid):\n    return grid\nx = 0x{'f' * 6000}") is None
    assert transform_of_source("x = 1") is None
    assert (
        transform_of_source("def transform(grid):\n    return grid")
        == "def transform(grid):\n    return grid\n"
    )


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(ArcnbError, match=r"nothing\.jsonl: no such file"):
        list(barc_tasks(tmp_path / "nothing.jsonl"))
    with pytest.raises(ArcnbError, match=r'a\.jsonl: it has no list "examples"'):
        list(barc_tasks(write(tmp_path / "a.jsonl", [{"text": 1}])))
    (tmp_path / "b.jsonl").write_text("not json\n")
    with pytest.raises(ArcnbError, match=r"b\.jsonl: not JSON, damaged or cut short at line 1"):
        list(barc_tasks(tmp_path / "b.jsonl"))
    (tmp_path / "c.csv").write_text("")
    with pytest.raises(ArcnbError, match=r"c\.csv: rows come from files named"):
        list(barc_tasks(tmp_path / "c.csv"))


@pytest.mark.parametrize(
    "messages",
    ["text", ["text"], [{"role": "assistant"}], [{"role": "assistant", "content": None}], {"role": "user"}],
)
def test_messages_that_are_no_chat_carry_no_program(tmp_path, messages):
    rows = [{"examples": flips(4), "messages": messages}, {"examples": flips(5), "source": SCRIPT}]
    first, second = barc_tasks(write(tmp_path / "a.jsonl", rows))
    assert first.program is None
    assert second.program is not None


def test_a_line_that_is_no_text_is_counted(tmp_path):
    file = tmp_path / "a.jsonl"
    line = json.dumps({"examples": flips(4)}).encode()
    file.write_bytes(line + b'\n{"a": "\xff"}\n')
    report = TaskReport()
    assert len(list(barc_tasks(file, report=report))) == 1
    assert report.rejected == {"unreadable": 1}


@pytest.mark.parametrize(("name", "content"), [("a.parquet", b"PAR1"), ("a.jsonl.gz", b"no gzip")])
def test_a_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArcnbError, match=rf"{name}: (not JSON, )?damaged or cut short"):
        list(barc_tasks(tmp_path / name))


def test_a_compressed_file_that_is_cut_short_is_named(tmp_path):
    file = tmp_path / "a.jsonl.gz"
    write(file, [{"examples": flips(4, offset=i)} for i in range(9)])
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ArcnbError, match="damaged or cut short"):
        list(barc_tasks(file))
