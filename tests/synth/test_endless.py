"""Endless task streams."""

from collections import Counter
from itertools import islice

import pytest

from arcnb.errors import ArcnbError
from arcnb.synth import endless
from arcnb.synth.endless import TaskStream
from arcnb.synth.sources import SourceSettings
from arcnb.synth.splits import training_split

SETTINGS = SourceSettings(seed=3, n_train=2, diff_ub=0.3, max_cells=1000, block_size=32)
RECIPE = "rearc*30 + dsl*20 + arc-agi-1/training*5"


def taken(stream, n):
    iterator = iter(stream)
    items = list(islice(iterator, n))
    iterator.close()
    return items


@pytest.fixture(scope="module")
def drawn():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endless, "AHEAD", 1)  # 512 tasks of each source are more than the tests look at
        return {workers: taken(TaskStream(RECIPE, SETTINGS, workers), 110) for workers in (1, 2)}


def test_the_stream_is_the_same_for_any_number_of_processes(drawn):
    keys = [[(task.fingerprint, task.program, number) for task, number in items] for items in drawn.values()]
    assert keys[0] == keys[1]


def test_sources_are_mixed_in_their_shares_from_the_start(drawn):
    for end in (55, 110):
        sources = Counter(task.source for task, _ in drawn[1][:end])
        assert sources["rearc"] == 30 * end // 55
        assert sources["arc-agi-1/training"] == 5 * end // 55


def test_made_tasks_are_always_new_and_sets_come_round_in_another_order(drawn):
    made = [task.fingerprint for task, _ in drawn[1] if task.source != "arc-agi-1/training"]
    assert len(set(made)) == len(made)
    rounds = [[task.task_id for task, n in drawn[1] if task.source[:3] == "arc" and n == i] for i in (0, 1)]
    assert len(rounds[0]) == 5
    assert sorted(rounds[0]) == sorted(rounds[1])


def test_without_fresh_tasks_a_source_goes_round(drawn):
    items = taken(TaskStream("rearc*10", SETTINGS, fresh=False), 25)
    assert Counter(number for _, number in items) == {0: 10, 1: 10, 2: 5}
    first = [task.task_id for task, n in items if n == 0]
    second = [task.task_id for task, n in items if n == 1]
    assert sorted(first) == sorted(second)
    assert first != second


def test_held_out_tasks_are_never_streamed(drawn):
    originals = {task.meta["original"] for task, _ in drawn[1] if task.source == "rearc"}
    assert originals <= set(training_split().trainable)


def test_a_share_is_needed_for_what_never_ends_and_sources_must_exist():
    assert len(TaskStream(RECIPE)) == 55
    with pytest.raises(ArcnbError, match=r"rearc never ends: say how many tasks, for instance rearc\*1000"):
        len(TaskStream("rearc"))
    with pytest.raises(ArcnbError, match="no task source 'rearcs'"):
        taken(TaskStream("rearcs*3"), 1)
