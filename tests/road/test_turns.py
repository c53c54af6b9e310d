"""Notebooks 03 and 06 on several sets, as a user goes: sample with two adapters, refine the same first turns,
compare adapters and arms."""

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import write_tasks
from tests.in_process import carried_out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def tasks(runs):
    train = [{"input": [[1, 2]], "output": [[2, 1]]}, {"input": [[3, 4, 5]], "output": [[5, 4, 3]]}]
    tasks = [
        Task.from_dict(f"mirror{n}", {"train": train, "test": [{"input": [[n, 7]], "output": [[7, n]]}]})
        for n in range(2)
    ]
    return write_tasks(tasks, runs / "tasks.parquet")


@pytest.fixture(scope="module")
def other(small_model, tmp_path_factory):
    """An adapter that says something else: its weights are drawn by torch."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("other")
    modules = ["q_proj", "v_proj", "o_proj", "down_proj"]
    config = LoraConfig(r=4, lora_alpha=64, target_modules=modules, init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(small_model.path), config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def parameters(tasks, small_model):
    sizes = {"n_predictions": 4, "per_prompt": 2, "max_completion_length": 12, "max_length": 1500}
    return sizes | {"tasks": tasks, "model": small_model.path, "backend": "transformers"}


@pytest.fixture(scope="module")
def sampled(runs, parameters, other):
    """A run of notebook 03 without an adapter and with one."""
    return carried_out(runs, "03", **parameters, adapter=f"none, {other}")


@pytest.fixture(scope="module")
def refined(runs, parameters, sampled):
    """A run of notebook 03 that refines what was sampled without an adapter."""
    first = sampled.path / "predictions" / "none"
    return carried_out(runs, "03", **parameters, adapter="", turns=2, refine_from=first)


@pytest.fixture(scope="module")
def table(runs, tasks, sampled, refined):
    """The outcome of notebook 06 on all of these."""
    sets, first = sampled.path / "predictions", sampled.path / "predictions" / "none"
    arms = f"sampled = {first}; refined = {first}[:2] + {refined.path / 'predictions'}"
    asked = {"predictions": sets, "compare": arms, "first": 2, "budget": 4, "n_explored": 0}
    return carried_out(runs, "06", tasks=tasks, **asked).outcome


def test_adapters_compared_in_one_run_are_told_apart(sampled, other):
    told = {}
    for name in ("none", other.name):
        rows = list(PredictionSet(sampled.path / "predictions" / name).iter_predictions())
        told[name] = [(row.key, row.color_map, row.pair_order, row.n_prompt_tokens) for row in rows]
        assert len({row.completion for row in rows}) > 1
        told[name, "texts"] = [row.completion for row in rows]
        assert f"adapter {name}: predictions of 2 of 2 tasks" in sampled.text
    assert told["none"] == told[other.name]
    assert told["none", "texts"] != told[other.name, "texts"]


def test_fewer_tasks_of_the_same_sets_count_those_alone(runs, parameters, sampled, other):
    asked = parameters | {"adapter": f"none, {other}", "n_tasks": 1, "output": sampled.path / "predictions"}
    fewer = carried_out(runs, "03", **asked).outcome
    assert fewer["none"]["inference_found"] == 4
    assert fewer["none"]["n_tasks"] == 1


def test_the_same_first_turns_are_refined(sampled, refined):
    rows = list(PredictionSet(refined.path / "predictions").iter_predictions())
    assert len(rows) == 4
    assert {row.turn for row in rows} == {1}
    first = PredictionSet(sampled.path / "predictions" / "none").iter_predictions()
    assert {row.parent for row in rows} <= {row.id for row in first if row.round == 0}
    assert refined.outcome["turns"][0]["made"] == 4
    assert (refined.path / "trees-none.html").stat().st_size > 500


def test_adapters_and_arms_are_evaluated_together(table, sampled, other):
    compared = {row["set"]: row["of"] for row in table["sets"]}
    assert compared.keys() == {"03_inference/none", f"03_inference/{other.name}"}
    arms = table["fair_comparison"]
    assert [one["budget"] for one in arms] == ["completions", "tokens"]
    assert {one["verdict"] for one in arms} == {"not shown (1 of at least 3 seeds)"}
