"""Prediction sets take what they were begun with and nothing else."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.models.prompts.format import prompt_format
from arcnb.models.sampling.backends import Sampling
from arcnb.search.sampling.conditions import FILE_NAME, conditions, hold_to_conditions, tasks_asked
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.search.sampling.sampled_set import SampledSet
from tests.arc_tasks import short_tasks

PLAN = RoundPlan(n_predictions=4, per_prompt=8)
BEGUN = {"prompt_format": prompt_format(), "sampling": Sampling(), "model": "m", "adapter": ""}


def wanted(tasks, plan=PLAN, **changes):
    return conditions(SampledSet(tasks, None, **(BEGUN | changes)), plan)


@pytest.fixture
def tasks():
    return list(short_tasks())


@pytest.fixture
def predictions(tmp_path, tasks):
    """A set that was begun with the first three tasks."""
    begun = PredictionSet(tmp_path / "p")
    hold_to_conditions(begun, wanted(tasks[:3]))
    return begun


def hold(predictions, tasks, **changes):
    hold_to_conditions(predictions, wanted(tasks, **changes))


def test_added_tasks_are_refused_and_named(predictions, tasks):
    with pytest.raises(
        ArcnbError, match=f"begun with 3 tasks and without {tasks[3].task_id}; use a new folder"
    ):
        hold(predictions, tasks)


def test_changed_tasks_are_refused_and_named(predictions, tasks):
    changed = replace(tasks[1], train=tasks[1].train[::-1])
    with pytest.raises(ArcnbError, match=f"another version of {tasks[1].task_id}; use a new folder"):
        hold(predictions, [tasks[0], changed])


def test_a_set_without_the_file_is_known_by_its_rows(tmp_path, tasks):
    old = PredictionSet(tmp_path / "old")
    old.write_part([Prediction(tasks[0].task_id, "another", 0, 0)], 0)
    with pytest.raises(ArcnbError, match=f"another version of {tasks[0].task_id}"):
        hold(old, tasks)
    assert not (old.folder / FILE_NAME).exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sampling": Sampling(temperature=0.7)}, "begun with temperature 1.0, not 0.7"),
        ({"sampling": Sampling(min_p=0.1)}, "begun with min_p 0.0, not 0.1"),
        ({"adapter": "a"}, "begun with adapter '', not 'a'"),
        ({"model": "n"}, "begun with model 'm', not 'n'"),
        ({"plan": replace(PLAN, seed=1)}, "begun with seed 0, not 1"),
        ({"plan": replace(PLAN, per_prompt=4)}, "begun with per_prompt 8, not 4"),
        ({"plan": replace(PLAN, augment="none")}, "begun with augment 'all', not 'none'"),
        (
            {"prompt_format": prompt_format(encoding="color_names")},
            "begun with encoding 'minimal', not 'color_names'",
        ),
    ],
)
def test_other_prompts_and_samplings_are_refused_by_name(predictions, tasks, changes, sentence):
    with pytest.raises(ArcnbError, match=sentence):
        hold(predictions, tasks[:3], **changes)


def test_a_set_goes_on_whose_conditions_name_a_setting_that_is_no_more(predictions, tasks):
    path = predictions.folder / FILE_NAME
    old = json.loads(path.read_text())
    old["settings"]["stop"] = []
    path.write_text(json.dumps(old))
    hold(predictions, tasks[:3])


def test_an_edited_template_is_another_one(tmp_path, tasks):
    template = tmp_path / "own.jinja"
    predictions = PredictionSet(tmp_path / "p")
    for text in ("one", "two"):
        template.write_text(f"{{% block user %}}{text}{{{{ test_input }}}}{{% endblock %}}")
        changes = {"prompt_format": prompt_format(str(template))}
        if text == "one":
            hold(predictions, tasks, **changes)
        else:
            with pytest.raises(ArcnbError, match="begun with template_sha256"):
                hold(predictions, tasks, **changes)


def test_an_adapter_trained_again_under_its_path_is_another_one(tmp_path, tasks):
    adapter, predictions = tmp_path / "adapter", PredictionSet(tmp_path / "p")
    adapter.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (adapter / name).write_text("one")
    changes = {"adapter": str(adapter)}
    hold(predictions, tasks, **changes)
    hold(predictions, tasks, **changes)
    (adapter / "adapter_model.safetensors").write_text("another")
    with pytest.raises(ArcnbError, match="begun with adapter_sha256"):
        hold(predictions, tasks, **changes)


def test_a_model_saved_anew_under_its_path_is_another_one(tmp_path, tasks):
    model, predictions = tmp_path / "model", PredictionSet(tmp_path / "p")
    model.mkdir()
    weights = model / "model.safetensors"
    weights.write_bytes(b"begin" + bytes(5 << 20) + b"end")
    changes = {"model": str(model)}
    hold(predictions, tasks, **changes)
    hold(predictions, tasks, **changes)
    weights.write_bytes(b"begin" + bytes(5 << 20) + b"END")
    with pytest.raises(ArcnbError, match="begun with model_sha256"):
        hold(predictions, tasks, **changes)
    begun = json.loads((predictions.folder / FILE_NAME).read_text())
    del begun["settings"]["model_sha256"]  # as sets of before say nothing of it
    (predictions.folder / FILE_NAME).write_text(json.dumps(begun))
    hold(predictions, tasks, **changes)


def test_the_shipped_adapter_is_known_by_its_weights(tasks):
    settings = wanted(tasks, adapter="default")["settings"]
    assert len(settings["adapter_sha256"]) == 16
    assert "adapter_sha256" not in wanted(tasks)["settings"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"plan": replace(PLAN, n_predictions=40, shard=1, n_shards=3, stop_after=2)}, {"tasks": slice(1)}],
)
def test_more_predictions_other_shards_and_fewer_tasks_are_welcome(predictions, tasks, changes):
    chosen = changes.pop("tasks", slice(3))
    hold(predictions, tasks[chosen][::-1], **changes)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"tasks": 3, "settings": {}}', '{"tasks": {}, "settings": 1}']
)
def test_a_damaged_file_is_one_sentence(predictions, tasks, content):
    (predictions.folder / FILE_NAME).write_text(content)
    with pytest.raises(ArcnbError, match=f"{FILE_NAME} is damaged"):
        tasks_asked(predictions)
    with pytest.raises(ArcnbError, match=f"{FILE_NAME} is damaged"):
        hold(predictions, tasks)


def test_readers_of_the_folder_see_the_parts_only(predictions, tasks):
    predictions.write_part([Prediction(tasks[0].task_id, "f", 0, i, completion="x") for i in range(3)], 0)
    assert len(pd.read_parquet(predictions.folder)) == 3
    assert len(predictions) == 3
