"""What a notebook's checks refuse is refused before there is a run: by dry runs, and by whatever starts or
queues one."""

import json
import os
import subprocess
import sys

import nbformat
import pytest

from arcnb.lab import cli
from arcnb.lab.runs.finding import list_runs
from tests.paths import NOTEBOOKS

PARAMETERS = (
    "tasks = 'mine'  # a file\nother = ''  # another\nn = 3  # how many\nparts = 1  # into which it is cut\n"
)
CHECKS = """\
run = open_run("small")
print("never on standard output")
parts_of = n // run.parameters["parts"]
refuse([f"n={n} is not divisible by parts={parts}"] if n % parts else [])
check_source(tasks)
check_source(other or tasks)
"""


@pytest.fixture
def small(notebook, tmp_path):
    """A notebook with checks, and a task file beside it."""
    imports = "from arcnb.arc.tasks.task_set import check_source\nfrom arcnb.plans import refuse"
    path = notebook(imports, CHECKS, "run.record({'n': n})", parameters=PARAMETERS)
    content = nbformat.read(path, as_version=4)
    content.cells[-2].metadata["tags"] = ["checks"]
    nbformat.write(content, path)
    (tmp_path / "mine").write_text("{}")
    return path


@pytest.fixture
def said(capsys):
    """said("run", ...) -> (exit code, standard error); nothing is made."""

    def run(*arguments):
        code = cli.main([*map(str, arguments)])
        assert list_runs() == []
        return code, capsys.readouterr().err

    return run


REFUSED = [
    ("00", {"palette": "gray"}, "there is no palette 'gray'"),
    ("00", {"tasks": "arc-agi-1/trainig"}, "not one of the sources; did you mean 'arc-agi-1/training'?"),
    ("00", {"predictions": "x"}, "prediction set x does not exist"),
    ("01", {"library": "numpy"}, "library 'numpy' is not one that programs import"),
    ("01", {"template": "arc_cod"}, "there is no template arc_cod; known are arc_code"),
    ("01", {"difficulty": 2.0}, "difficulty (diff_ub) is within 0..1, not 2.0"),
    ("01", {"split": "trainabel"}, "split is 'trainabel', it must be one of trainable, held_out or empty"),
    ("01", {"tasks": "dls*4"}, "no task source 'dls', and no such file; did you mean 'dsl'?"),
    ("01", {"tasks": "barc:rows.jsonl"}, "rows.jsonl: no such file"),
    ("01", {"tasks": "dsl", "n_tasks": 0}, "source dsl never ends: say how many tasks"),
    ("01", {"model": "nowhere"}, "model folder nowhere does not exist"),
    ("02", {"tasks": "rearc"}, "source rearc never ends"),
    ("02", {"eval_tasks": "nowhere.parquet"}, "no task source 'nowhere.parquet', and no such file"),
    ("02", {"adapter": "nowhere"}, "adapter folder nowhere does not exist"),
    ("02", {"template": "x"}, "there is no template x"),
    ("02", {"packing": True, "max_steps": -1}, "packing needs max_steps"),
    ("02", {"sft_conversations": "x.parquet"}, "sft_conversations: x.parquet"),
    ("03", {"tasks": "nowhere.json"}, "nowhere.json: no such file, and not one of the sources"),
    ("03", {"adapter": "none, nowhere"}, "adapter folder nowhere does not exist"),
    ("03", {"model": ""}, 'model "" names no model'),
    ("03", {"n_shards": 2}, "n_shards is 2 and output is empty"),
    ("03", {"refine_from": "x", "turns": 2}, "prediction set x does not exist"),
    ("04", {"predictions": ""}, "no prediction set is named"),
    ("04", {"predictions": "x"}, "prediction set x does not exist"),
    ("04", {"successes": "sons"}, "successes come from children, siblings, both, n"),
    ("04", {"chooser": "worst"}, "chooser 'worst' does not exist; there are best"),
    ("04", {"turns_to_refine": "one"}, 'turns_to_refine takes numbers separated by commas'),
    ("04", {"refine_template": "x"}, "there is no template x"),
    ("05", {"gradient_accumulation_steps": 3}, "is not divisible by gradient_accumulation_steps=3; one"),
    ("05", {"tasks": "nowhere.parquet"}, "nowhere.parquet: no such file"),
    ("05", {"eval_tasks": "nowhere.parquet"}, "nowhere.parquet: no such file"),
    ("05", {"eval_tasks": ""}, 'eval_tasks "" names no task set; eval_steps 0 evaluates nothing'),
    ("05", {"learn_from": "nowhere"}, "prediction set nowhere does not exist"),
    ("05", {"model": "nowhere"}, "model folder nowhere does not exist"),
    ("05", {"adapter": "nowhere"}, "adapter folder nowhere does not exist"),
    ("05", {"template": "x"}, "there is no template x"),
    ("05", {"trainer": "unsloth", "num_processes": 2}, "num_processes=2 needs trainer='trl'"),
    ("06", {"predictions": "x"}, "prediction set x does not exist"),
    ("06", {"compare": "a = x"}, "compare: prediction set x of 'a' does not exist"),
    ("06", {"trained": "nowhere.parquet"}, "nowhere.parquet: no such file"),
    ("06", {"tasks": "nowhere.parquet"}, "nowhere.parquet: no such file"),
    ("07", {"tasks": "ladder/line"}, "no task source 'ladder/line'"),
    ("07", {"first_round": 3}, "first_round is 3, it must be a multiple of per_prompt, 4"),
    ("07", {"task_ids": "a, a"}, "task_ids names task 'a' twice"),
    ("07", {"model": "nowhere"}, "model folder nowhere does not exist"),
    ("08", {"runs": "nothing"}, "there is no run 'nothing'"),
    ("08", {"runs": ""}, "there are no runs to compare yet"),
    ("09", {"tasks": "simple*x"}, "'simple*x': generated problems are simple*N"),
    ("09", {"eval_tasks": "nowhere.jsonl"}, "problems 'nowhere.jsonl': no such file"),
    ("09", {"gradient_accumulation_steps": 3}, "is not divisible by gradient_accumulation_steps=3"),
    ("09", {"turns": 2}, "problems are trained on in one turn"),
    ("09", {"adapter": "nowhere", "evaluate_only": True}, "adapter folder nowhere does not exist"),
    ("09", {"n_predictions": 0, "evaluate_only": True}, "evaluate_only needs n_predictions above 0"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "parameters", "sentence"), REFUSED)
