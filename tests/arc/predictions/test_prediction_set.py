"""The prediction record and its folder: nothing is lost, doubled, half written or overwritten."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.grids import as_grid
from arcnb.arc.predictions.prediction import FIELD_NAMES, Prediction, output_fingerprint
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.tables import PREDICTION_SCHEMA, to_frame, to_table
from arcnb.errors import ArcnbError

A, B = as_grid([[1, 2], [3, 4]]), as_grid([[5]])


def prediction(task_id: str = "t", index: int = 0, round: int = 0, **fields) -> Prediction:
    return Prediction(task_id=task_id, task_fingerprint="f" * 64, round=round, index=index, **fields)


def full() -> Prediction:
    """A record in which every field holds something."""
    return Prediction(
        task_id="007bbfb7", task_fingerprint="a" * 64, round=3, index=5, turn=1, parent="007bbfb7/3/2/0",
        seed=2**62, hflip=True, n_rot90=3, color_map=[0, 2, 1, 3, 4, 5, 6, 7, 8, 9], pair_order=[2, 0, 1],
        test_index=1, model="m", adapter="a", completion="```python\nπ\n```", completion_prefix="Let's",
        n_prompt_tokens=1000, n_tokens=200, finish_reason="stop", logprob=-12.5, program="def transform...",
        extraction="fenced", status="ok", error_type="E", error_message="m", error_line=3,
        outputs=[A, None, B], fingerprint="b" * 64, train_pixel_score=0.5, train_correct_grids=0.25,
        train_is_correct=0, test_pixel_score=1.0, test_correct_grids=1.0, test_is_correct=1, seconds=0.1,
        cpu_seconds=0.05,
    )  # fmt: skip


def plain(p: Prediction) -> dict:
    row = {name: getattr(p, name) for name in FIELD_NAMES}
    row["outputs"] = p.outputs and [None if g is None else g.tolist() for g in p.outputs]
    return row


def test_the_schema_has_one_column_a_field_in_order():
    assert tuple(PREDICTION_SCHEMA.names) == FIELD_NAMES


def test_every_field_comes_back_as_it_was(tmp_path):
    records = [full(), prediction()]
    assert all(value is not None for value in plain(full()).values())
    predictions = PredictionSet(tmp_path / "new" / "predictions")
    predictions.write_part(records, round=3)
    assert [plain(p) for p in predictions.iter_predictions()] == [plain(p) for p in records]


def test_records_can_be_compared():
    assert full() == full()
    assert full() != prediction()


def test_ids_and_augmentation():
    p = full()
    assert p.id == "007bbfb7/3/5/1"
    assert p.key == ("007bbfb7", 3, 5, 1)
    assert p.augmentation == Augmentation(True, 3, (0, 2, 1, 3, 4, 5, 6, 7, 8, 9))
    assert prediction().augmentation == Augmentation()


def test_fingerprints_tell_outputs_apart_by_shape_order_and_cells():
    wide, tall = as_grid([[1, 2]]), as_grid([[1], [2]])
    lists = [[wide], [tall], [wide, tall], [tall, wide], [wide, wide], [A], [B]]
    assert len({output_fingerprint(outputs) for outputs in lists}) == len(lists)
    assert output_fingerprint([A, B]) == output_fingerprint([A.copy(), B.copy()])


# ---------------------------------------------------------------- reading


def test_a_folder_that_does_not_exist_is_an_empty_set(tmp_path):
    predictions = PredictionSet(tmp_path / "nothing")
    assert (len(predictions), list(predictions.iter_predictions())) == (0, [])
    assert list(predictions.read().columns) == list(FIELD_NAMES)


def test_rows_are_sorted_by_key_whatever_the_parts(tmp_path):
    predictions = PredictionSet(tmp_path)
    predictions.write_part([prediction("b", 1), prediction("a", 10)], round=0)
    predictions.write_part([prediction("b", 0), prediction("a", 9)], round=0, shard=1, n_shards=2)
    frame = predictions.read(["task_id", "index"])
    assert list(frame.itertuples(index=False, name=None)) == [("a", 9), ("a", 10), ("b", 0), ("b", 1)]


def test_columns_and_tasks_can_be_chosen(tmp_path):
    predictions = PredictionSet(tmp_path)
    predictions.write_part([prediction(t, i) for t in "abc" for i in range(2)], round=0)
    frame = predictions.read(columns=["status", "task_id"], task_ids=["c", "a", "x"])
    assert list(frame.columns) == ["status", "task_id"]
    assert frame["task_id"].tolist() == ["a", "a", "c", "c"]
    assert [p.id for p in predictions.iter_predictions(task_ids=["b"])] == ["b/0/0/0", "b/0/1/0"]
    with pytest.raises(ArcnbError, match="no column 'stat' in a prediction"):
        predictions.read(["stat"])


def test_unknown_values_are_missing_and_outputs_are_lists_of_grids(tmp_path):
    predictions = PredictionSet(tmp_path)
    predictions.write_part([full(), prediction("u")], round=0)
    frame = predictions.read()
    known, unknown = frame.iloc[0], frame.iloc[1]
    assert [None if g is None else g.tolist() for g in known["outputs"]] == [[[1, 2], [3, 4]], None, [[5]]]
    assert unknown["outputs"] is None
    for column in ("parent", "program", "status", "train_is_correct", "logprob", "error_line"):
        assert pd.isna(unknown[column])
        assert not pd.isna(known[column])
    pd.testing.assert_frame_equal(
        frame.drop(columns="outputs"), to_frame(to_table([full(), prediction("u")])).drop(columns="outputs")
    )


def test_a_rerun_shard_counts_once_and_the_first_part_by_name_wins(tmp_path):
    predictions = PredictionSet(tmp_path)
    predictions.write_part(
        [prediction("t", i, completion="late name") for i in range(3)], 0, shard=1, n_shards=2
    )
    predictions.write_part([prediction("t", i, completion="early name") for i in range(1, 5)], 0, n_shards=2)
    predictions.write_part([prediction("t", i, completion="again") for i in range(1, 6)], 0, n_shards=2)
    frame = predictions.read(["index", "completion"])
    assert frame["index"].tolist() == [0, 1, 2, 3, 4, 5]
    assert frame["completion"].tolist() == ["late name", *["early name"] * 4, "again"]
    assert len(predictions) == 6


def test_turns_and_rounds_are_different_predictions(tmp_path):
    predictions = PredictionSet(tmp_path)
    predictions.write_part([prediction(turn=0), prediction(turn=1), prediction(round=1)], round=0)
    keys = [one.key for one in predictions.iter_predictions()]
    assert keys == [("t", 0, 0, 0), ("t", 0, 0, 1), ("t", 1, 0, 0)]


# ---------------------------------------------------------------- writing


def test_parts_are_named_by_round_and_shard_and_numbered(tmp_path):
    predictions = PredictionSet(tmp_path)
    names = [
        predictions.write_part([prediction(index=0)], round=3, shard=0, n_shards=2).name,
        predictions.write_part([prediction(index=1)], round=3, shard=0, n_shards=2).name,
        predictions.write_part([prediction(index=2)], round=3, shard=1, n_shards=2).name,
    ]
    assert names == [
        "round00003-shard00-of-02-part00000.parquet",
        "round00003-shard00-of-02-part00001.parquet",
        "round00003-shard01-of-02-part00000.parquet",
    ]
    assert predictions.write_part([], round=3) is None
    assert len(predictions.parts()) == 3


def test_parts_are_zstd_parquet_that_others_can_read(tmp_path):
    path = PredictionSet(tmp_path).write_part([full()], round=0)
    assert path.stat().st_mode & 0o044 == 0o044  # others may read it, unlike a usual temporary file
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"


def test_an_existing_part_is_never_replaced(tmp_path, monkeypatch):
    predictions = PredictionSet(tmp_path)
    first = predictions.write_part([prediction(index=0)], round=0)
    before = first.read_bytes()
    # Another process took the number after this one looked: the writer has to notice and take the next.
    looks = iter([[], [first]])
    monkeypatch.setattr("pathlib.Path.glob", lambda self, pattern: next(looks) if "part" in pattern else [])
    second = predictions.write_part([prediction(index=1)], round=0)
    assert second.name.endswith("part00001.parquet")
    assert first.read_bytes() == before


def test_file_systems_without_hard_links_are_served_too(tmp_path, monkeypatch):
    def no_links(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    predictions = PredictionSet(tmp_path)
    paths = [predictions.write_part([prediction(index=i)], round=0) for i in range(2)]
    assert sorted(tmp_path.iterdir()) == paths
    assert len(predictions) == 2


@pytest.mark.parametrize(("shard", "n_shards"), [(2, 2), (-1, 1), (0, 0)])
def test_impossible_shards_are_refused(shard, n_shards, tmp_path):
    with pytest.raises(ArcnbError, match="is not one of the"):
        PredictionSet(tmp_path).write_part([prediction()], 0, shard, n_shards)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"index": "x"}, "t/0/x/0: index is 'x', not int32"),
        ({"n_rot90": 300}, "n_rot90 is 300, not int8"),
        ({"completion": 3}, "completion is 3, not string"),
        ({"outputs": [A, np.full((31, 2), 3)]}, "prediction t/0/1/0: output 1: 31x2 is larger than 30x30"),
        ({"outputs": [[[1, 2], [3]]]}, "prediction t/0/1/0: output 0: ragged"),
    ],
)
def test_a_record_that_does_not_fit_is_named_and_nothing_is_written(fields, message, tmp_path):
    records = [prediction(), prediction(**{"index": 1, **fields})]
    with pytest.raises(ArcnbError, match=message):
        PredictionSet(tmp_path).write_part(records, round=0)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- damage


def test_temporary_files_are_ignored(tmp_path):
    predictions = PredictionSet(tmp_path)
    predictions.write_part([prediction()], round=0)
    (tmp_path / ".round00000-shard00-of-01-part00001.parquet.x1.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    assert len(predictions) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "other columns"])
def test_a_damaged_part_is_named_in_one_sentence(damage, tmp_path):
    predictions = PredictionSet(tmp_path)
    predictions.write_part([prediction(index=0)], round=0)
    part = predictions.write_part([prediction(index=1)], round=0)
    if damage == "other columns":
        pq.write_table(pq.read_table(part).drop_columns(["round"]), part)
    else:
        data = part.read_bytes()
        part.write_bytes({"cut": data[:-30], "empty": b"", "text": b"hello"}[damage])
    with pytest.raises(ArcnbError) as caught:
        predictions.read()
    assert str(caught.value).startswith(f"{part}: damaged or not a prediction part")
    assert "\n" not in str(caught.value)


def test_a_parquet_file_of_another_name_is_refused(tmp_path):
    (tmp_path / "tasks.parquet").write_bytes(b"")
    with pytest.raises(ArcnbError, match=r"tasks\.parquet: not named like a part"):
        PredictionSet(tmp_path).read()


WRITER = textwrap.dedent("""
    import sys
    from arcnb.arc.predictions.prediction import Prediction
    from arcnb.arc.predictions.prediction_set import PredictionSet
    import arcnb.arc.predictions.prediction_set
    predictions = PredictionSet(sys.argv[1])
    print("ready", flush=True)
    for part in range(10_000):
        rows = [Prediction("t", "f", part, i, completion="x" * 2000 * (i % 7)) for i in range(50)]
        predictions.write_part(rows, round=part)
        print(part, flush=True)
