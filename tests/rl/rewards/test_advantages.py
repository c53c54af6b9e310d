"""Advantages by name, on examples worked by hand and by their definitions."""

from itertools import combinations

import numpy as np
import pytest

from arcnb.rl.rewards.advantages import ADVANTAGES, AdvantageContext, k_at

REWARDS = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0])
GROUP = np.array([7, 7, 7, 7, 3, 3])


def made(name, rewards=REWARDS, group=GROUP, **asked):
    return ADVANTAGES[name](np.asarray(rewards, float), np.asarray(group), AdvantageContext(**asked)).tolist()


@pytest.mark.parametrize(
    ("name", "asked", "by_hand"),
    [
        ("none", {}, [0.75, -0.25, -0.25, -0.25, 0, 0]),
        ("group", {}, [1.5, -0.5, -0.5, -0.5, 0, 0]),  # spread of one in four: 1/2
        ("batch", {}, [0.75 / 0.3**0.5, *[-0.25 / 0.3**0.5] * 3, 0, 0]),  # of three in six: sqrt(3/10)
        ("max_rl", {}, [3, -1, -1, -1, 0, 0]),
        ("pass_at_k", {"k": 1}, [1, -1 / 3, -1 / 3, -1 / 3, 0, 0]),
        ("pass_at_k", {"k": 2}, [2, 0, 0, 0, 0, 0]),  # three of six pairs hold it, each gains 1; times four
        ("pass_at_k", {"k": 4}, [4, 0, 0, 0, 0, 0]),
    ],
)
def test_advantages_are_those_worked_out_by_hand(name, asked, by_hand):
    assert made(name, **asked) == pytest.approx(by_hand, rel=3e-4)


def test_only_a_success_that_no_other_in_its_set_has_raises_the_best_of_k():
    """Two right of four: two of the three pairs with the first gain by it, one of three triples."""
    assert made("pass_at_k", [1, 1, 0, 0], [0] * 4, k=2) == pytest.approx([4 / 3, 4 / 3, 0, 0])
    assert made("pass_at_k", [1, 1, 0, 0], [0] * 4, k=3) == pytest.approx([1, 1, 0, 0])
    assert made("pass_at_k", [1, 1, 1, 1], [0] * 4, k=3) == [0, 0, 0, 0]


@pytest.mark.parametrize("k", [2, 3, 5, 7])
def test_the_closed_form_is_the_sum_over_all_sets_of_k(k):
    rewards = np.random.default_rng(k).normal(size=7)
    sets = list(combinations(range(7), k))

    def gain(i):
        own = [one for one in sets if i in one]
        gains = [max(rewards[list(one)]) - max(rewards[j] for j in one if j != i) for one in own]
        return 7 * sum(gains) / len(sets)

    assert made("pass_at_k", rewards, [0] * 7, k=k) == pytest.approx([gain(i) for i in range(7)])
    shuffled = np.argsort(np.random.default_rng(0).random(7))
    assert made("pass_at_k", rewards[shuffled], [0] * 7, k=k) == pytest.approx([gain(i) for i in shuffled])


def test_the_rarest_of_right_completions_earns_most():
    log_probs = np.log([0.4, 0.1, 0.3, 0.2])
    # ranks 0, 3, 1, 2: weights 3/4, 15/16, 13/16, 7/8 of what is right
    assert made("unlikely", [1, 1, 0, 0], [0] * 4, log_probs=log_probs) == pytest.approx(
        made("group", [3 / 4, 15 / 16, 0, 0], [0] * 4)
    )
    assert made("unlikely", [-1, 1, 0, 0], [0] * 4, log_probs=log_probs) == pytest.approx(
        made("group", [-1, 15 / 16, 0, 0], [0] * 4)
    ), "what is wrong pays no less for being likely"


def test_a_mean_that_terms_bring_down_to_nothing_is_not_divided_by():
    assert max(made("max_rl", [1.0, -0.33, -0.33, -0.33], [0] * 4)) < 4
    assert made("max_rl", [0.2, -0.3, 0, 0], [0] * 4) == [0, 0, 0, 0]


def test_k_goes_from_the_first_to_the_last_in_a_straight_line():
    assert [k_at(8, 1, step, 8) for step in range(8)] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert k_at(8, 0, 5, 8) == 8
