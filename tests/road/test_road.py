"""The whole road by `arcnb run`, as a user goes it. (about a minute and a half)

01 -> 03 -> 04 -> 06 with the transformers backend and the embedded model; `make demo` takes vLLM. Trainings
are in test_sft.py and test_grpo.py.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import load_tasks

pytestmark = pytest.mark.slow


def arcnb(runs, *arguments, **settings):
    """A finished `arcnb` process; its run folders are below `runs`."""
    command = [sys.executable, "-m", "arcnb.lab.cli", *map(str, arguments)]
    environment = os.environ | {"ARCNB_RUNS": str(runs)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, **settings)


def done(runs, notebook, **parameters):
    """The run folder of a notebook that ran to its end."""
    pairs = [item for name, value in parameters.items() for item in ("-p", name, value)]
    result = arcnb(runs, "run", notebook, "--quiet", *pairs)
    assert result.returncode == 0, result.stderr[-3000:]
    return Path(result.stdout.strip().splitlines()[-1])


def outcome(run):
    return json.loads((run / "manifest.json").read_text())["outcome"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def data(runs):
    return done(runs, "01", n_tasks=60, max_prompt_length=420)


@pytest.fixture(scope="module")
def sampled(runs, data):
    sizes = {
        "n_tasks": 2,
        "n_predictions": 3,
        "per_prompt": 3,
        "max_completion_length": 64,
        "max_length": 1024,
    }
    return done(runs, "03", tasks=data / "tasks.parquet", backend="transformers", **sizes)


def test_data_holds_only_tasks_that_fit(data):
    tasks = load_tasks(data / "tasks.parquet")
    facts = outcome(data)
    assert len(tasks) == facts["tasks"] > 3
    assert facts["longest_prompt"] <= 420
    assert len(facts["left_out"]) + len(tasks) == 60


def test_inference_leaves_every_prediction_judged(sampled):
    rows = list(PredictionSet(sampled / "predictions").iter_predictions())
    assert Counter(row.task_id for row in rows) == dict.fromkeys({row.task_id for row in rows}, 3)
    assert len(rows) == 6
    assert all(row.status and row.completion is not None for row in rows)
    assert outcome(sampled)["n_preds"] == 3
    assert outcome(sampled)["engine"].startswith("transformers ")


def test_a_set_of_the_whole_model_takes_no_predictions_of_one_in_four_bits(runs, data, sampled):
    asked = {"tasks": data / "tasks.parquet", "n_tasks": 2, "n_predictions": 3, "per_prompt": 3}
    asked |= {"max_completion_length": 64, "load_in_4bit": True, "output": sampled / "predictions"}
    pairs = [str(item) for name, value in asked.items() for item in ("-p", name, value)]
    result = arcnb(runs, "run", "03", "--quiet", *pairs)
    assert result.returncode == 1
    assert "begun with model 'default', not 'default (4 bit)'" in result.stderr.strip().splitlines()[-1]


@pytest.mark.long("whole notebooks, each in a kernel of its own")
def test_a_shard_without_a_task_is_done_and_says_so(runs, small_model):
    sizes = {
        "n_tasks": 1,
        "n_shards": 2,
        "shard": 1,
        "n_predictions": 2,
        "max_completion_length": 8,
        "max_length": 2048,
        "output": runs / "shards",
    }
    run = done(runs, "03", model=small_model.path, adapter="", backend="transformers", **sizes)
    assert outcome(run)["inference_asked"] == outcome(run)["n_preds"] == 0
    executed = (run / "03_inference.ipynb").read_text()
    assert "adapter none: predictions of 0 of 1 tasks" in executed
    assert "There are no predictions yet." in executed


@pytest.mark.long("whole notebooks, each in a kernel of its own")
def test_refinement_conversations_come_out_of_the_predictions(runs, data, sampled):
    given = {"tasks": data / "tasks.parquet", "predictions": sampled / "predictions"}
    refined = done(runs, "04", **given, chooser="diverse", keep_solved=True)  # the adapter may solve both
    assert outcome(refined)["conversations"] > 0
    assert (refined / "refine.parquet").is_file()


def test_evaluation_ends_with_the_table_a_page_and_a_valid_submission(runs, data, sampled):
    table = done(runs, "06", tasks=data / "tasks.parquet", predictions=sampled / "predictions")
    submission = json.loads((table / "submission.json").read_text())
    assert set(submission) == set(load_tasks(data / "tasks.parquet").ids)
    assert next(table.glob("*.html")).stat().st_size > 10_000


def test_a_prediction_set_of_other_tasks_ends_the_evaluation_in_one_sentence(runs, sampled):
    result = arcnb(
        runs, "run", "06", "--quiet", "-p", "tasks", "arc-agi-2/evaluation", "-p", "predictions", sampled
    )
    assert result.returncode == 1
    assert "which is not in the task set" in result.stderr.strip().splitlines()[-1]


@pytest.mark.long("whole notebooks, each in a kernel of its own")
@pytest.mark.parametrize(
    ("deadly", "stops"),
    [
        (signal.SIGKILL, 1),
        *(
            pytest.param(number, 2, marks=pytest.mark.repetition)
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
        ),
    ],
)
def test_the_inference_notebook_stopped_at_random_moments_ends_with_exactly_its_rows(
    tmp_path, small_model, deadly, stops
):
    sizes = {
        "n_tasks": 3,
        "n_predictions": 40,
        "per_prompt": 1,
        "max_completion_length": 16,
        "max_length": 2048,
    }
    settings = {"model": small_model.path, "adapter": "", "backend": "transformers"} | sizes
    arguments = ["run", "03", "--quiet", "--name", "killed"]
    arguments += [str(item) for name, value in settings.items() for item in ("-p", name, value)]
    moments = random.Random(int(deadly))
    for attempt in range(8):
        process = subprocess.Popen(
            [sys.executable, "-m", "arcnb.lab.cli", *arguments],
            env=os.environ | {"ARCNB_RUNS": str(tmp_path)},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if attempt < stops:
            if attempt:
                time.sleep(moments.uniform(4, 12))
            else:  # in the midst of its work
                while not any(tmp_path.glob("*-killed/predictions/round*.parquet")):
                    assert process.poll() is None
                    time.sleep(0.02)
                time.sleep(moments.uniform(0, 0.5))
            os.killpg(process.pid, deadly) if deadly == signal.SIGKILL else process.send_signal(deadly)
        code = process.wait(timeout=300)
        assert code or attempt, "it ended before it was stopped"
        if code == 0:
            break
        (folder,) = tmp_path.glob("*-killed")
        arguments = ["run", "--quiet", "--resume", str(folder)]
    keys = Counter(row.key for row in PredictionSet(folder / "predictions").iter_predictions())
    assert len(keys) == 3 * 40
    assert set(keys.values()) == {1}
    assert json.loads((folder / "manifest.json").read_text())["status"] == "done"
