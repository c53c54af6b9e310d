"""Shares paired over tasks."""

import numpy as np
import pytest

from arcnb.search.comparing.fair_comparison import paired_shares


def test_a_difference_of_one_sign_is_seen():
    found = paired_shares([0.1] * 10 + [0.0], [0.3] * 10 + [0.0])
    assert (found.n_tasks, found.n_more, found.n_fewer) == (11, 10, 0)
    assert found.difference == pytest.approx(2 / 11)
    assert found.low < found.difference < found.high
    assert found.p_value < 0.01  # 2 of 1,024
    worse = paired_shares([0.3] * 10 + [0.0], [0.1] * 10 + [0.0])
    assert (worse.p_value < 0.01, worse.n_more, worse.n_fewer) == (True, 0, 10)
    assert str(found).startswith("9.09% and 27.27% of 11 tasks' (+18.18 points")


def test_p_is_even_where_nothing_differs():
    """Of 200 comparisons of arms with the same chances, about one in ten has p below 0.1."""
    draws = np.random.default_rng(0)
    chances = draws.uniform(0, 0.2, 40)
    found = [paired_shares(*draws.binomial(60, chances, (2, 40)) / 60, seed=i) for i in range(200)]
    assert 8 <= sum(one.p_value < 0.1 for one in found) <= 35
    # and nine of ten intervals and more hold 0
    assert sum(one.low <= 0 <= one.high for one in found) > 170


def test_the_same_seed_gives_the_same_numbers():
    a, b = np.random.default_rng(1).uniform(size=(2, 20))
    assert paired_shares(a, b, 3) == paired_shares(a, b, 3)
    assert paired_shares(a, a).p_value == 1
