"""Rollout metrics against the golden vectors. Run: pytest tests/rl/test_rl_rollout_metrics.py"""

import gzip
import json
from pathlib import Path

import pytest

from arcnb.rl.rollout_metrics import ngram_statistics, rollout_metrics

GOLDEN = Path(__file__).parents[1] / "golden"
METRIC_CASES = json.loads(gzip.decompress((GOLDEN / "arc25_metrics.json.gz").read_bytes()))["cases"]
CASES = json.loads((GOLDEN / "arc25_rewards.json").read_text())["cases"]


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["fn"] == "training_log_metrics"], ids=lambda c: c["id"]
)
def test_metrics_agree_with_the_golden_vector(case):
    args = case["args"]
    values = rollout_metrics(
        args["rewards"],
        args["completion_ids"],
        solved=[reward == 10.0 for reward in args["rewards"]],
        memory_errors=[result.get("error_type") == "MemoryError" for result in args["results"]],
        max_completion_length=args["max_completion_length"],
    )
    assert values.keys() == case["expect"]["value"].keys()
    for name, expected in case["expect"]["value"].items():
        assert values[name] == pytest.approx(expected, abs=1e-9), name


def test_solved_is_a_flag_of_the_prediction_and_not_the_number_ten():
    values = rollout_metrics([10.0, 0.9], [[1], [1, 2]], [False, True], [False, False], 8)
    assert values["solved_tasks_ratio"] == [0.5]
    assert values["solved_tasks_completion_length_mean"] == [2]


def test_a_repeating_completion_has_few_distinct_ngrams():
    assert ngram_statistics([1, 2, 3] * 10, 3)["unique_ngram_ratio"] == pytest.approx(3 / 28)
    assert ngram_statistics([1, 2], 3)["most_repeated_ngram_count"] == 0


@pytest.mark.parametrize("case", [c for c in METRIC_CASES if c["fn"] == "ngram_stats"], ids=lambda c: c["id"])
def test_ngram_statistics_agree_with_the_golden_vector(case):
    expected = case["expect"]["value"]
    assert ngram_statistics(case["args"]["tokens"], case["args"]["n"]) == pytest.approx(expected, abs=1e-9)
