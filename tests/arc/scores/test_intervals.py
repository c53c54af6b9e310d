"""Intervals over tasks and p-values, against what they are defined as."""

from itertools import permutations, product
from math import comb

import numpy as np
import pytest

from arcnb.arc.scores.intervals import (
    holm,
    mean_and_interval,
    percent,
    points,
    rate_text,
    resampled_weights,
    sampled_sign_flip_p,
    share_text,
    sign_flip_p,
)
from arcnb.arc.seeds import rng


def test_nine_of_ten_intervals_and_more_hold_the_mean():
    draws = np.random.default_rng(0)
    found = [
        mean_and_interval(draws.exponential(size=60), resampled_weights(60, rng(i), 1000)) for i in range(200)
    ]
    assert all(low <= mean <= high for mean, low, high in found)
    assert 0.9 <= np.mean([low <= 1 <= high for _, low, high in found]) <= 0.98


def test_weights_are_of_whole_samples():
    weights = resampled_weights(7, rng(0), 50)
    assert weights.shape == (50, 7)
    assert weights.sum(axis=1) == pytest.approx(1)
    assert (weights * 7).round(9).tolist() == (weights * 7).round().tolist()


def test_an_end_at_zero_is_zero_and_equal_means_are_equal():
    gains = np.repeat([1.0, -1.0, 0.0], [10, 3, 7])
    found = [mean_and_interval(gains, resampled_weights(20, rng(i), 1000)) for i in range(20)]
    ends = {end for _, *ends in found for end in ends}
    assert 0 in ends
    assert all(abs(end) > 0.01 for end in ends - {0})
    weights, orders = resampled_weights(3, rng(0), 10), permutations((0.1, 0.2, 0.3))
    assert len({mean_and_interval(np.array(rates), weights)[0] for rates in orders}) == 1


def test_no_tasks_have_no_mean():
    assert np.isnan(mean_and_interval(np.zeros(0), resampled_weights(0, rng(0), 10))).all()


def test_mcnemars_test_is_a_two_sided_binomial_test():
    for only_a, only_b in product(range(12), repeat=2):
        n, fewer = only_a + only_b, min(only_a, only_b)
        expected = min(1, 2 * sum(comb(n, i) for i in range(fewer + 1)) / 2**n)
        assert sign_flip_p([1] * only_a + [-1] * only_b + [0] * 5) == pytest.approx(expected, rel=1e-12)


def test_the_sign_flip_test_is_exact():
    for values in ([1, 1, -1, 2, 0], [3, -1, -1], [2, 2, 1, 1, -3], [0, 0]):
        signs = list(product((-1, 1), repeat=len(values)))
        extreme = sum(abs(np.dot(s, np.abs(values))) >= abs(sum(values)) for s in signs)
        assert sign_flip_p(values) == pytest.approx(extreme / len(signs))
        assert sampled_sign_flip_p(np.array(values), rng(0), 4000) == pytest.approx(
            sign_flip_p(values), abs=0.03
        )


def test_p_values_of_equal_arms_are_not_small_too_often():
    random = np.random.default_rng(0)
    ps = [sign_flip_p(random.integers(-1, 2, (3, 60)).sum(axis=0)) for _ in range(400)]
    assert np.mean(np.array(ps) < 0.05) < 0.08


def test_p_values_of_many_pairs_are_adjusted():
    assert holm([]) == []
    assert holm([0.04]) == [0.04]
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02, 0.01, 0.5]) == pytest.approx([0.04, 0.03, 0.5])
    assert holm([0.5, 0.4]) == pytest.approx([0.8, 0.8])


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (0.0007, "0.07%"), (0.0133, "1.3%"), (0.375, "38%"), (0.996, "99.6%"), (1, "100%")],
)
def test_percentages_have_two_digits_and_three_next_to_a_hundred(share, text):
    assert percent(share) == text
    assert points(share) == f"{'+' if share else ''}{text}".rstrip("%")
    assert rate_text(share, 0, share, "95% ") == (f"{text} (95% 0 to {text})" if share else text)


def test_a_count_of_none_or_all_has_an_interval_too():
    assert share_text(0, 16, "tasks") == "none of 16 tasks (0%, 95% interval 0 to 19%)"
    assert share_text(16, 16) == "16 of 16 (100%, 95% interval 81 to 100%)"
    assert share_text(0, 0, "tasks") == "none of 0 tasks"
    assert points(-0.083) == "-8.3"