def test_a_dry_run_refuses_what_the_notebook_would(said, monkeypatch, tmp_path, number, parameters, sentence):
    monkeypatch.chdir(tmp_path)
    given = [
        text for name, value in parameters.items() for text in ("-p", name, json.dumps(value).strip('"'))
    ]
    code, told = said("run", NOTEBOOKS / f"{stem(number)}.ipynb", *given, "--dry-run")
    assert code == 2
    assert sentence in told
    assert told.startswith(f"arcnb: {stem(number)}.ipynb: ")


def stem(number):
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    return path.stem


def test_a_check_that_cannot_be_made_here_is_said(small, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    content = nbformat.read(small, as_version=4)
    content.cells[-2].source += "\nrun.path.read_bytes()"
    nbformat.write(content, small)
    assert cli.main(["run", str(small), "--dry-run"]) == 0
    assert "not all checks could be made here (FileNotFoundError: " in capsys.readouterr().err
    content.cells[-2].source = "%time check_source(tasks)"
    nbformat.write(content, small)
    assert cli.main(["run", str(small), "--dry-run"]) == 0
    assert "not all checks could be made here (SyntaxError: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "parameters"),
    [
        ("02", ["model", "org/name"]),  # whether the hub has it, is asked when it is fetched
        ("03", ["backend", "server", "-p", "adapter", "served"]),
        ("05", ["vllm_group_attention", "true"]),  # use_vllm is auto
        ("09", ["evaluate_only", "true", "-p", "gradient_accumulation_steps", "3"]),
        ("09", ["tasks", "simple*4"]),
    ],
)
def test_a_dry_run_leaves_to_the_node_what_only_that_can_tell(number, parameters):
    assert cli.main(["run", str(NOTEBOOKS / f"{stem(number)}.ipynb"), "-p", *parameters, "--dry-run"]) == 0


