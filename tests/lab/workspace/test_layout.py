"""`arcnb init` and `arcnb upgrade`, with a delivery of three files."""

import json

import pytest

from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.notebooks.files import find_notebook
from arcnb.lab.runs.run import runs_root
from arcnb.lab.workspace import layout


def notebook(*sources, count=None):
    cells = [
        {"cell_type": "code", "execution_count": count, "metadata": {}, "outputs": [], "source": source}
        for source in sources
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def delivery(tmp_path, monkeypatch):
    folder = tmp_path / "delivery"
    (folder / "profiles").mkdir(parents=True)
    (folder / "01_small.ipynb").write_text(notebook("n = 1", "print(n)"))
    (folder / "02_other.ipynb").write_text(notebook("m = 1"))
    (folder / "profiles" / "demo.yaml").write_text("n: 2\n")
    monkeypatch.setattr(layout, "shipped", lambda: folder)
    return folder


@pytest.fixture
def own(tmp_path, delivery, capsys):
    folder = tmp_path / "mine"
    assert cli.main(["init", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder)
    return folder


def upgraded(folder, capsys):
    assert cli.main(["upgrade", str(folder)]) == 0
    return capsys.readouterr().out.splitlines()


def test_commands_below_a_workspace_use_its_notebooks_and_its_runs(own, monkeypatch):
    monkeypatch.delenv("ARCNB_RUNS", raising=False)
    below = own / "notebooks" / "profiles"
    monkeypatch.chdir(below)
    assert find_notebook("small") == own / "notebooks" / "01_small.ipynb"
    assert runs_root() == own / "runs"


def test_a_folder_with_notebooks_is_not_overwritten(own, capsys):
    (own / "notebooks" / "01_small.ipynb").write_text("mine")
    assert cli.main(["init", str(own)]) == 2
    assert f"is there already; `arcnb upgrade {own}` brings newer notebooks" in capsys.readouterr().err
    assert (own / "notebooks" / "01_small.ipynb").read_text() == "mine"


def test_a_folder_with_notebooks_of_somebody_is_sent_elsewhere(tmp_path, delivery, capsys):
    (tmp_path / "other" / "notebooks").mkdir(parents=True)
    assert cli.main(["init", str(tmp_path / "other")]) == 2
    said = f"arcnb: {tmp_path}/other/notebooks is there already; name another folder\n"
    assert capsys.readouterr().err == said
    assert cli.main(["upgrade", str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err.endswith("`arcnb init DIR` makes one in another folder\n")


def test_a_place_where_nothing_can_be_made_is_one_sentence(tmp_path, delivery, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["init", str(tmp_path / "file" / "mine")]) == 2
    assert capsys.readouterr().err == f"arcnb: cannot make {tmp_path}/file/mine/runs: Not a directory\n"


def test_an_upgrade_brings_what_is_new_and_keeps_what_was_edited(own, delivery, capsys):
    assert upgraded(own, capsys) == []
    (delivery / "01_small.ipynb").write_text(notebook("n = 5", "print(n)"))
    (delivery / "03_new.ipynb").write_text(notebook("k = 1"))
    (own / "notebooks" / "02_other.ipynb").write_text(notebook("m = 7"))
    assert upgraded(own, capsys) == [
        "01_small.ipynb: brought",
        "02_other.ipynb: edited by you, unchanged in this version; kept",
        "03_new.ipynb: brought",
    ]
    assert (own / "notebooks" / "01_small.ipynb").read_text() == notebook("n = 5", "print(n)")
    assert (own / "notebooks" / "02_other.ipynb").read_text() == notebook("m = 7")
    assert (own / "notebooks" / "03_new.ipynb").is_file()


def test_what_changed_in_an_edited_notebook_is_shown_once(own, delivery, capsys):
    mine = notebook("n = 1", "print(n + 1)")
    (own / "notebooks" / "01_small.ipynb").write_text(mine)
    (delivery / "01_small.ipynb").write_text(notebook("n = 5", "print(n)"))
    lines = upgraded(own, capsys)
    assert lines[0].startswith("01_small.ipynb: edited by you, and changed in this version")
    assert "-n = 1" in lines
    assert "+n = 5" in lines
    assert (own / "notebooks" / "01_small.ipynb").read_text() == mine
    assert upgraded(own, capsys) == ["01_small.ipynb: edited by you, unchanged in this version; kept"]


def test_a_notebook_that_was_only_run_is_not_an_edited_one(own, delivery, capsys):
    (own / "notebooks" / "01_small.ipynb").write_text(notebook("n = 1", "print(n)", count=3))
    (delivery / "01_small.ipynb").write_text(notebook("n = 5", "print(n)"))
    assert upgraded(own, capsys) == ["01_small.ipynb: brought"]


def test_what_its_user_removed_stays_away_and_what_is_not_delivered_any_more_stays(own, delivery, capsys):
    (own / "notebooks" / "02_other.ipynb").unlink()
    (delivery / "profiles" / "demo.yaml").unlink()
    assert upgraded(own, capsys) == ["profiles/demo.yaml: no longer delivered; yours is kept"]
    (delivery / "02_other.ipynb").write_text(notebook("m = 2"))
    assert upgraded(own, capsys) == []
    assert not (own / "notebooks" / "02_other.ipynb").exists()
    assert (own / "notebooks" / "profiles" / "demo.yaml").is_file()


def test_only_workspaces_are_upgraded(tmp_path, delivery):
    with pytest.raises(ArcnbError, match="is no workspace; `arcnb init"):
        layout.upgrade(tmp_path)


def test_an_empty_text_lays_out_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", ""]) == 2
    assert "an empty text names no folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
