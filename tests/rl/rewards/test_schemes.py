"""Reward schemes against the golden vectors and their ranges."""

import json

import pytest

from arcnb.errors import ArcnbError
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.rewards.rollout import Scores
from arcnb.rl.rewards.schemes import SCHEMES, reward_scheme
from tests.paths import GOLDEN

CASES = json.loads((GOLDEN / "arc25_rewards.json").read_text())["cases"]
BOUNDS = {
    "arc-v1": (0, 10),
    "simplified": (0, 10),
    "arc-v2-no-pixel-score": (0, 10),
    "legacy-parse-penalty": (-1, 10),
    "legacy-sum": (-1, 2),
    "known-grids": (0, 1),
    "test-pairs": (0, 10),
    "right-grids": (0, 1),
    "solved": (0, 1),
}
REWARD_CASES = [case for case in CASES if case["fn"] == "reward"]


def scores_of(result, n_train, n_test):
    return Scores(
        has_program="code" in result,
        has_outputs="train_correct_grids" in result,
        train_correct=result.get("train_correct_grids", 0.0),
        test_correct=result.get("test_correct_grids"),
        train_pixel=result.get("train_pixel_score", 0.0),
        test_pixel=result.get("test_pixel_score"),
        n_train=n_train,
        n_test=n_test,
    )


@pytest.mark.parametrize("case", REWARD_CASES, ids=lambda case: case["id"])
def test_reward_agrees_with_the_golden_vector(case):
    args = case["args"]
    if "raises" in case["expect"]:
        with pytest.raises(ValueError, match="does not exist"):
            reward_scheme(args["scheme"])
        return
    scores = scores_of(args["result"], args["n_train"], args["n_test"])
    assert reward_scheme(args["scheme"])(scores) == pytest.approx(case["expect"]["value"], abs=1e-9)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_stays_in_its_range_and_tops_out_for_a_perfect_program(name):
    low, high = BOUNDS[name]
    worst = Scores(False, False, 0.0, None, 0.0, None, 3, 1)
    perfect = Scores(True, True, 1.0, 1.0, 1.0, 1.0, 3, 1)
    middling = Scores(True, True, 1 / 3, 0.0, 0.7, 0.5, 3, 1)
    found = [SCHEMES[name](scores) for scores in (worst, middling, perfect)]
    assert low <= found[0] <= found[1] < found[2] == pytest.approx(high)
    assert found[0] < found[1] or name == "solved"


def test_valid_outputs_alone_earn_nothing_where_only_right_grids_count():
    valid = Scores(True, True, 0.0, 0.0, 0.9, 0.9, 3, 1)
    assert SCHEMES["right-grids"](valid) == SCHEMES["solved"](valid) == 0.0
    assert SCHEMES["right-grids"](Scores(True, True, 1.0, 0.0, 1.0, 0.5, 3, 1)) == pytest.approx(0.75)
    assert SCHEMES["solved"](Scores(True, True, 1.0, 0.0, 1.0, 0.5, 3, 1)) == 0.0
    assert SCHEMES["solved"](Scores(True, True, 1.0, None, 1.0, None, 3, 1)) == 1.0  # test outputs unknown


def test_a_function_of_a_file_is_a_scheme_and_a_run_keeps_what_it_began_with(tmp_path):
    half = scores_of({"train_correct_grids": 0.5}, 2, 1)
    file = tmp_path / "mine.py"
    file.write_text("POINTS = 9\n\ndef brave(scores):\n    return 1 + POINTS * scores.train_correct\n")
    plan = GrpoPlan.of({"reward": f"{file}:brave"})
    rewards = plan.subject.rewards
    assert rewards.of_scores(half) == 5.5
    file.write_text("def brave(scores):\n    return 7\n")
    assert rewards.of_scores(half) == 5.5
    assert plan.subject.rewards.of_scores(half) == 7


@pytest.mark.parametrize(
    ("text", "function", "said"),
    [
        (None, "brave", "cannot be read: No such file or directory"),
        ("def other(scores): return 1", "brave", "has no such function"),
        ("brave = 1", "brave", "has no such function"),
        ("import nothing_here", "brave", "ends with ModuleNotFoundError: No module named 'nothing_here'"),
        ("def brave(scores)", "brave", "ends with SyntaxError"),
        ("1 / 0", "brave", "ends with ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_without_a_reward_is_refused_when_the_plan_is_made(tmp_path, text, function, said):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ArcnbError) as refused:
        GrpoPlan.of({"reward": f"{file}:{function}"})
    assert f"reward='{file}:{function}': {file} {said}" in str(refused.value)


@pytest.mark.parametrize("value", ["None", "float('nan')", "'9'"])
def test_a_reward_that_is_no_finite_number_is_named(tmp_path, value):
    file = tmp_path / "mine.py"
    file.write_text(f"def brave(scores):\n    return {value}\n")
    scheme = reward_scheme(f"{file}:brave")
    with pytest.raises(ArcnbError, match=r"mine\.py:brave' is to be a finite number, but was"):
        scheme(scores_of({}, 2, 1))


def test_a_scheme_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(ArcnbError, match=r"reward='brave' does not exist; there are arc-v1, .*, and FILE"):
        GrpoPlan.of({"reward": "brave"})


def test_known_grids_gives_the_top_where_test_outputs_are_unknown():
    assert SCHEMES["known-grids"](Scores(True, True, 1.0, None, 1.0, None, 3, 1)) == pytest.approx(1.0)
