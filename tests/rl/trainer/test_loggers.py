"""That the places of `report_to` really receive a run, read back from what each keeps on disk.


trackio 0.43 wants an older pillow than the rest, so requirements-cpu.txt has none of it: its test is skipped.
"""

import struct

import pytest

from arcnb.models.training.log import read_metrics, reporting
from tests.lab.watching import wait_for

NAMES = ("reward", "kl", "solved_tasks_ratio", "executor_seconds")


def logged(folder):
    """{name: values of the steps, in order} of a run's own metrics.jsonl"""
    steps = [row for row in read_metrics(folder / "metrics.jsonl") if "reward" in row]
    return {name: pytest.approx([row[name] for row in steps], rel=1e-5) for name in NAMES}


def wandb_records(path):
    """The records of a .wandb file: blocks of 32 KiB behind 7 bytes, as in LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # too little room for a head: zeros up to the next block
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        if place + 7 + size > len(data):  # still being written
            return
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last of several
            yield Record.FromString(whole)
            whole = b""


def test_tensorboard(train, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(tmp_path, max_steps=3, report_to="tensorboard")
    (events,) = tmp_path.rglob("events.out.tfevents.*")
    found = accumulator.EventAccumulator(str(events)).Reload()
    points = {name: found.Scalars(f"train/{name}") for name in NAMES}
    assert {name: [point.value for point in points[name]] for name in NAMES} == logged(tmp_path)
    assert [point.step for point in points["reward"]] == [1, 2, 3]


@pytest.fixture(scope="module")
def wandb_service():
    wandb = pytest.importorskip("wandb")
    yield wandb
    wandb.teardown()  # else it lives as long as this process


@pytest.fixture
def wandb(monkeypatch, wandb_service):
    wandb = wandb_service
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    yield wandb
    wandb.finish()


def received_by_wandb(folder):
    """(project, name, {name: values of the steps}) of the one run that wandb kept in a folder"""
    (kept,) = folder.rglob("run-*.wandb")
    # wandb.finish() may come back before it stands
    wait_for(lambda: any(one.HasField("exit") for one in wandb_records(kept)))
    records = list(wandb_records(kept))
    (run,) = {(one.run.project, one.run.display_name) for one in records if one.HasField("run")}
    rows = [
        {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        for record in records
    ]
    steps = [row for row in rows if "train/reward" in row]
    return run, {name: [float(row[f"train/{name}"]) for row in steps] for name in NAMES}


def test_wandb_has_a_run_for_each_training(train, tmp_path, wandb):
    for name in ("first", "second"):
        train(tmp_path / name, max_steps=3, report_to="wandb")
        assert wandb.run is None
    for name in ("first", "second"):
        run, received = received_by_wandb(tmp_path / name)
        assert run == ("arcnb", name)
        assert received == logged(tmp_path / name)


def test_wandb_is_kept_where_the_environment_says(train, tmp_path, wandb, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    train(tmp_path / "study", max_steps=1, report_to="wandb")
    run, received = received_by_wandb(tmp_path / "elsewhere")
    assert run == ("theirs", "study")
    assert received == logged(tmp_path / "study")


def test_an_open_wandb_run_is_joined_and_stays_open(train, tmp_path, wandb):
    mine = wandb.init(project="mine", name="mine", dir=tmp_path / "mine")
    train(tmp_path / "study", max_steps=1, report_to="wandb")
    assert wandb.run is mine
    wandb.finish()
    run, received = received_by_wandb(tmp_path / "mine")
    assert run == ("mine", "mine")
    assert received == logged(tmp_path / "study")


def test_a_training_that_fails_ends_its_wandb_run(tmp_path, wandb, monkeypatch):
    codes, finish = [], wandb.Run.finish
    monkeypatch.setattr(wandb.Run, "finish", lambda run, code: codes.append(code) or finish(run, code))
    with pytest.raises(OSError, match="disk"), reporting(tmp_path / "study", "wandb"):
        raise OSError("the disk is full")
    assert codes == [1]
    assert wandb.run is None


def test_trackio(train, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # which it looks up when it is imported
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    train(tmp_path / "study", max_steps=3, report_to="trackio")
    rows = [row for row in SQLiteStorage.get_logs("arcnb", "study") if "train/reward" in row]
    assert {name: [row[f"train/{name}"] for row in rows] for name in NAMES} == logged(tmp_path / "study")
