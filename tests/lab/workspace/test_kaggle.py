"""A Kaggle bundle: what it refuses, what it holds, and its kernel run as Kaggle runs it."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from arcnb.arc.scores.submission import validate_submission
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.workspace import kaggle
from arcnb.lab.workspace.layout import init
from arcnb.models.prompts.rendering import template_path
from arcnb.search import SearchPlan
from tests.search.learning_engine import small_tasks

SMALL = {
    "backend": "transformers", "n_predictions": 4, "first_round": 2, "per_round": 2, "per_prompt": 2,
    "lora_r": 2,
    "max_completion_length": 4, "max_length": 1024, "num_processes": 1, "workers": 1, "n_pictures": 1,
    "arms": "learn",
}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "plan", "sentence"),
    [
        ({"gpu": "A100"}, {}, "--gpu must be L4x4 or T4x2, got 'A100'"),
        ({"hours": 12.0}, {}, "--hours must be above 0 and at most 11.5"),
        ({}, {"n_predictions": 100000}, "Kaggle has 20 for output; lower n_predictions"),
        ({"gpu": "T4x2"}, {"vllm_gpu_memory_utilization": 1e-6}, "T4x2: the weights need"),
    ],
)
def test_what_cannot_fit_on_kaggle_is_refused(small_model, asked, plan, sentence):
    bundle = kaggle.KaggleBundle(small_model.path, "", **asked)
    (problem,) = bundle.problems(SearchPlan.of(SMALL | plan))
    assert sentence in problem


def test_what_fits_is_not_refused(small_model):
    assert kaggle.KaggleBundle(small_model.path, "").problems(SearchPlan.of(SMALL)) == []


@pytest.fixture
def wheels(tmp_path):
    """A wheelhouse of one package, to be seen by the kernel."""
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    with zipfile.ZipFile(folder / "carried-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried.py", "")
        wheel.writestr(
            "carried-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n"
        )
        wheel.writestr("carried-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("carried-1.0.dist-info/RECORD", "")
    return folder


@pytest.mark.long("a whole search of notebook 07, in a process of its own")
def test_the_kernel_leaves_a_submission_that_is_scored_without_having_seen_the_answers(tmp_path, small_model):
    out = tmp_path / "out"
    kaggle.write_bundle(kaggle.KaggleBundle(small_model.path, "", parameters=SMALL, user="me"), out)
    about = json.loads((out / "kernel" / "kernel-metadata.json").read_text())
    assert about["dataset_sources"] == ["me/arcnb-submission-bundle"]
    assert about["enable_internet"] is False
    tasks = TaskSet("small", tuple(small_tasks()))
    work = tmp_path / "work"
    score = kaggle.rehearse(out, tasks, 0.5, work)
    assert score.n_outputs == sum(len(task.test) for task in tasks)
    validate_submission(json.loads((work / "working" / "submission.json").read_text()), tasks)
    assert not list((work / "input").glob("*solutions*"))
    (run,) = (work / "working" / "runs").glob("*07*")
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "done"
    assert manifest["notebook"]["path"].startswith(str(work / "input" / "bundle" / "package"))
    with pytest.raises(FileExistsError):
        kaggle.rehearse(out, tasks, 0.5, work)


@pytest.mark.long("it makes an environment")
def test_carried_wheels_are_installed_and_a_failed_search_leaves_a_valid_submission(
    tmp_path, small_model, wheels
):
    """In an environment that holds these wheels and nothing else, arcnb cannot start."""
    bundle = kaggle.KaggleBundle(small_model.path, "", parameters=SMALL, wheels=wheels)
    kaggle.write_bundle(bundle, tmp_path / "out")
    tasks = TaskSet("small", tuple(small_tasks()))
    with pytest.raises(ArcnbError, match="arcnb ended with 1: what had been found"):
        kaggle.rehearse(tmp_path / "out", tasks, 0.1, tmp_path / "work")
    assert (tmp_path / "work" / "scratch" / "site" / "carried.py").is_file()
    validate_submission(json.loads((tmp_path / "work" / "working" / "submission.json").read_text()), tasks)


@pytest.mark.long("it makes an environment")
def test_wheels_for_another_python_are_told(tmp_path, small_model, wheels):
    bundle = kaggle.KaggleBundle(small_model.path, "", wheels=wheels, python="3.9")
    kaggle.write_bundle(bundle, tmp_path / "out")
    with pytest.raises(ArcnbError, match=r"the wheels are for Python 3\.9"):
        kaggle.rehearse(tmp_path / "out", TaskSet("small", tuple(small_tasks())), 0.1, tmp_path / "work")


def test_wheels_for_another_python_are_refused_before_they_are_sent(small_model, wheels):
    (wheels / "native-1.0-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    (wheels / "stable-1.0-cp39-abi3-manylinux_2_28_x86_64.whl").touch()
    bundle = kaggle.KaggleBundle(small_model.path, "", wheels=wheels, python="3.12")
    (problem,) = bundle.problems(SearchPlan.of(SMALL))
    assert problem.endswith(
        "not for Python 3.12 (--python): native-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    )


def without_its_description(dataset):
    (dataset / "bundle.json").unlink()


def with_a_broken_wheel(dataset):
    (dataset / "wheels" / "carried-1.0-py3-none-any.whl").write_bytes(b"half of it")


@pytest.mark.long("it makes an environment")
@pytest.mark.parametrize(
    ("lacks", "sentence"),
    [
        (without_its_description, "add the data set of `arcnb bundle kaggle` to this notebook"),
        (with_a_broken_wheel, "the wheels of the bundle cannot be installed"),
    ],
)
def test_an_incomplete_bundle_leaves_a_padded_submission(tmp_path, small_model, wheels, lacks, sentence):
    python = ".".join(map(str, sys.version_info[:2]))
    carried = wheels if lacks is with_a_broken_wheel else None  # no environment where none is needed
    bundle = kaggle.KaggleBundle(small_model.path, "", wheels=carried, python=python)
    lacks(kaggle.write_bundle(bundle, tmp_path / "out") / "dataset")
    tasks = TaskSet("small", tuple(small_tasks()))
    with pytest.raises(ArcnbError, match=sentence):
        kaggle.rehearse(tmp_path / "out", tasks, 0.1, tmp_path / "work")
    validate_submission(json.loads((tmp_path / "work" / "working" / "submission.json").read_text()), tasks)


def test_a_kernel_without_the_competitions_data_says_so():
    kernel = kaggle.TEMPLATES / "kaggle_kernel.py"
    result = subprocess.run([sys.executable, kernel], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == (
        "no *test_challenges.json below /kaggle/input: add the competition's data to this notebook\n"
    )


def test_a_bundle_of_another_version_leaves_a_padded_submission_and_says_so(tmp_path, small_model):
    out = kaggle.write_bundle(kaggle.KaggleBundle(small_model.path, ""), tmp_path / "out")
    made = out / "dataset" / "bundle.json"
    made.write_text(made.read_text().replace('"kernel": "', '"kernel": "older'))
    tasks = TaskSet("small", tuple(small_tasks()))
    with pytest.raises(
        ArcnbError, match="the bundle is of another version than this kernel: send both again"
    ):
        kaggle.rehearse(out, tasks, 0.1, tmp_path / "work")
    validate_submission(json.loads((tmp_path / "work" / "working" / "submission.json").read_text()), tasks)


def test_a_bundle_has_every_parameter_it_is_given_however_it_is_called(tmp_path, small_model):
    command = ["bundle", "kaggle", str(tmp_path / "out"), "--model", small_model.path, "--adapter", ""]
    command += ["-p", "temperature", "0.5", "-p", "lora_r", "4", "-p", "budget.n_predictions", "64"]
    assert cli.main([*command, "-p", "feedback", "{answers_per_task: 3}"]) == 0
    made = json.loads((tmp_path / "out" / "dataset" / "bundle.json").read_text())
    plan = SearchPlan.of(made["parameters"])
    assert (plan.sampling.temperature, plan.lora.r, plan.budget.n_predictions) == (0.5, 4, 64)
    assert plan.feedback.answers_per_task == 3


def test_a_bundle_has_the_model_of_its_profile(tmp_path, small_model):
    profile = tmp_path / "mine.yaml"
    profile.write_text(f"07_search_and_learn: {{model: '{small_model.path}', adapter: ''}}\n")
    assert cli.main(["bundle", "kaggle", str(tmp_path / "out"), "-f", str(profile)]) == 0
    sent = tmp_path / "out" / "dataset" / "model" / "config.json"
    assert sent.read_bytes() == (small_model.folder / "config.json").read_bytes()


def test_a_bundle_has_the_notebook_of_the_workspace(tmp_path, small_model, monkeypatch):
    monkeypatch.chdir(init(tmp_path / "mine"))
    edited = Path("notebooks/07_search_and_learn.ipynb")
    edited.write_text(edited.read_text().replace("n_predictions = 16 ", "n_predictions = 99 "))
    out = kaggle.write_bundle(kaggle.KaggleBundle(small_model.path, ""), Path("notebooks/out").resolve())
    sent = out / "dataset" / "package" / "arcnb" / edited
    assert sent.read_text() == edited.read_text()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("arms", "both"), "arms are alone and learn, not both"),
        (("template", "TEMPLATE"), "is a file of yours, which no bundle carries"),
        (("task_ids", "00576224"), "-p task_ids cannot be given: the kernel takes all tasks"),
        (("time_budget_hours", "3"), "-p time_budget_hours cannot be given"),
    ],
)
def test_what_the_kernel_would_refuse_or_leave_out_is_refused(tmp_path, small_model, capsys, given, sentence):
    template = shutil.copy(template_path("coder"), tmp_path / "mine.jinja")
    given = [word.replace("TEMPLATE", str(template)) for word in given]
    command = ["bundle", "kaggle", str(tmp_path / "out"), "--model", small_model.path, "--adapter", ""]
    assert cli.main([*command, "-p", *given]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("asked", [["--rehearse", "-1"], ["--rehearse", "1", "--rehearse-hours", "0"]])
def test_a_rehearsal_without_tasks_or_time_is_refused_before_the_bundle_is_written(
    tmp_path, small_model, capsys, asked
):
    command = ["bundle", "kaggle", str(tmp_path / "out"), "--model", small_model.path, "--adapter", ""]
    assert cli.main([*command, *asked]) == 2
    assert "--rehearse must be at least 0, and --rehearse-hours above 0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_python_that_makes_no_environment_is_told(tmp_path, small_model, wheels, monkeypatch):
    bundle = kaggle.KaggleBundle(small_model.path, "", wheels=wheels)
    kaggle.write_bundle(bundle, tmp_path / "out")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ensurepip is not available\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ArcnbError, match="can be made for the rehearsal: ensurepip is not available"):
        kaggle.rehearse(tmp_path / "out", TaskSet("small", tuple(small_tasks())), 0.1, tmp_path / "work")


def test_the_command_writes_a_bundle_once(tmp_path, small_model, capsys):
    out = tmp_path / "out"
    command = ["bundle", "kaggle", str(out), "--model", small_model.path, "--adapter", "", "-f", "submission"]
    assert cli.main([*command, "-p", "n_predictions", "64"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    made = json.loads((out / "dataset" / "bundle.json").read_text())
    assert made["parameters"] == {"n_predictions": 64}
    assert made["profiles"] == ["profile0.yaml"]
    assert made["hours"] == 11.3
    assert f'kernel = \\"{made["kernel"]}\\"' in (out / "kernel" / "arcnb-submission.ipynb").read_text()
    check = "import nbformat, sys; nbformat.validate(nbformat.read(sys.argv[1], 4))"
    kernel = out / "kernel" / "arcnb-submission.ipynb"
    subprocess.run([sys.executable, "-c", check, kernel], check=True)
    assert cli.main(command) == 2
    assert "is there already" in capsys.readouterr().err
    out.rename(tmp_path / "out-rehearsal")
    assert cli.main([*command, "--rehearse", "2"]) == 2
    assert f"{out}-rehearsal is there already" in capsys.readouterr().err
