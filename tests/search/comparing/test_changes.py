"""What training changed: groups of tasks apart, intervals, and a sentence that claims no more than was
seen."""

import numpy as np
import pandas as pd
import pytest

from arcnb.arc.tasks.task_set import load_tasks
from arcnb.errors import ArcnbError
from arcnb.search.comparing.changes import changes, summary
from arcnb.search.comparing.evaluation import changed_by_training
from arcnb.synth.splits import training_split

SPLIT = training_split()
TRAINED, OTHER = SPLIT.trainable[:4], SPLIT.trainable[4:8]
HELD_OUT = SPLIT.held_out[:5]


@pytest.fixture(scope="module")
def tasks():
    return load_tasks("arc-agi-1/training").subset([*TRAINED, *OTHER, *HELD_OUT])


def frame(solved: dict[str, int], of: int = 8) -> pd.DataFrame:
    rows = [(task_id, float(i < n)) for task_id, n in solved.items() for i in range(of)]
    table = pd.DataFrame(rows, columns=["task_id", "train_is_correct"])
    return table.assign(test_is_correct=table["train_is_correct"])


def counts(trained: int, other: int = 0, held_out: int = 0) -> dict[str, int]:
    return dict.fromkeys(TRAINED, trained) | dict.fromkeys(OTHER, other) | dict.fromkeys(HELD_OUT, held_out)


def test_groups_are_told_apart_and_a_gain_on_trained_tasks_is_one_of_trained_tasks_alone(tasks):
    trained, held_out, other = changes(frame(counts(2)), frame(counts(7)), list(tasks), TRAINED)
    assert [one.group for one in (trained, held_out, other)] == ["trained", "reserved", "other"]
    assert (trained.n_tasks, held_out.n_tasks, other.n_tasks) == (4, 5, 4)
    assert (trained.before, trained.after) == (0.25, 0.875)
    assert trained.low < 0.625 < trained.high
    assert trained.seen
    assert not held_out.seen
    assert not other.seen
    text = summary([trained, held_out])
    assert text.startswith(
        "On the 4 trained tasks 25% -> 88% of the samples solve their task (+62 points, 95% +"
    )
    assert "On the 5 reserved tasks 0% -> 0% of the samples solve their task: no change is shown" in text


def test_an_interval_is_not_narrow_because_nothing_was_solved(tasks):
    held_out = changes(frame(counts(4)), frame(counts(4)), list(tasks), TRAINED)[1]
    assert held_out.low < -0.01 < 0.01 < held_out.high
    assert 0.03 < held_out.smallest < 0.3


def studies(group: str, tasks, n: int, of: int, gain: float):
    """Changes of n studies and the true ones; easy and hard tasks gain this share of what they lack."""
    draws, ids = np.random.default_rng(0), [task.task_id for task in tasks]
    found, truth = [], []
    for seed in range(n):
        rates = draws.beta(0.6, 1.2, len(ids))
        sets = [
            frame(dict(zip(ids, draws.binomial(of, p).tolist(), strict=True)), of)
            for p in (rates, rates + gain * (1 - rates))
        ]
        found += changes(*sets, tasks, ids if group == "trained" else [], seed)
        truth.append(gain * (1 - rates).mean() if group == "trained" else gain * 2 / 3)
    assert {one.group for one in found} == {group}
    return found, np.array(truth)


@pytest.fixture(scope="module")
def many_tasks():
    return list(load_tasks("arc-agi-1/training").subset(SPLIT.trainable[:60]))


def test_of_studies_without_a_change_one_in_twenty_sees_one(many_tasks):
    found, _ = studies("other", many_tasks, 60, of=8, gain=0)
    assert 1 <= sum(one.seen for one in found) <= 7


def test_the_smallest_effect_is_seen_four_times_in_five(many_tasks):
    found, truth = studies("other", many_tasks, 60, of=8, gain=0.113)
    assert np.mean([one.smallest for one in found]) == pytest.approx(truth[0], rel=0.05)
    assert 0.7 <= np.mean([one.seen for one in found]) <= 0.9
    assert 0.9 <= np.mean([one.low <= truth[0] <= one.high for one in found]) <= 0.99


def test_intervals_of_trained_tasks_hold_their_change_with_two_samples_a_task_too(many_tasks):
    found, truth = studies("trained", many_tasks, 40, of=2, gain=0.2)
    assert np.mean([one.low <= true <= one.high for one, true in zip(found, truth, strict=True)]) >= 0.9


def test_one_task_says_nothing_about_others(tasks):
    reserved = changes(frame({HELD_OUT[0]: 0}), frame({HELD_OUT[0]: 8}), list(tasks), TRAINED)[0]
    assert (reserved.low, reserved.high, reserved.smallest) == (-1, 1, 1)


def test_more_samples_and_the_same_seed_give_what_they_should(tasks):
    few = changes(frame(counts(4)), frame(counts(5)), list(tasks), TRAINED, seed=3)
    again = changes(frame(counts(4)), frame(counts(5)), list(tasks), TRAINED, seed=3)
    many = changes(frame(counts(64), 128), frame(counts(80), 128), list(tasks), TRAINED, seed=3)
    assert few == again
    assert few[0].difference == many[0].difference
    assert many[0].high - many[0].low < 0.5 * (few[0].high - few[0].low)
    assert not few[0].seen
    assert many[0].seen


def test_tasks_without_predictions_in_one_set_are_left_out(tasks):
    after = counts(8)
    del after[TRAINED[0]]
    assert changes(frame(counts(8)), frame(after), list(tasks), TRAINED)[0].n_tasks == 3


def test_one_set_or_three_are_refused(tasks):
    with pytest.raises(ArcnbError, match="there are 1"):
        changed_by_training({"a": frame(counts(1))}, tasks, "arc-agi-1/training")


def test_a_set_whose_tasks_ended_early_is_refused_by_name(tasks):
    sets = {"a": frame(counts(1)), "b": frame(counts(1))}
    with pytest.raises(ArcnbError, match="trained: tasks of b were ended by stop_after"):
        changed_by_training(sets, tasks, "arc-agi-1/training", stopped={"b": "said"})


def test_only_first_turns_are_compared(tasks):
    before = frame(counts(4)).assign(turn=0, round=0)
    refined = frame(counts(0)).assign(turn=1, round=1)
    after = pd.concat([before, refined])
    (change, *_) = changed_by_training({"a": before, "b": after}, tasks, "arc-agi-1/training")
    assert change.difference == 0
    assert change.n_samples == 2 * len(before)
