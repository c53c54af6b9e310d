"""Rollout metrics against the golden vectors."""

import gzip
import json

import pytest

from arcnb.programs.executor.limits import STATUSES
from arcnb.rl.rewards.metrics import batch_metrics, ngram_statistics, rollout_metrics
from arcnb.rl.rewards.rollout import Rollout, Scores
from tests.paths import GOLDEN

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
        truncated=[len(ids) >= args["max_completion_length"] for ids in args["completion_ids"]],
    )
    assert values.keys() == case["expect"]["value"].keys()
    for name, expected in case["expect"]["value"].items():
        assert values[name] == pytest.approx(expected, abs=1e-9), name


def test_solved_is_a_flag_of_the_prediction_and_not_the_number_ten():
    values = rollout_metrics([10.0, 0.9], [[1], [1, 2]], [False, True], [False, False], [False, False])
    assert values["solved_tasks_ratio"] == [0.5]
    assert values["solved_tasks_completion_length_mean"] == [2]


def test_a_batch_is_described_by_group_by_verdict_and_by_quantile():
    """Three groups: equal rewards and outputs, all solved, and one that differs."""
    scores = Scores(True, True, 1.0, 1.0, 1.0, 1.0, 3, 1)
    cells = [  # row, status, fingerprint, solved, cheating, tokens, reward
        (7, "error", None, False, None, [5] * 4, 0.0),
        (7, "memory", None, False, None, [5, 6, 5, 6], 0.0),
        (3, "ok", "a", True, None, [1, 2, 3], 10.0),
        (3, "ok", "b", True, None, [1, 2, 3, 4], 8.0),
        (9, "ok", "a", False, "its text", [1], 1.0),
        (9, "ok", "a", False, None, [], 1.0),
    ]
    values = batch_metrics(
        [(status, fingerprint) for _, status, fingerprint, *_ in cells],
        [
            Rollout(scores, tokens, solved, cheat, truncated=len(tokens) == 4)
            for _, _, _, solved, cheat, tokens, _ in cells
        ],
        [reward for *_, reward in cells],
        [row for row, *_ in cells],
    )
    expected = {
        "groups_without_spread": 2 / 3,
        "groups_all_solved": 1 / 3,
        "unique_outputs": (0 + 1 + 1 / 2) / 3,
        "unique_wrong_outputs": (0 + 1 / 2) / 2,
        "cheating_ratio": 1 / 6,
        "memory_errors_ratio": 1 / 6,
        "solved_tasks_ratio": 1 / 3,
        "truncated_completions_ratio": 1 / 2,
        "reward_q10": 0.0,
        "reward_q25": 0.25,
        "reward_q50": 1.0,
        "reward_q75": 6.25,
        "reward_q90": 9.0,
        "unique_tokens_ratio": (1 / 4 + 1 / 2 + 1 + 1 + 1) / 5,
        "unique_3gram_ratio": (1 / 2 + 1 + 1 + 1) / 4,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)
    shares = {name: value for name, value in values.items() if name.startswith("status/")}
    assert shares.keys() == {f"status/{status}" for status in STATUSES}
    assert {name: share for name, share in shares.items() if share} == pytest.approx(
        {"status/error": 1 / 6, "status/memory": 1 / 6, "status/ok": 2 / 3}
    )


def test_outputs_of_wrong_completions_are_counted_alone_and_only_where_there_are_any():
    scores = Scores(True, True, 1.0, 1.0, 1.0, 1.0, 3, 1)

    def values(*groups):
        cells = [(row, output) for row, group in enumerate(groups) for output in group]
        return batch_metrics(
            [("ok", output) for _, output in cells],
            [Rollout(scores, [1], output == "right", None) for _, output in cells],
            [0.0] * len(cells),
            [row for row, _ in cells],
        )

    mixed = values(["right", "right", "a", "b"], ["a", "a", "a", None], ["right"] * 4)
    assert mixed["unique_wrong_outputs"] == pytest.approx((1 + 1 / 4) / 2)
    assert mixed["unique_outputs"] == pytest.approx((3 / 4 + 1 / 4 + 1 / 4) / 3)
    assert "unique_wrong_outputs" not in values(["right"] * 4)


def test_a_repeating_completion_has_few_distinct_ngrams():
    assert ngram_statistics([1, 2, 3] * 10, 3)["unique_ngram_ratio"] == pytest.approx(3 / 28)
    assert ngram_statistics([1, 2], 3)["most_repeated_ngram_count"] == 0


@pytest.mark.parametrize("case", [c for c in METRIC_CASES if c["fn"] == "ngram_stats"], ids=lambda c: c["id"])
def test_ngram_statistics_agree_with_the_golden_vector(case):
    expected = case["expect"]["value"]
    assert ngram_statistics(case["args"]["tokens"], case["args"]["n"]) == pytest.approx(expected, abs=1e-9)