""")


def test_sigkill_at_any_moment_leaves_only_whole_parts(tmp_path):
    random.seed(0)
    for attempt in range(6):
        folder = tmp_path / str(attempt)
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(random.uniform(0.02, 0.3))
        process.send_signal(signal.SIGKILL)
        reported = process.stdout.read().split()
        process.wait()
        predictions = PredictionSet(folder)
        frame = predictions.read(["round", "index"])
        # Every part said to be written is there, at most the one in work besides, and each is whole.
        rounds = frame["round"].nunique()
        assert len(reported) <= rounds <= len(reported) + 1
        assert len(frame) == 50 * rounds
        # A rerun goes on from there.
        predictions.write_part([prediction(round=99_000)], round=99_000)
        assert len(predictions) == 50 * rounds + 1
        assert not list(folder.glob(".*")), "what the killed one had begun is still there"


UNFINISHED = """
import sys, time
from arcnb.machine.files import new_file
with new_file(sys.argv[1]):
    print("begun", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def begin(tmp_path):
    """begin(name): a process that is just writing a file of that name, and its temporary file."""
    begun = []

    def start(name):
        command = [sys.executable, "-c", UNFINISHED, str(tmp_path / name)]
        begun.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert begun[-1].stdout.readline() == "begun\n"
        (temporary,) = tmp_path.glob(f".{name}.*")
        return begun[-1], temporary

    yield start
    for process in begun:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("writes", ["a part", "a pack"])
def test_a_writer_removes_what_killed_ones_left_and_nothing_of_the_living(tmp_path, begin, writes):
    (killed, gone), (_, living) = begin("round0.parquet"), begin("round1.parquet")
    killed.kill()
    killed.wait()
    number = killed.pid
    elsewhere, old = (tmp_path / f".x.parquet.0123456789ab-{number}-0000000{i}.tmp" for i in range(2))
    unknown, old_unknown = (tmp_path / f".x.parquet.-{number}-0000000{i}.tmp" for i in range(2))
    mine = tmp_path / ".mine.tmp"
    for path in (elsewhere, old, unknown, old_unknown, mine):
        path.write_bytes(b"half")
    for path in (old, old_unknown, mine, living):
        os.utime(path, (time.time() - 25 * 3600,) * 2)
    predictions = PredictionSet(tmp_path)
    if writes == "a part":
        predictions.write_part([prediction()], round=0)
    else:
        assert predictions.pack() is None
    assert set(tmp_path.glob(".*")) == {living, elsewhere, unknown, mine}
    assert not gone.exists()


def test_writers_of_one_shard_at_the_same_time_lose_nothing(tmp_path):
    script = WRITER.replace("10_000", "20").replace('Prediction("t"', "Prediction(sys.argv[2]")
    script = script.replace("round=part", "round=0")
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), name], stdout=subprocess.DEVNULL)
        for name in "ab"
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    predictions = PredictionSet(tmp_path)
    assert len(predictions.parts()) == 40
    assert len(predictions) == 2 * 20 * 50


