"""Parameters that cannot work are refused by a notebook's first cells, before hours of work, in one
sentence."""

import importlib.util
import sys

import nbformat
import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import load_tasks, write_tasks
from arcnb.lab import cli
from arcnb.lab.notebooks.parameters import notebook_parameters
from arcnb.lab.runs.run import Run
from arcnb.rl import launch
from tests.paths import NOTEBOOKS
from tests.rl.conftest import gpus  # noqa: F401  a fixture

# Where the work of a notebook begins: all that can be refused without it, is refused before that cell.
WORK = {
    "01": "build_task_set(tasks",
    "03": "open_backend(plan.backend",
    "04": "refinement_rows(",
    "05": "run_grpo(plan, ",
    "06": "comparison_table(",
    "09": "run_grpo(plan, ",
}


@pytest.fixture
def before_work(tmp_path, monkeypatch):
    """before_work("03", workers=1) -> the names that the notebook has defined when its work begins."""
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "runs"))

    def names_of(number, **parameters):
        (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
        notebook = nbformat.read(path, as_version=4)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        declared = notebook_parameters(notebook, path.name)
        assert all(map(declared.knows, parameters))
        monkeypatch.setattr(Run, "parameters", property(lambda run: parameters))
        (first_work,) = (i for i, cell in enumerate(code) if WORK[number] in cell.source)
        names: dict = {}
        for cell in code[:first_work]:
            exec(compile(cell.source, path.name, "exec"), names)
            if "parameters" in cell.metadata.get("tags", []):
                names |= parameters
        return names

    return names_of


@pytest.fixture
def refusal(before_work):
    """refusal("03", workers=-1) -> the sentence that the notebook says before its work."""

    def refused(number, **parameters):
        try:
            before_work(number, **parameters)
        except ValueError as error:
            return str(error)
        raise AssertionError(f"nothing was refused before {WORK[number]}")

    return refused


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Task sets of notebook 05 that are soon measured."""
    folder = tmp_path_factory.mktemp("few")
    everything = load_tasks("arc-agi-1/training")
    smallest = sorted(everything, key=lambda task: sum(pair.input.size for pair in task.train))
    sets = {"tasks": smallest[:8], "eval_tasks": smallest[8:10]}
    return {name: str(write_tasks(some, folder / f"{name}.parquet")) for name, some in sets.items()}


@pytest.fixture
def refusal_05(before_work, few, monkeypatch):
    """refusal_05(beta=-1.0) -> the sentence that notebook 05 ends with before it trains, or in that cell."""
    for name in ("train_here", "_train_in_processes", "generation_server"):
        monkeypatch.setattr(launch, name, lambda *given, name=name: pytest.fail(f"{name} was reached"))
    (path,) = NOTEBOOKS.glob("05_*.ipynb")
    (cell,) = (c.source for c in nbformat.read(path, as_version=4).cells if WORK["05"] in c.source)

    def refused(**parameters):
        with pytest.raises(ValueError) as error:  # noqa: PT011  its sentence is returned
            exec(compile(cell, path.name, "exec"), before_work("05", **few | parameters))
        return str(error.value)

    return refused


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory):
    """Folders of predictions of a task, and of another version of it."""
    task = load_tasks("arc-agi-1/training")[0]
    folders = []
    for name, fingerprint in (("one", task.fingerprint), ("other", "0" * 64)):
        one = PredictionSet(tmp_path_factory.mktemp(name))
        one.write_part([Prediction(task.task_id, fingerprint, 0, 0, status="ok")], 0)
        folders.append(one.folder)
    return folders


def test_06_looks_at_the_arms_beside_the_sets(refusal, two_versions):
    one, other = two_versions
    said = refusal("06", predictions=str(one), compare=f"a = {one}; b = {one} + {other}")
    assert said.startswith(f"{other} answers another version of task 007bbfb7")
    assert "rule 'most' does not exist" in refusal("06", predictions=str(one), submission_rule="most")
    assert "submission_set 'b' is none of the sets" in refusal("06", predictions=str(one), submission_set="b")


@pytest.mark.parametrize(
    ("notebook", "parameters", "sentence"),
    [
        ("01", {"library": "numpy"}, "library 'numpy' is not one that programs import"),
        ("01", {"template": "arc_cod"}, "there is no template arc_cod; known are arc_code"),
        ("03", {"workers": -1}, "parameter 'workers' must be at least 0"),
        ("03", {"temperature": -1.0}, "parameter 'temperature' must be at least 0"),
        ("03", {"refine_from": "x"}, "refine_from needs turns of at least 2: there is nothing to refine"),
        ("03", {"refine_from": "x", "turns": 2}, "prediction set x does not exist"),
        ("03", {"last_share": 0.5, "turns": 2}, "last_share goes with turns=1, stop_after=0 and n_shards=1"),
        ("03", {"n_shards": 2}, "n_shards is 2 and output is empty: give all shards the same output"),
        ("03", {"max_length": 600}, "no prompt fits: the prompts of 4 tasks have "),
        ("04", {"successes": "sons"}, "successes come from children, siblings, both, n"),
        ("04", {"successes_per_task": 0}, "must be at least 1, not 0"),
    ],
)
def test_what_cannot_work_is_refused_before_the_work(refusal, notebook, parameters, sentence):
    assert sentence in refusal(notebook, **parameters)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"backend": "vlm"}, "backend='vlm' does not exist; there are auto, "),
        ({"backend": "server"}, "backend='server' does not exist; there are auto, vllm, transformers"),
        ({"vllm_mode": "server", "use_vllm": False}, "vllm_mode='server' needs use_vllm=True"),
    ],
)
def test_09_asks_for_its_last_evaluation_and_its_server_before_training(refusal, parameters, sentence):
    assert sentence in refusal("09", tasks="simple*4", check_solutions=False, **parameters)


@pytest.mark.parametrize("notebook", ["02", "03", "07", "09"])
def test_a_backend_that_does_not_exist_is_refused_by_a_dry_run(notebook, capsys):
    assert cli.main(["run", notebook, "-p", "backend", "vlm", "--dry-run"]) == 2
    assert "backend='vlm' does not exist; there are auto, vllm, " in capsys.readouterr().err


@pytest.mark.parametrize("notebook", ["02", "07", "09"])
def test_a_server_samples_from_no_adapter_of_this_run(notebook, capsys):
    assert cli.main(["run", notebook, "-p", "backend", "server", "--dry-run"]) == 2
    assert "backend='server' does not exist; there are auto, vllm, transformers" in capsys.readouterr().err


UNSLOTH = {"trainer": "unsloth"}


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        (
            {"num_generations": 5, "gradient_accumulation_steps": 2},
            "num_generations=5 is not divisible by gradient_accumulation_steps=2",
        ),
        (
            {"num_generations": 5, "num_processes": 2},
            "num_generations=5 is not divisible by gradient_accumulation_steps=1 x num_processes=2",
        ),
        (
            {"max_completion_length": 9000},
            "max_completion_length=9000 leaves no room for a prompt in a context",
        ),
        ({"num_processes": 2, "tree": 1}, "tree=1 needs turns=2, turn_reward='last' and one process"),
        (
            UNSLOTH | {"num_processes": 2},
            "num_processes=2 needs trainer='trl': trainer='unsloth' trains in one",
        ),
        (UNSLOTH | {"use_vllm": True, "vllm_mode": "server"}, "vllm_mode='server' needs trainer='trl', not"),
    ],
)
def test_05_is_refused_before_anything_starts(refusal_05, monkeypatch, parameters, sentence):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # which also limits num_processes
    assert refusal_05(**parameters).startswith(sentence)


def test_05_needs_the_package_of_its_trainer(refusal_05, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: find_spec(name) if name != "unsloth" else None
    )
    monkeypatch.delitem(sys.modules, "unsloth", raising=False)
    assert refusal_05(**UNSLOTH) == "trainer='unsloth' needs the package unsloth, which is not installed"


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        (
            {},
            "vllm_gpu_memory_utilization 0.3 asks for 24.0 of 80.0 GiB on GPU 0, but only 16.0 GiB are free",
        ),
        (
            {"num_processes": 2, "vllm_gpu_memory_utilization": 0.15},
            "vllm_gpu_memory_utilization 0.15 asks for",
        ),
        (
            {"vllm_mode": "server", "vllm_gpu_memory_utilization": 0.5},
            "vllm_gpu_memory_utilization 0.5 asks for 40.0 of 80.0 GiB on GPU 1, but only 8.0 GiB are free; "
            "lower it to 0.1",
        ),
    ],
)
def test_05_is_refused_a_share_of_memory_that_is_not_free(refusal_05, gpus, parameters, sentence):  # noqa: F811
    gpus("0, GPU-1, 81920, 16384", "1, GPU-2, 81920, 8192")
    assert refusal_05(use_vllm=True, **parameters).startswith(sentence)
