"""Held-out evaluation while training."""

import pytest

from arcnb.rl.watching.held_out import pass_rates


def test_held_out_samples_are_summed_up_as_pass_at_k():
    rows = [  # task, solved, valid outputs, their fingerprint, truncated
        *[("a", True, True, "x", False), ("a", False, True, "y", False), ("a", False, True, "y", False)],
        *[("a", False, False, None, True)],
        *[("b", False, True, "z", False)] * 4,
    ]
    assert pass_rates(rows, 4) == {
        "held_out/pass@1": pytest.approx(1 / 8),
        "held_out/pass@1_error": pytest.approx(1 / 8),
        "held_out/pass@2": pytest.approx(1 / 4),
        "held_out/pass@4": pytest.approx(1 / 2),
        "held_out/valid_outputs": 7 / 8,
        "held_out/truncated": 1 / 8,
        "held_out/unique_outputs": pytest.approx((2 / 4 + 1 / 4) / 2),
    }
