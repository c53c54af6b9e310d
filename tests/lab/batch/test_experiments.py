"""The files of bench/experiments fit their notebooks, and its tables count what they say."""

import importlib
import json
from pathlib import Path

import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.lab import cli
from arcnb.lab.batch.parameter_sets import read_sweep_file
from arcnb.lab.batch.pipelines import read_pipeline
from arcnb.lab.batch.workers import Ending
from arcnb.lab.commands import batch
from arcnb.lab.notebooks.checks import refuse_early
from arcnb.lab.notebooks.profiles import read_yaml
from arcnb.lab.runs.finding import list_runs
from arcnb.synth.splits import is_held_out

FOLDER = Path(__file__).parents[3] / "bench" / "experiments"
CONTENT = {path: read_yaml(path) for path in sorted(FOLDER.glob("*.yaml"))}
SWEEPS = [path for path, content in CONTENT.items() if "notebook" in content]
PIPELINES = [path for path, content in CONTENT.items() if "stages" in content]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_sweep_can_be_queued(path, monkeypatch):
    monkeypatch.setattr(
        "arcnb.lab.batch.workers.run_queued", lambda runs, *_: queued.extend(runs) or Ending()
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    later = {"later": True}  # scripts and other experiments make some of the files
    monkeypatch.setattr(batch, "refuse_early", lambda *given, **how: refuse_early(*given, **how | later))
    queued = []
    content = read_sweep_file(path).content
    assert cli.main(["sweep", str(content["notebook"]), "--sets", str(path)]) == 1, "none was run"
    assert len(queued) == len(list_runs()) > 1


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_a_pipeline_can_be_read(path):
    assert len(read_pipeline(path).stages) > 1


def test_every_file_is_one_of_them():
    profiles = {"larger", "learn", "search_common", "turns_common"}
    assert {path.stem for path in {*CONTENT} - {*SWEEPS, *PIPELINES}} == profiles


def test_the_tasks_are_whole_and_apart():
    """What is kept is trained on by nobody, and reserved tasks are not among the trained ones."""
    sets = {path.stem: load_tasks(path) for path in (FOLDER / "tasks").iterdir()}
    assert {name: len(tasks) for name, tasks in sets.items()} == {"trained": 108, "kept": 36, "reserved": 80}
    ids = [task.task_id for tasks in sets.values() for task in tasks]
    assert len(set(ids)) == len(ids)
    known = {task.task_id: task for task in load_tasks("arc-agi-1/training")}
    assert all(known[task.task_id].fingerprint == task.fingerprint for own in sets.values() for task in own)
    assert {task.task_id for task in sets["reserved"]} == {
        task.task_id for task in known.values() if is_held_out(task)
    }


def test_tokens_are_those_that_were_written(tmp_path, monkeypatch):
    """Samples for two steps at once: the second writes none, and logs no length."""
    monkeypatch.syspath_prepend(str(FOLDER))
    per_hour = importlib.import_module("per_hour")
    parameters = {"prompts_per_step": 2, "num_generations": 4, "trl.steps_per_generation": 2, "seed": 0}
    (tmp_path / "manifest.json").write_text(json.dumps({"name": "lean.seed_0", "parameters": parameters}))
    rows = [{"completions/mean_length": 10.0}, {}, {"completions/mean_length": 30.0}]
    lines = [json.dumps({"step": step, "step_time": 1.0} | row) for step, row in enumerate(rows, 1)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(per_hour, "measured", lambda folder: {0: {}, 3: {}})
    (tmp_path / "held_out").mkdir()
    arms, step = per_hour.read_runs([tmp_path], None)
    [[run]] = arms.values()
    assert step == 3
    assert run["tokens"].tolist() == [160, 160, 640]


def test_an_arm_that_is_judged_in_eight_bits_has_a_start_of_its_own(tmp_path, monkeypatch, capsys):
    """Both arms gain a tenth; that eight bits solve two tenths less is no loss of learning."""
    monkeypatch.syspath_prepend(str(FOLDER))
    per_hour = importlib.import_module("per_hour")
    solved = {"whole": {0: 0.5, 10: 0.6}, "eight-bits": {0: 0.3, 10: 0.4}}
    for name in solved:
        folder = tmp_path / name
        (folder / "held_out").mkdir(parents=True)
        parameters = {"prompts_per_step": 1, "num_generations": 2, "seed": 0}
        parameters |= {"vllm.weight_dtype": "fp8"} if name == "eight-bits" else {}
        (folder / "manifest.json").write_text(
            json.dumps({"name": f"lean.seed_0.set_{name}", "parameters": parameters})
        )
        lines = [json.dumps({"step_time": 1.0, "completions/mean_length": 8.0})] * 10
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(
        per_hour,
        "measured",
        lambda folder: {
            step: dict.fromkeys("abc", (value, value, 1.0)) for step, value in solved[folder.name].items()
        },
    )
    names = [str(tmp_path / name) for name in solved]
    monkeypatch.setattr("sys.argv", ["per_hour.py", *names, "--against", "whole"])
    per_hour.main()
    printed = capsys.readouterr().out
    assert "| before | 1 |  |  |  | 50.0 |" in printed
    assert "| before fp8 | 1 |  |  |  | 30.0 |" in printed
    assert "| eight-bits | +0.0 (" in printed


@pytest.fixture
def solved_tasks(monkeypatch):
    """The script; called with its words."""
    monkeypatch.syspath_prepend(str(FOLDER))
    script = importlib.import_module("solved_tasks")

    def called(*words):
        monkeypatch.setattr("sys.argv", ["solved_tasks.py", *map(str, words)])
        script.main()

    return called


def own_tasks(folder, n):
    """A file of tasks and predictions that solve each of them half of the time."""
    pair = {"input": [[1]], "output": [[2]]}
    mappings = {f"mine{i}": {"train": [pair, pair], "test": [{**pair, "input": [[i]]}]} for i in range(n)}
    (folder / "mine.json").write_text(json.dumps(mappings))
    rows = [
        Prediction(one.task_id, one.fingerprint, 0, i, train_is_correct=i, test_is_correct=i)
        for one in load_tasks(folder / "mine.json")
        for i in range(2)
    ]
    PredictionSet(folder / "predictions").write_part(rows, round=0)
    return folder / "predictions", "--tasks", folder / "mine.json"


def test_own_tasks_that_are_solved_at_times_are_split(solved_tasks, tmp_path, small_model):
    predictions, *tasks = own_tasks(tmp_path, 5)
    solved_tasks(predictions, tmp_path / "out", *tasks, "--keep", 2, "--model", small_model.folder)
    kept, trained = (load_tasks(tmp_path / f"out/{name}.parquet").ids for name in ("kept", "trained"))
    assert (len(kept), len(trained)) == (2, 3)
    assert {*kept, *trained} == {f"mine{i}" for i in range(5)}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([], r"predictions: 5 tasks are solved at times, of which 36 are kept from training; "),
        (["--tasks", "nowhere.json"], r"^no task source 'nowhere\.json', and no such file"),
        (["--template", "nowhere"], r"^there is no template nowhere"),
        (
            ["--template", "large.jinja", "--keep", 1],
            r"predictions: no task of 5 has a prompt within 1000 tokens",
        ),
    ],
)
def test_what_cannot_be_split_is_one_sentence(
    more, sentence, solved_tasks, tmp_path, small_model, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large.jinja").write_text("{% block user %}" + "word " * 2000 + "{% endblock %}")
    words = [*own_tasks(tmp_path, 5), "--model", small_model.folder, *more]
    with pytest.raises(SystemExit, match=sentence):
        solved_tasks(words[0], "out", *words[1:])
    with pytest.raises(SystemExit, match=r"^nowhere: no such folder of predictions$"):
        solved_tasks("nowhere", "out", "--model", small_model.folder)
    assert not (tmp_path / "out").exists()
