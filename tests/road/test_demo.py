"""The demo has something to learn from. (about two minutes)

The stages of `make demo` up to GRPO, with its profile and its seed; of GRPO the first two steps of eight.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from arcnb.lab.batch.pipelines import read_pipeline
from arcnb.models.training.log import read_metrics
from tests.paths import NOTEBOOKS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # vLLM's threads wait for one another, and other tests use the cores
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="the demo samples by vLLM"),
]
DEMO = NOTEBOOKS / "pipelines" / "demo.yaml"


def done(runs, notebook, **parameters):
    """The run folder of a notebook with the demo's profile that ran to its end."""
    pairs = [str(item) for name, value in parameters.items() for item in ("-p", name, value)]
    command = [sys.executable, "-m", "arcnb.lab.cli", "run", notebook, "-f", "demo", "--quiet", *pairs]
    environment = os.environ | {"ARCNB_RUNS": str(runs)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, result.stderr[-3000:]
    return Path(result.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    tasks = done(runs, "01") / "tasks.parquet"
    sampled = done(runs, "03", tasks=tasks)
    return done(runs, "05", tasks=tasks, learn_from=sampled / "predictions", max_steps=2)


def test_groups_differ_and_the_gradient_is_not_zero_on_the_default_seed(trained):
    rows = [row for row in read_metrics(trained / "metrics.jsonl") if "reward" in row]
    assert len(rows) == 2
    for row in rows:
        assert row["groups_without_spread"] < 1
        assert row["reward_std"] > 0
        assert row["grad_norm"] > 0
    outcome = json.loads((trained / "manifest.json").read_text())["outcome"]
    assert outcome["adapter_moved"] is True
    assert "groups differed in 2 of 2 steps. No eval tasks were sampled" in outcome["headline"]


def test_no_warning_of_a_library_stands_on_the_page(trained):
    cells = json.loads((trained / "05_grpo.ipynb").read_text())["cells"]
    printed = [
        "".join(o["text"]) for cell in cells for o in cell.get("outputs", []) if o.get("name") == "stderr"
    ]
    assert [text for text in printed if "Warning" in text or "Triton" in text] == []


def test_the_road_of_the_demo_is_closed_and_in_order():
    pipeline = read_pipeline(DEMO)
    assert list(pipeline.stages) == ["data", "inference", "refinement", "grpo", "trained", "evaluation"]
    assert pipeline.stages["trained"].written["adapter"] == "${grpo.adapter}"
    assert "minutes" in pipeline.about
