"""Endless task streams."""

from collections import Counter
from itertools import islice

import pytest

from arcnb.arc.augmentation import content
from arcnb.arc.tasks.task_set import load_tasks, write_tasks
from arcnb.errors import ArcnbError
from arcnb.synth import endless
from arcnb.synth.endless import TaskStream
from arcnb.synth.rearc.tasks import rearc_task
from arcnb.synth.sources import SourceSettings
from arcnb.synth.splits import HELD_OUT_TRAINING, LeftOut, training_split
from arcnb.synth.task_sets import build_task_set

SETTINGS = SourceSettings(seed=3, diff_ub=0.3, max_cells=1000, block_size=32)
RECIPE = "rearc*30 + dsl*20 + ladder/lines*5"


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
        assert sources["ladder"] == 5 * end // 55


def test_made_tasks_are_always_new_and_sets_come_round_in_another_order(drawn):
    made = [task.fingerprint for task, _ in drawn[1] if task.source != "ladder"]
    assert len(set(made)) == len(made)
    rounds = [[task.task_id for task, n in drawn[1] if task.source == "ladder" and n == i] for i in (0, 1)]
    assert len(rounds[0]) == 5
    assert sorted(rounds[0]) == sorted(rounds[1])


def test_a_round_has_the_tasks_that_a_source_has_and_its_number_is_its_share(mixed):
    assert len(TaskStream("ladder/squares*50")) == len(TaskStream("ladder/squares")) == 5
    assert len(TaskStream("ladder/squares*3 + rearc*30")) == 3 + 30
    assert len(TaskStream(f"{mixed}*50", left_out=LeftOut(train_on_held_out=False))) == 2
    items = taken(TaskStream("ladder/squares*20 + ladder/lines*10", SETTINGS), 30)
    assert Counter(task.task_id.split("_")[1] for task, _ in items) == {"squares": 20, "lines": 10}


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


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A file of three tasks with programs, one of them reserved."""
    ids = [*training_split().trainable[:2], HELD_OUT_TRAINING[0]]
    tasks = [rearc_task(task_id, seed=0, index=0, diff_ub=0.3) for task_id in ids]
    return str(write_tasks(tasks, tmp_path_factory.mktemp("mixed") / "tasks.parquet"))


def test_none_stands_in_the_place_of_a_reserved_task_of_a_file_unless_it_is_asked_for(mixed):
    ids = set(load_tasks(mixed).ids)
    for asked, n_learnt in ((False, 2), (True, 3)):
        stream = TaskStream(mixed, SETTINGS, left_out=LeftOut(asked))
        assert len(stream) == n_learnt
        items = taken(stream, 6)
        assert Counter(number for _, number in items) == {0: 3, 1: 3}
        assert sum(task is None for task, _ in items) == 2 * (3 - n_learnt)
        learnt = {task.task_id for task, _ in items if task is not None}
        assert learnt == {id_ for id_ in ids if asked or HELD_OUT_TRAINING[0] not in id_}


@pytest.mark.parametrize(
    "source", ["rearc/held_out*5", f"rearc/{HELD_OUT_TRAINING[3]}*5", "dsl/held_out*5", "dsl/sorting*5"]
)
def test_a_source_of_reserved_tasks_alone_is_refused_before_a_task_is_made(source):
    recipe = f"rearc*5 + {source}"
    with pytest.raises(ArcnbError, match=f"tasks: {source[:-2]} has no tasks but reserved tasks"):
        len(TaskStream(recipe))
    assert len(TaskStream(recipe, left_out=LeftOut(True))) == 10


def test_a_set_of_reserved_tasks_alone_is_refused():
    with pytest.raises(ArcnbError, match="tasks: arc-agi-1/evaluation has no tasks but reserved tasks"):
        len(TaskStream("arc-agi-1/evaluation"))


def of_pairs(task):
    return (*task.train, *task.test)


def test_eval_tasks_are_never_streamed_while_others_come(mixed):
    recipe = "rearc*4 + dsl/geometry*4"
    evaluated = build_task_set(recipe, settings=SETTINGS)
    for fresh in (True, False):
        stream = TaskStream(recipe, SETTINGS, fresh=fresh, left_out=LeftOut.of(True, evaluated))
        items = [task for task, _ in taken(stream, 12)]
        assert items[:8] == [None] * 8, "they come first in the stream, too"
        learnt = {content(of_pairs(task)) for task in items if task is not None}
        assert len(learnt) == (4 if fresh else 0)
        assert learnt.isdisjoint(content(of_pairs(task)) for task in evaluated)
    with pytest.raises(ArcnbError, match=r"has no tasks but eval tasks, .* take it out of the recipe$"):
        len(TaskStream(mixed, left_out=LeftOut.of(True, load_tasks(mixed))))


def test_a_source_that_stands_twice_is_refused_before_a_task_is_made():
    with pytest.raises(ArcnbError, match="dsl/geometry stands 2 times in the recipe"):
        len(TaskStream("dsl/geometry*4 + rearc*3 + dsl/geometry*2"))
    assert len(TaskStream("dsl/geometry*4 + dsl/geometry*0")) == 4


def test_a_part_of_no_tasks_is_passed_over():
    assert [
        task.source for task, _ in taken(TaskStream("rearc*0 + arc-agi-1/training*5", SETTINGS), 3) if task
    ]


def test_a_share_is_needed_for_what_never_ends_and_sources_must_exist():
    assert len(TaskStream(RECIPE)) == 55
    with pytest.raises(ArcnbError, match=r"rearc never ends: say how many tasks, for instance rearc\*1000"):
        len(TaskStream("rearc"))
    with pytest.raises(ArcnbError, match="no task source 'rearcs'"):
        taken(TaskStream("rearcs*3"), 1)