@pytest.mark.long("imports the rooms in a process of its own")
def test_the_checks_of_all_notebooks_can_be_made_here_load_no_torch_and_change_nothing(tmp_path):
    script = f"""
import sys
from arcnb.lab import cli
for path in {[str(path) for path in sorted(NOTEBOOKS.glob("0*.ipynb"))]!r}:
    colors = ["-p", "palette", "lightness"] if "00_" in path else []
    cli.main(["run", path, "--dry-run", *colors])
    loaded = [heavy for heavy in ("torch", "transformers", "vllm", "trl") if heavy in sys.modules]
    assert not loaded, f"{{path}} loads {{loaded}}"
from arcnb.arc.pictures.palettes import palette_name
assert palette_name() == "arc", "as before"
"""
    known = {name: value for name, value in os.environ.items() if name != "ARCNB_PALETTE"}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, env=known, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "not all checks could be made" not in result.stderr


def test_all_that_is_wrong_is_said_and_a_refused_run_leaves_nothing(small, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = (small, "-p", "n", 4, "-p", "parts", 3, "-p", "other", "theirs")
    for more in ((), ("--dry-run",)):
        code, told = said("run", *given, *more)
        assert code == 2
        assert "01_small.ipynb: n=4 is not divisible by parts=3;\ntheirs: no such file" in told
    code, told = said("sweep", small, "--grid", "parts=1,2")
    assert (code, "01_small.ipynb, parts_2: n=3 is not divisible by parts=2" in told) == (2, True)
    assert not (tmp_path / "runs").exists()


def test_what_the_checks_print_is_no_answer(small, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", str(small), "--dry-run"]) == 0
    assert "never on standard output" not in capsys.readouterr().out


def test_a_name_that_is_nearly_a_run_is_said(small, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", str(small), "--name", "data", "--quiet"]) == 0
    assert cli.main(["run", str(small), "-p", "tasks", "dta", "--dry-run"]) == 2
    assert "dta: no such file" in (told := capsys.readouterr().err)
    assert "; no run is called 'dta'; did you mean 'data'?" in told


def test_a_pipeline_is_refused_for_what_is_its_own_and_not_for_what_a_stage_has_yet_to_make(
    small, said, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "road.yaml"

    def foresee(**second):
        stages = {"a": {"notebook": small.name}, "b": {"notebook": small.name, **second}}
        path.write_text(json.dumps({"stages": stages}))
        return said("pipeline", path, "--dry-run")

    made = {"tasks": "${a.tasks}"}
    assert foresee(parameters=made)[0] == 0
    assert foresee(parameters=made | {"n": "${a.outcome.n}"})[0] == 0
    code, told = foresee(parameters=made | {"parts": 2})
    assert (code, "stage 'b': n=3 is not divisible by parts=2" in told) == (2, True)
    code, told = foresee(parameters=made | {"other": "out/later"})
    assert (code, "out/later: no such file" in told) == (2, True)
    code, told = foresee(parameters=made | {"other": "out/later"}, after=["a"])
    assert (code, "out/later: no such file" in told) == (0, True)


def test_submit_refuses_what_is_missing_and_only_says_what_a_node_may_have(
    small, said, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    submit = ("submit", "--on", "slurm", small, "--dry-run", "-p")
    for missing in ("theirs", "out/theirs"):
        code, told = said(*submit, "tasks", missing)
        assert (code, f"{missing}: no such file" in told) == (2, True)
    code, told = said(*submit, "tasks", "/scratch/theirs")
    assert (code, "/scratch/theirs: no such file" in told) == (0, True)
    code, told = said(*submit, "tasks", "/scratch/theirs", "-p", "parts", 2)
    assert (code, "n=3 is not divisible by parts=2" in told) == (2, True)
    assert said(*submit, "tasks", "out/theirs", "--after", 17)[0] == 0
    assert said("run", small, "-p", "tasks", "/scratch/theirs", "--dry-run")[0] == 2
    code, told = said("submit", "--on", "slurm", small, "--grid", "parts=1,2", "--dry-run")
    assert (code, "parts_2: n=3 is not divisible by parts=2" in told) == (2, True)
