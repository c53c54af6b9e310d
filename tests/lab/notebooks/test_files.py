"""Notebooks that others wrote: what papermill runs is run."""

import errno
import json
import os
from pathlib import Path

import pytest

from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.notebooks.files import declared_beside, read_notebook, sign
from arcnb.lab.notebooks.parameters import notebook_parameters
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.workspace.folders import workspace


@pytest.fixture
def changed(notebook):
    """changed(name, change): a notebook whose JSON `change` has changed."""

    def write(name, change):
        path = notebook("print('n is', n)", "run.record({'n': n})", name=name)
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
        return path

    return write


def without_counts(content):
    for cell in content["cells"]:
        cell.pop("execution_count", None)
        cell.pop("outputs", None)
        cell.pop("id", None)


def capital_language(content):
    content["metadata"]["kernelspec"]["language"] = "Python"


def magic(content):
    content["cells"][1]["source"] = "%matplotlib inline\nn = 3  # how many\n"


def cell_magic(content):
    content["cells"][1]["source"] = "%%time\nn = 3  # how many\n"


@pytest.mark.parametrize(
    ("name", "change"),
    [("my notebook", dict), ("plain", without_counts), ("lang", capital_language), ("magic", magic)],
)
def test_what_papermill_runs_is_run(changed, name, change):
    assert cli.main(["run", str(changed(name, change)), "-p", "n", "7"]) == 0
    (run,) = list_runs()
    assert run.manifest["outcome"] == {"n": 7}
    assert run.name == name.replace(" ", "-")
    assert run.page_path.is_file()


def test_a_cell_magic_hides_no_parameter(changed):
    declared = notebook_parameters(read_notebook(changed("magic", cell_magic)))
    assert (declared["n"].default, declared["n"].comment) == (3, "how many")