FULL_DISK = textwrap.dedent("""
    import os, resource, signal, sys
    from arcnb.arc.predictions.prediction import Prediction
    from arcnb.arc.predictions.prediction_set import PredictionSet
    predictions = PredictionSet(sys.argv[1])
    predictions.write_part([Prediction("t", "f", 0, 0)], round=0)
    # A file may no longer grow past 20 kB: the system refuses the write as it does on a full disk.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    rows = [Prediction("t", "f", 1, i, completion=os.urandom(1000).hex()) for i in range(100)]
    try:
        predictions.write_part(rows, round=1)
    except ValueError as error:
        print(type(error).__name__, error)
""")


def test_a_write_that_the_system_refuses_is_one_sentence_and_earlier_parts_stay(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith("ArcnbError")
    assert "round00001-shard00-of-01-part00000.parquet: File too large" in line
    assert [p.name for p in tmp_path.iterdir()] == ["round00000-shard00-of-01-part00000.parquet"]
    assert len(PredictionSet(tmp_path)) == 1


def test_a_full_disk_is_one_sentence_and_earlier_parts_stay(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True)
    if mount.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        predictions = PredictionSet(tmp_path)
        predictions.write_part([prediction()], round=0)
        rows = [prediction(index=i, completion=random.randbytes(1000).hex()) for i in range(200)]
        with pytest.raises(ArcnbError, match=r"cannot write .*: No space left on device; files already"):
            predictions.write_part(rows, round=1)
        assert len(list(tmp_path.iterdir())) == 1
        assert len(predictions) == 1
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("folder", ["file", "file/predictions"])
def test_a_folder_that_cannot_be_written_is_named(folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArcnbError, match=f"cannot write .*{folder}/round.*: a file stands"):
        PredictionSet(tmp_path / folder).write_part([prediction()], round=0)


def many_parts(folder, n_shards=2):
    """Two shards of three tasks each, in parts of one round: 60 predictions."""
    predictions = PredictionSet(folder)
    for round_ in range(5):
        for shard in range(n_shards):
            tasks = [f"t{number}" for number in range(shard, 6, n_shards)]
            rows = [
                prediction(task, round=round_, index=i, completion=f"x = {i}")
                for task in tasks
                for i in (0, 1)
            ]
            predictions.write_part(rows, round_, shard, n_shards)
    return predictions


def test_packing_keeps_every_row_and_touches_no_other_shard(tmp_path, monkeypatch):
    monkeypatch.setattr("arcnb.arc.predictions.prediction_set._PACKED_ROWS", 8)
    predictions = many_parts(tmp_path / "p")
    before, others = predictions.read(), [p for p in predictions.parts() if "shard01" in p.name]
    packed = predictions.pack(0, 2)
    assert packed.name == "round00000-shard00-of-02-pack00000.parquet"
    assert predictions.parts() == [packed, *others]
    pd.testing.assert_frame_equal(predictions.read(), before)
    some = {"t0", "t3"}
    expected = before[before["task_id"].isin(some)].reset_index(drop=True)
    pd.testing.assert_frame_equal(predictions.read(task_ids=some), expected)
    assert [row.task_id for row in predictions.iter_predictions(task_ids=["t4"])] == ["t4"] * 10
    assert predictions.pack(0, 2) is None, "there is nothing left to pack"


def test_a_packed_shard_goes_on_and_is_packed_again(tmp_path):
    predictions = many_parts(tmp_path / "p", n_shards=1)
    predictions.pack()
    predictions.write_part(
        [prediction("t0", round=7), prediction("t0", round=0, completion="later")], round=7
    )
    again = predictions.pack()
    assert predictions.parts() == [again]
    assert len(predictions) == 61
    first = next(predictions.iter_predictions(task_ids=["t0"]))
    assert first.completion == "x = 0", "the row that was there first has to stay"


def test_packing_that_was_killed_before_the_parts_went_does_no_harm(tmp_path):
    predictions = many_parts(tmp_path / "p", n_shards=1)
    saved = {part: part.read_bytes() for part in predictions.parts()}
    before = predictions.read()
    predictions.pack()
    for part, content in list(saved.items())[2:]:
        part.write_bytes(content)
    pd.testing.assert_frame_equal(predictions.read(), before)
    predictions.pack()
    assert len(predictions.parts()) == 1
    pd.testing.assert_frame_equal(predictions.read(), before)


def test_a_reader_that_looked_before_the_packing_looks_again(tmp_path, monkeypatch):
    predictions = many_parts(tmp_path / "p")
    stale = predictions.parts()
    PredictionSet(tmp_path / "p").pack(0, 2)
    listings = iter([stale])
    look = PredictionSet.parts
    monkeypatch.setattr(PredictionSet, "parts", lambda self: next(listings, None) or look(self))
    assert len(predictions) == 60
    damaged = look(predictions)[0]
    damaged.write_bytes(b"PAR1")
    with pytest.raises(ArcnbError, match="damaged"):
        len(predictions)
