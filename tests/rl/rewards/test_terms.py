"""Reward terms: bounds, ramps, tie-breaks, and cheats that earn nothing."""

from dataclasses import replace

import pytest

from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.rewards.rollout import Rollout, Scores
from arcnb.rl.rewards.schemes import SCHEMES
from arcnb.rl.rewards.terms import TERMS, RewardPlan, TermLimits
from tests.rl.rewards.test_schemes import BOUNDS

LIMITS = TermLimits(max_completion_length=100, overlong_buffer=40)
RIGHT = Scores(True, True, 1.0, 1.0, 1.0, 1.0, 3, 1)
WRONG = Scores(True, True, 0.0, 0.0, 0.3, 0.2, 3, 1)
NOTHING = Scores(False, False, 0.0, None, 0.0, None, 3, 1)


def rollout(n_tokens=10, scores=RIGHT, solved=None, cheating=None, tokens=None):
    tokens = list(range(n_tokens)) if tokens is None else tokens
    return Rollout(scores, tokens, scores is RIGHT if solved is None else solved, cheating)


VARIED = [
    rollout(0, NOTHING),
    rollout(5),
    rollout(60),
    rollout(61, WRONG),
    rollout(99),
    rollout(100),
    rollout(tokens=[7] * 100, scores=NOTHING),
    rollout(tokens=[1, 2] * 40, scores=WRONG),
]


@pytest.mark.parametrize("name", TERMS)
def test_every_term_stays_between_minus_one_and_zero(name):
    values = TERMS[name](VARIED, LIMITS)
    assert len(values) == len(VARIED)
    assert all(-1 <= value <= 0 for value in values)


def test_the_overlong_ramp_begins_at_the_buffer_and_ends_at_the_limit():
    group = [rollout(n) for n in (10, 60, 70, 80, 99, 100)]
    group.append(replace(rollout(30), truncated=True))
    assert TERMS["overlong"](group, LIMITS) == pytest.approx([0, 0, -0.25, -0.5, -0.975, -1, -1])
    without_ramp = TermLimits(max_completion_length=100)
    assert TERMS["overlong"](group, without_ramp) == [0, 0, 0, 0, 0, 0, -1]


def test_repetition_costs_by_the_share_of_distinct_ngrams():
    loop = rollout(tokens=[3] * 60)
    half = rollout(tokens=list(range(10)) * 4)
    values = TERMS["repetition"]([rollout(60), half, loop, rollout(3)], LIMITS)
    assert values[0] == values[3] == 0
    assert -1 < values[1] < 0
    assert values[2] == pytest.approx(2 / 55 - 1)


def test_length_breaks_ties_only_where_every_completion_is_right():
    solved = [rollout(20), rollout(40), rollout(30)]
    assert TERMS["shortest_of_solved"](solved, LIMITS) == pytest.approx([0, -1, -0.5])
    assert TERMS["shortest_of_solved"]([*solved, rollout(50, WRONG)], LIMITS) == [0] * 4
    assert TERMS["shortest_of_solved"]([*solved, rollout(50, cheating="memory")], LIMITS) == [0] * 4
    assert TERMS["shortest_of_solved"]([rollout(20), rollout(20)], LIMITS) == [0, 0]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rewards_stay_within_the_bounds_of_scheme_and_terms(scheme):
    plan = RewardPlan(scheme, LIMITS, dict.fromkeys(TERMS, 0.5))
    low, high = BOUNDS[scheme][0] - 0.5 * len(TERMS), BOUNDS[scheme][1]
    assert all(low <= reward <= high for reward in plan.rewards(VARIED))


def test_a_plan_is_the_weighted_sum_of_its_parts():
    plan = RewardPlan("arc-v2-no-pixel-score", LIMITS, {"overlong": 2.0, "valid_code": 0.0})
    assert plan.parts([rollout(80)]) == {"scheme": [10.0], "overlong": [pytest.approx(-1.0)]}
    assert plan.rewards([rollout(80)]) == [pytest.approx(9.0)]


def test_a_runs_plan_is_made_of_its_options():
    overlong = {"overlong_weight": 2.0, "overlong_buffer": 40}
    plan = GrpoPlan.of({"reward": "solved", "max_completion_length": 100, **overlong}).subject.rewards
    assert plan.parts([rollout(80)]) == {"scheme": [1.0], "overlong": [pytest.approx(-1.0)]}


def test_a_program_that_cheats_earns_nothing():
    plan = RewardPlan("arc-v2-no-pixel-score", LIMITS)
    assert plan.rewards([rollout(20), rollout(20, solved=False, cheating="memory")]) == [10.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("arc-v9", LIMITS), "'arc-v9' does not exist; there are arc-v1"),
        (("arc-v1", LIMITS, {"short": 1.0}), "'short' does not exist; there are overlong"),
    ],
)
def test_names_that_do_not_exist_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RewardPlan(*arguments)


def test_a_buffer_longer_than_completions_is_refused():
    with pytest.raises(ValueError, match=r"overlong_buffer=200 must be within 0\.\.100"):
        TermLimits(100, 200)