NAMES = [
    "..", ".", "a b", "a/b", "-x", "x\n", "~", "a*", "$HOME", "é", "a;b", "`x`", "a:b",
    "a\\b", "%00", "\u202ea",
    ".hidden", "\ttab", "'", '"', "a,b",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_folder_should_have_is_refused(notebook, capsys, name):
    path = str(notebook("print(n)"))
    assert cli.main(["run", path, f"--name={name}"]) == 2
    assert cli.main(["submit", "--on", "slurm", path, "--dry-run", f"--name={name}"]) == 2
    said = capsys.readouterr().err
    assert said.count("may hold letters, digits, dots, hyphens and underscores only") == 2
    assert list_runs() == []


def test_a_name_too_long_for_a_folder_is_refused(notebook, capsys):
    assert cli.main(["run", str(notebook("print(n)")), "--name", "a" * 300]) == 2
    assert "cannot make a run folder" in capsys.readouterr().err


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A folder that one may not enter, also for root."""
    folder, stat = tmp_path / "closed", os.stat

    def refused(path, *given, **more):
        if folder in Path(str(path)).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *given, **more)

    folder.mkdir()
    monkeypatch.setattr(os, "stat", refused)
    return folder


LONG = "a" * 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "{closed}/a.ipynb"], "there is no notebook '{closed}/a.ipynb'"),
        (["run", LONG], f"there is no notebook '{LONG}'"),
        (["run", "{path}", "-f", "{closed}/a.yaml"], "there is no profile '{closed}/a.yaml'"),
        (["run", "{path}", "-f", LONG], f"there is no profile '{LONG}'"),
        (["run", "{path}", "-f", "~nobody-at-all"], "there is no profile '~nobody-at-all'"),
        (["run", "--resume", "{closed}/a"], "there is no run '{closed}/a'"),
        (["run", "--resume", LONG], f"there is no run '{LONG}'"),
        (
            ["submit", "--on", "slurm", "{path}", "--packed", LONG],
            "arcnb submit: there is no requirements file",
        ),
        (
            ["submit", "--on", "slurm", "{path}", "--venv", "{closed}/v"],
            "arcnb submit: {closed}/v is no venv",
        ),
        (["init", "{closed}/lab"], "cannot make {closed}/lab/runs: Permission denied"),
        (["upgrade", "{closed}/lab"], "{closed}/lab is no workspace"),
    ],
)
def test_what_one_may_not_enter_and_too_long_a_name_is_one_sentence(
    notebook, closed, monkeypatch, capsys, arguments, message
):
    def no_folder(path, *given, **more):
        if closed in Path(path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        mkdir(path, *given, **more)

    mkdir = os.mkdir
    monkeypatch.setattr(os, "mkdir", no_folder)
    path = notebook("print(n)")
    assert cli.main([one.format(closed=closed, path=path) for one in arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"arcnb: {message.format(closed=closed)}")
    assert said.count("\n") == 1
    assert list_runs() == []


def test_a_file_that_may_not_be_read_is_one_sentence(tmp_path, notebook, monkeypatch, capsys):
    def refused(path):
        if path.name == "rows.txt":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    read = Path.read_bytes
    notebook("print(n)")
    (tmp_path / "rows.txt").touch()
    stage = f"{{notebook: 01_small.ipynb, parameters: {{label: {tmp_path}/rows.txt}}}}"
    (tmp_path / "road.yaml").write_text(f"stages: {{a: {stage}}}\n")
    monkeypatch.setattr(Path, "read_bytes", refused)
    assert cli.main(["pipeline", str(tmp_path / "road.yaml"), "--dry-run"]) == 2
    said = f"arcnb: {tmp_path}/rows.txt cannot be read: Permission denied\n"
    assert capsys.readouterr().err == said
    job = ["submit", "--on", "slurm", str(tmp_path / "01_small.ipynb"), "--dry-run", "--packed"]
    assert cli.main([*job, str(tmp_path / "rows.txt")]) == 2
    assert capsys.readouterr().err == said


def test_a_folder_above_that_one_may_not_enter_is_no_workspace(closed, monkeypatch):
    (closed / "below").mkdir()
    monkeypatch.setattr(Path, "cwd", lambda: closed / "below")
    assert workspace() is None


def test_other_notebooks_are_read_for_a_profile_alone(notebook, tmp_path):
    path = notebook("print(n)")
    (tmp_path / "02_other.ipynb").write_text("{")
    notebook("print(n)", name="03_third")
    assert set(declared_beside(path)) == {"01_small"}
    assert set(declared_beside(path, ["p"])) == {"01_small", "03_third"}


def test_another_language_is_refused(changed):
    path = changed("r", lambda content: content["metadata"]["kernelspec"].update(language="R"))
    with pytest.raises(ArcnbError, match="is a notebook in R; arcnb runs Python notebooks"):
        read_notebook(path)


def test_a_home_that_keeps_no_signatures_fails_no_run(notebook, monkeypatch):
    def nowhere(*_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("nbformat.sign.NotebookNotary.__init__", nowhere)
    path = notebook("run.record({'n': n})")
    sign(path)
    assert cli.main(["run", str(path)]) == 0
    (run,) = list_runs()
    assert run.status == "done"
    assert run.page_path.is_file()


def test_annotations_of_typing_take_their_values(notebook):
    cell = (
        "from typing import List, Literal, Optional, Union\nn: Optional[int] = None\nnames: List[str] = []\n"
        "mode: Literal['a', 'b'] = 'a'\nwhere: 'pathlib.Path' = '.'\npair: tuple = (1, 2)\nodd: int = None\n"
        "own: Own = 3\nboth: Union[int, str] = 1\n"
    )
    path = notebook("print(n)", parameters=cell)
    from arcnb.lab.notebooks.parameters import check_parameters
    from arcnb.lab.notebooks.profiles import parse_value

    declared = notebook_parameters(read_notebook(path))
    good = {
        "n": "3", "names": "[a, b]", "mode": "b", "where": "007", "pair": "[3, 4]", "odd": "null", "own": "x",
        "both": "x",
    }  # fmt: skip
    values = {name: parse_value(text, declared[name]) for name, text in good.items()}
    assert check_parameters(values, declared, "x") == {
        "n": 3, "names": ["a", "b"], "mode": "b", "where": "007", "pair": [3, 4], "odd": None, "own": "x",
        "both": "x",
    }  # fmt: skip
    for name, value in {"n": "x", "names": "a", "mode": "c", "pair": 3, "both": 0.5}.items():
        with pytest.raises(ArcnbError, match=f"parameter '{name}' must be"):
            check_parameters({name: value}, declared, "x")
