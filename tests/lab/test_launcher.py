"""The launcher's tables: what is on this machine, what ran last."""

import json

import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.lab.explorer import launcher
from arcnb.lab.plots import comparison
from arcnb.lab.runs.manifest import MANIFEST
from arcnb.lab.runs.run import new_run


@pytest.fixture
def old_run():
    """A run folder that another version of arcnb wrote."""
    run = new_run("old")
    manifest = json.loads((run.path / MANIFEST).read_text())
    (run.path / MANIFEST).write_text(json.dumps(manifest | {"schema": 0}))
    return run


def test_models_and_adapters_of_the_machine_are_listed(old_run):
    trained = new_run("sft")
    (trained.path / "adapter").mkdir()
    (trained.path / "adapter" / "weights").write_bytes(b"0" * 2000)
    trained.record({}, artifacts=["adapter"])
    table = launcher.models()
    assert set(table.loc["default", "what"]) == {"model", "adapter"}
    assert table.loc[str(trained.path / "adapter"), "size"] == "2 kB"


def test_task_sets_are_the_sources_and_what_runs_wrote():
    made = new_run("data")
    (made.path / "tasks.parquet").write_bytes(b"")
    made.record({"tasks": 7}, artifacts=["tasks.parquet"])
    table = launcher.task_sets()
    assert table.loc["arc-agi-1/training", "tasks"] == 400
    assert table.loc[str(made.path / "tasks.parquet"), "tasks"] == 7


def test_runs_of_your_own_may_record_anything_as_tasks():
    made = new_run("own")
    (made.path / "tasks.parquet").write_bytes(b"")
    made.record({"tasks": "arc-agi-1/training"}, artifacts=["tasks.parquet"])
    assert launcher.task_sets().isna().loc[str(made.path / "tasks.parquet"), "tasks"]


def test_links_lead_to_pages_whatever_the_notebook_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = new_run("own", notebook={"path": "my #1, 50%.ipynb"})
    run.page_path.write_text("page")
    assert f'href="runs/{run.path.name}/my%20%231%2C%2050%25.html"' in launcher.last_runs()._repr_html_()


def test_a_path_to_copy_is_shown_whole_however_long_it_is():
    made = new_run("a-set-of-tasks-with-a-name-that-says-much-about-it")
    (made.path / "tasks.parquet").write_bytes(b"")
    (made.path / "adapter").mkdir()
    made.record({"tasks": 7}, artifacts=["tasks.parquet", "adapter"])
    assert f"<th>{made.path / 'tasks.parquet'}</th>" in launcher.task_sets()._repr_html_()
    assert f"<th>{made.path / 'adapter'}</th>" in launcher.models()._repr_html_()


def test_the_last_runs_lead_to_their_pages_newest_first(old_run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "No runs in" in launcher.RunList([])._repr_html_()
    done = new_run("solved")
    done.record({"solved": 3, "rate": 0.25, "note": "<b>"})
    done.page_path.write_text("page")
    failed = new_run("wrong")
    failed.update(status="failed", error={"type": "X", "message": "m", "sentence": "cell 3: <m>"})
    own = new_run("own")
    monkeypatch.setenv("ARCNB_RUN_DIR", str(own.path))
    runs = launcher.last_runs()
    assert str(runs).splitlines() == sorted((run.path.name for run in (old_run, done, failed)), reverse=True)
    monkeypatch.delenv("ARCNB_RUN_DIR")
    shown = runs._repr_html_()
    assert "solved 3, rate 0.25" in shown
    assert "cell 3: &lt;m&gt;" in shown
    assert f'href="runs/{done.path.name}/notebook.html">page' in shown
    assert "has schema 0, this version of arcnb reads schema" in shown


def test_the_latest_predictions_are_found():
    assert launcher.latest_predictions() is None
    first, second = new_run("a"), new_run("b")
    PredictionSet(first.path / "predictions").write_part([Prediction("t", "f", 0, 0)], 0)
    (second.path / "predictions").mkdir()
    assert launcher.latest_predictions().folder == first.path / "predictions"


def test_a_run_of_another_version_is_not_compared_by_itself_and_named_when_asked_for(old_run):
    new_run("new").record({})
    assert list(comparison.open_runs()) == ["new"]
    with pytest.raises(ArcnbError, match=r"manifest\.json has schema 0"):
        comparison.open_runs(str(old_run.path))


def test_a_page_that_the_lab_does_not_serve_is_a_path_to_copy(tmp_path, monkeypatch):
    run = new_run("far").record({"n": 1})
    run.page_path.write_text("page")
    (tmp_path / "lab").mkdir()
    monkeypatch.chdir(tmp_path / "lab")
    assert f"page: <code>{run.page_path}</code>" in launcher.last_runs()._repr_html_()
    assert "href" not in launcher.last_runs()._repr_html_()
