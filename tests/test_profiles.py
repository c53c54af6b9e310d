"""Every profile fits the notebooks' parameters."""

import pytest
import yaml

from arcnb.lab.notebooks.files import declared_beside
from arcnb.lab.notebooks.profiles import profile_values
from tests.paths import NOTEBOOKS, ROOT

PROFILES = sorted((NOTEBOOKS / "profiles").glob("*.yaml"))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_every_name_and_value_of_a_profile_fits(profile):
    declared = declared_beside(NOTEBOOKS / "03_inference.ipynb", profile)
    assert {stem for stem in declared if profile_values(profile, stem, declared)}


def test_there_are_the_profiles_that_the_readme_names():
    assert {"demo", "h200"} <= {path.stem for path in PROFILES}


def test_the_recommended_profile_has_the_settings_of_its_experiment():
    sets = ROOT / "bench/experiments"
    common, ranks = (yaml.safe_load((sets / f"{name}.yaml").read_text()) for name in ("learn", "ranks"))
    experiment = common["05_grpo"] | ranks["parameters"] | ranks["sets"]["rank1-fast"]
    its_own = {"tasks", "eval_tasks", "n_eval_tasks", "num_generations_eval", "guard", "save_steps"}
    its_own |= {
        "workers",
        "max_length",
        "shared_prompt_tokens",
        "gradient_checkpointing",
        "vllm_gpu_memory_utilization",
        "vllm_kv_cache_gb",
    }
    profile = yaml.safe_load((NOTEBOOKS / "profiles/grpo.yaml").read_text())["05_grpo"]
    for name in experiment.keys() - its_own:
        assert profile[name] == experiment[name], name
