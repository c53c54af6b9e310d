"""That the places of `report_to` really receive a run, read back from what each keeps on disk.

Run: pytest tests/rl/test_rl_loggers.py
trackio 0.43 wants an older pillow than the rest, so requirements-cpu.txt has none of it: its test is skipped.
"""

import struct

import pytest

from arcnb.models.training_log import read_metrics

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
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last of several
            yield Record.FromString(whole)
            whole = b""


def test_tensorboard(train, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(tmp_path, {"max_steps": 3, "report_to": "tensorboard"})
    (events,) = tmp_path.rglob("events.out.tfevents.*")
    found = accumulator.EventAccumulator(str(events)).Reload()
    points = {name: found.Scalars(f"train/{name}") for name in NAMES}
    assert {name: [point.value for point in points[name]] for name in NAMES} == logged(tmp_path)
    assert [point.step for point in points["reward"]] == [1, 2, 3]


def test_wandb(train, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.setenv(name, "")  # to have it as it was afterwards
        monkeypatch.delenv(name)
    train(tmp_path / "study", {"max_steps": 3, "report_to": "wandb"})
    assert (wandb.run.name, wandb.run.project) == ("study", "arcnb")
    wandb.finish()
    (kept,) = (tmp_path / "study").rglob("run-*.wandb")
    rows = [
        {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        for record in wandb_records(kept)
    ]
    steps = [row for row in rows if "train/reward" in row]
    received = {name: [float(row[f"train/{name}"]) for row in steps] for name in NAMES}
    assert received == logged(tmp_path / "study")


def test_trackio(train, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # which it looks up when it is imported
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    train(tmp_path / "study", {"max_steps": 3, "report_to": "trackio"})
    rows = [row for row in SQLiteStorage.get_logs("arcnb", "study") if "train/reward" in row]
    assert {name: [row[f"train/{name}"] for row in rows] for name in NAMES} == logged(tmp_path / "study")
