"""The whole road by `arcnb run`, as a user goes it. (about four minutes)

01 -> 03 -> 04 -> 05 -> 06 with the transformers backend; `make demo` takes vLLM. GRPO trains a random
two-layer model here; the rest uses the embedded one.
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


@pytest.mark.long("whole notebooks, each in a kernel of its own")
def test_grpo_trains_and_logs_reward_and_kl(runs, data, small_model):
    sizes = {
        "n_tasks": 2,
        "max_steps": 2,
        "num_generations": 2,
        "max_completion_length": 24,
        "max_prompt_length": 420,
    }
    model = {"model": small_model.path, "adapter": ""}
    trained = done(runs, "05", tasks=data / "tasks.parquet", **model, **sizes)
    facts = outcome(trained)
    assert facts["steps"] == 2
    assert {"reward", "kl"} <= set(facts)
    assert (trained / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.long("whole notebooks, each in a kernel of its own")
def test_made_tasks_are_counted_and_fine_tuning_learns_from_them(runs, small_model):
    made = done(runs, "01", tasks="rearc*6 + dsl*12", max_cells=800, max_prompt_length=3000)
    facts = outcome(made)
    assert facts["with_program"] == facts["tasks"] >= 12
    assert facts["tasks_per_second_per_core"] > 0
    sizes = {"max_steps": 2, "max_length": 2000, "n_shown": 1, "lora_r": 2, "packing": True}
    model = {"model": small_model.path, "backend": "transformers", "augment_programs": True}
    trained = done(
        runs, "02", tasks=made / "tasks.parquet", eval_tasks="dsl/held_out*4", max_cells=800, **model, **sizes
    )
    assert outcome(trained)["steps"] == 2
    assert (trained / "adapter" / "adapter_model.safetensors").is_file()
    assert len(PredictionSet(trained / "predictions").read()) == 4


def test_evaluation_ends_with_the_table_a_page_and_a_valid_submission(runs, data, sampled):
    table = done(runs, "06", tasks=data / "tasks.parquet", predictions=sampled / "predictions")
    submission = json.loads((table / "submission.json").read_text())
    assert set(submission) == set(load_tasks(data / "tasks.parquet").ids)
    assert next(table.glob("*.html")).stat().st_size > 10_000


@pytest.mark.long("whole notebooks, each in a kernel of its own")
def test_adapters_compared_in_one_run_are_told_apart_and_evaluated_together(runs, small_model, tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    # An adapter that says something else: its weights are drawn by torch.
    torch.manual_seed(0)
    modules = ["q_proj", "v_proj", "o_proj", "down_proj"]
    config = LoraConfig(r=4, lora_alpha=64, target_modules=modules, init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(small_model.path), config).save_pretrained(tmp_path)
    sizes = {
        "n_tasks": 2,
        "n_predictions": 3,
        "per_prompt": 2,
        "max_completion_length": 16,
        "max_length": 2048,
    }
    model = {"model": small_model.path, "adapter": f"none, {tmp_path}", "backend": "transformers"}
    run = done(runs, "03", **model, **sizes)
    told = {}
    for name in ("none", tmp_path.name):
        rows = list(PredictionSet(run / "predictions" / name).iter_predictions())
        told[name] = [(row.key, row.color_map, row.pair_order, row.n_prompt_tokens) for row in rows]
        assert len({row.completion for row in rows}) > 1
        told[name, "texts"] = [row.completion for row in rows]
        assert f"adapter {name}: predictions of 2 of 2 tasks" in (run / "03_inference.ipynb").read_text()
    assert told["none"] == told[tmp_path.name]
    assert told["none", "texts"] != told[tmp_path.name, "texts"]
    table = done(runs, "06", predictions=run / "predictions", n_explored=0)
    compared = {row["set"]: row["of"] for row in outcome(table)["sets"]}
    assert compared.keys() == {f"{run.name}/none", f"{run.name}/{tmp_path.name}"}
    fewer = done(runs, "03", **model, **sizes | {"n_tasks": 1}, output=run / "predictions")
    assert outcome(fewer)["none"]["inference_found"] == 3
    assert outcome(fewer)["none"]["n_tasks"] == 1


def test_a_prediction_set_of_other_tasks_ends_the_evaluation_in_one_sentence(runs, sampled):
    result = arcnb(
        runs, "run", "06", "--quiet", "-p", "tasks", "arc-agi-2/evaluation", "-p", "predictions", sampled
    )
    assert result.returncode == 1
    assert "which is not in the task set" in result.stderr.strip().splitlines()[-1]


@pytest.mark.long("whole notebooks, each in a kernel of its own")
@pytest.mark.parametrize(
    "deadly",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.repetition),
        pytest.param(signal.SIGINT, marks=pytest.mark.repetition),
    ],
)
def test_the_inference_notebook_stopped_at_random_moments_ends_with_exactly_its_rows(
    tmp_path, small_model, deadly
):
    sizes = {
        "n_tasks": 3,
        "n_predictions": 40,
        "per_prompt": 1,
        "max_completion_length": 16,
        "max_length": 2048,
    }
    settings = {"model": small_model.path, "adapter": "", "backend": "transformers"} | sizes
    first = ["run", "03", "--quiet", "--name", "killed"]
    first += [str(item) for name, value in settings.items() for item in ("-p", name, value)]
    moments = random.Random(int(deadly))
    for attempt in range(8):
        folders = sorted(tmp_path.glob("*-killed"))
        arguments = ["run", "--quiet", "--resume", str(folders[0])] if folders else first
        process = subprocess.Popen(
            [sys.executable, "-m", "arcnb.lab.cli", *arguments],
            env=os.environ | {"ARCNB_RUNS": str(tmp_path)},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if attempt < 2:
            time.sleep(moments.uniform(4, 12))
            os.killpg(process.pid, deadly) if deadly == signal.SIGKILL else process.send_signal(deadly)
        if process.wait(timeout=300) == 0:
            break
    (folder,) = tmp_path.glob("*-killed")
    keys = Counter(row.key for row in PredictionSet(folder / "predictions").iter_predictions())
    assert len(keys) == 3 * 40
    assert set(keys.values()) == {1}
    assert json.loads((folder / "manifest.json").read_text())["status"] == "done"
