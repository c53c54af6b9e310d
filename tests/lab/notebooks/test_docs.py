"""Pages made from the notebooks are fresh; a stripped notebook is what git takes; nbdime reads its
changes."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from arcnb.lab import cli
from arcnb.lab.notebooks import stripping
from arcnb.lab.runs.finding import list_runs
from tests.paths import ROOT, tooling

docs = tooling("notebooks")


def test_the_made_pages_are_fresh():
    stale = docs.stale(ROOT / "notebooks")
    assert stale == [], "run `make docs` and commit what it writes"


@pytest.fixture
def project(tmp_path, notebook):
    """A copy of the launcher beside one small notebook."""
    folder = tmp_path / "project" / "notebooks"
    folder.mkdir(parents=True)
    (folder.parent / "docs" / "reference").mkdir(parents=True)
    shutil.copy(ROOT / "notebooks" / "00_start.ipynb", folder)
    notebook("run.record({'n': n})", parameters="n = 3  # how many | which\n").rename(
        folder / "01_small.ipynb"
    )
    return folder


def test_a_changed_notebook_makes_them_stale_until_they_are_made(project, capsys, monkeypatch):
    monkeypatch.setattr(docs, "notebooks_folder", lambda: project)
    assert docs.main(["--check"]) == 1
    assert "run `make docs`" in capsys.readouterr().out
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    page = (project.parent / "docs" / "reference" / "notebooks.md").read_text()
    assert "| `n` | `3` | `int` | how many \\| which |" in page
    launcher = nbformat.read(project / "00_start.ipynb", as_version=4)
    (listed,) = [cell.source for cell in launcher.cells if cell.id == docs.LIST_CELL]
    assert "|  | [Small](01_small.ipynb) | For a test. |" in listed
    text = (project / "01_small.ipynb").read_text()
    (project / "01_small.ipynb").write_text(text.replace("n = 3", "n = 4"))
    assert docs.stale(project) == [project.parent / "docs" / "reference" / "notebooks.md"]


def test_every_notebook_of_the_project_has_a_picture_and_a_sentence():
    for facts in docs.notebook_facts(ROOT / "notebooks"):
        assert facts.sentence.endswith("."), facts.path
        assert facts.picture is not None, f"{facts.path.name} has no notebooks/pictures/{facts.path.stem}.svg"
        assert facts.picture.stat().st_size < 10_000


def test_stripping_an_executed_copy_gives_the_source_back(notebook):
    path = notebook("print(n)", "run.record({'n': n})")
    stripping.strip_file(path)
    before = path.read_text()
    assert cli.main(["run", str(path), "-p", "n", "5", "--quiet"]) == 0
    (run,) = list_runs()
    assert "injected-parameters" in run.copy_path.read_text()
    assert stripping.strip_file(run.copy_path)
    assert json.loads(run.copy_path.read_text()) == json.loads(before)
    assert not stripping.strip_file(run.copy_path)


def test_git_shows_changes_of_a_notebook_cell_by_cell(notebook, tmp_path):
    repository = tmp_path / "repository"
    repository.mkdir()

    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        result = subprocess.run(command, cwd=repository, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    git("init", "-q")
    shutil.copy(ROOT / ".gitattributes", repository)
    path = notebook("print(n)").rename(repository / "a.ipynb")
    git("add", ".")
    git("commit", "-qm", "first")
    told = subprocess.run(["make", "-n", "git"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for line in filter(lambda line: line.startswith("git config"), told.splitlines()):
        name, value = shlex.split(line)[2:]
        git("config", name, value.replace(str(ROOT / ".venv/bin"), str(Path(sys.executable).parent)))
    path.write_text(path.read_text().replace("print(n)", "print(n + 1)"))
    shown = git("--no-pager", "diff")
    assert "nbdiff" in shown
    assert "modified /cells/3/source" in shown
    assert '"cell_type"' not in shown
