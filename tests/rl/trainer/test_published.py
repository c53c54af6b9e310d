"""Published settings by name: each profile trains a tiny model with what it says."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from arcnb.lab.notebooks.files import declared_beside
from arcnb.lab.notebooks.profiles import profile_values
from arcnb.rl.trainer.trainer import _engines
from tests.paths import NOTEBOOKS

TOLD = {
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.0},
    "gspo": {"importance_sampling_level": "sequence", "epsilon": 3e-4, "steps_per_generation": 4},
    "scalerl": {"loss_type": "cispo", "epsilon_high": 5.0, "cast_lm_head_to_fp32": True},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
}


def given(name, notebook="05_grpo"):
    declared = declared_beside(NOTEBOOKS / f"{notebook}.ipynb", name)
    return profile_values(NOTEBOOKS / "profiles" / f"{name}.yaml", notebook, declared)


@pytest.mark.parametrize("name", TOLD)
def test_a_profile_of_published_settings_trains(train, tmp_path, name):
    asked = given(name)
    sizes = {"max_completion_length": 65} if name == "dapo" else {}
    report = train(tmp_path, **asked, **sizes, max_steps=2)
    assert report.status == "done"
    effective = report.config.set_index("setting")["effective"]
    assert {key: effective[key] for key in TOLD[name]} == {key: str(v) for key, v in TOLD[name].items()}


def test_float16_is_for_both_engines_on_a_gpu(quick, said, tmp_path, monkeypatch):
    assert said(**given("fp16")) == ["fp16=True needs a GPU; a CPU trains in float32"]
    assert said(fp16=True, trainer="unsloth") == [
        "fp16=True is for both engines, and does not go with trainer='unsloth', which computes in bfloat16"
    ]
    opened = {}

    def noted(**options):
        opened.update(options)
        return nullcontext()

    monkeypatch.setattr("arcnb.rl.trainer.trainer.engine_options", noted)
    parts = SimpleNamespace(plan=quick(tmp_path, fp16=True), adapter=None)
    with _engines(parts, on_cpu=False):
        assert opened == {"dtype": "float16"}
