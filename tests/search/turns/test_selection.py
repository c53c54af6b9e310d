"""Choosing what to refine, against the golden vectors."""

import json

import numpy as np
import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.errors import ArcnbError
from arcnb.search.turns.selection import CHOOSERS, choose
from tests.paths import GOLDEN

CASES = json.loads((GOLDEN / "arc25_learning.json").read_text())["cases"]


def cases(function):
    return [
        pytest.param(case["args"], case["expect"]["value"], id=case["id"])
        for case in CASES
        if case["fn"] == function
    ]


def prediction(task_id, record):
    scores = {name: record[name] for name in record if name.startswith(("train_", "test_"))}
    return Prediction(
        task_id,
        "",
        round=0,
        index=record["idx"],
        program=record.get("code"),
        status="error" if "error_type" in record else "ok",
        error_type=record.get("error_type"),
        fingerprint=record.get("fingerprint"),
        **scores,
    )


def chosen(name, args, k):
    random = np.random.default_rng(0)
    return {
        task_id: [p.index for p in choose(name, [prediction(task_id, r) for r in records], k, random)]
        for task_id, records in args["predictions"].items()
    }


@pytest.mark.parametrize(("args", "expected"), cases("curate_for_refinement"))
def test_distinct_agrees_with_the_golden_vector(args, expected):
    assert chosen("distinct", args, 1000) == expected


@pytest.mark.parametrize(("args", "expected"), cases("select_for_second_turn"))
def test_best_of_one_agrees_with_the_golden_vector(args, expected):
    assert {task: picks[0] for task, picks in chosen("best", args, 1).items() if picks} == expected


@pytest.mark.parametrize("name", CHOOSERS)
def test_every_chooser_gives_at_most_k_and_never_a_solved_one(name):
    records = [
        {
            "idx": i,
            "code": "c",
            "fingerprint": f"f{i}",
            "train_correct_grids": i / 4,
            "train_pixel_score": 0.5,
        }
        | {"train_is_correct": int(i == 4)}
        for i in range(5)
    ] + [{"idx": 9, "code": "c", "error_type": "IndexError"}]
    picks = chosen(name, {"predictions": {"t": records}}, 3)["t"]
    assert 1 <= len(picks) <= 3
    assert 4 not in picks


def test_weighted_choice_repeats_with_its_seed_and_handles_no_candidate():
    records = [
        {
            "idx": i,
            "code": "c",
            "fingerprint": f"f{i}",
            "train_correct_grids": 0.1 * i,
            "train_pixel_score": 0.5,
        }
        for i in range(8)
    ]
    args = {"predictions": {"t": records, "empty": []}}
    assert chosen("weighted", args, 3) == chosen("weighted", args, 3)
    assert chosen("weighted", args, 3)["empty"] == []


def test_unknown_chooser_is_named():
    with pytest.raises(ArcnbError, match="'bets' does not exist"):
        choose("bets", [], 1, np.random.default_rng(0))
