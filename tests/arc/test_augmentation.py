"""Augmentation: agrees with the reference, has an exact inverse, composes."""

import itertools
from collections import Counter

import numpy as np
import pytest

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.grids import as_grid
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from tests.arc.golden_grids import cases

GOLDEN = "arc25_augmentation.json"


def from_params(params: dict) -> Augmentation:
    """The reference's parameters: a colour map is a mapping with text keys, which we keep as ten colours."""
    colors = params["color_map"]
    color_map = None if colors is None else tuple(colors[str(color)] for color in range(10))
    return Augmentation(params["hflip"], params["n_rot90"], color_map)


def several(n: int = 40) -> list[Augmentation]:
    drawn = [Augmentation.sample(rng(1, i)) for i in range(n)]
    plain = [Augmentation(h, r) for h, r in itertools.product((False, True), range(4))]
    return plain + drawn


def grid(seed: int, *shape: int):
    return as_grid(rng(seed, "grid").integers(0, 10, shape))


@pytest.mark.parametrize("case", cases(GOLDEN, "augment_grid"), ids=lambda case: case["id"])
def test_applying_agrees_with_the_reference(case):
    args = case["args"]
    assert from_params(args["params"]).apply(args["grid"]).tolist() == case["expect"]["value"]


@pytest.mark.parametrize("case", cases(GOLDEN, "revert_grid"), ids=lambda case: case["id"])
def test_inverting_agrees_with_the_reference(case):
    args = case["args"]
    assert from_params(args["params"]).invert(args["grid"]).tolist() == case["expect"]["value"]


@pytest.mark.parametrize("case", cases(GOLDEN, "augment_grids"), ids=lambda case: case["id"])
def test_lists_of_grids_agree_with_the_reference(case):
    augmentation = from_params(case["args"]["params"])
    assert [augmentation.apply(g).tolist() for g in case["args"]["grids"]] == case["expect"]["value"]


@pytest.mark.parametrize("case", cases(GOLDEN, "augment_task"), ids=lambda case: case["id"])
def test_tasks_agree_with_the_reference(case):
    task = Task.from_dict("t", case["args"]["task"])
    assert from_params(case["args"]["params"]).apply_task(task).to_dict() == case["expect"]["value"]


@pytest.mark.parametrize("case", cases(GOLDEN, "augment_raw", quirk=True), ids=lambda case: case["id"])
def test_quirks_of_the_reference_with_raw_lists_are_not_ours(case):
    # It takes lists of grids only as arrays, fails on unequal sizes, and reverts arrays only. One object that
    # knows one grid at a time has none of these cases: nested lists work both ways.
    value, augmentation = case["args"]["value"], from_params(case["args"]["params"])
    grids = value if isinstance(value, list) and isinstance(value[0][0], list) else [value]
    for one in grids:
        one = np.array(one["data"]).reshape(one["shape"]) if isinstance(one, dict) else one
        assert augmentation.invert(augmentation.apply(one)).tolist() == as_grid(one).tolist()


@pytest.mark.parametrize("augmentation", several(), ids=str)
def test_invert_undoes_apply_both_ways(augmentation):
    for shape in ((1, 1), (1, 30), (3, 2), (7, 7)):
        g = grid(2, *shape)
        assert np.array_equal(augmentation.invert(augmentation.apply(g)), g)
        assert np.array_equal(augmentation.apply(augmentation.invert(g)), g)


def test_arguments_are_not_changed():
    g = np.array([[1, 2], [3, 4]])
    Augmentation(True, 1, (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)).apply(g)
    assert g.tolist() == [[1, 2], [3, 4]]


def test_rotation_is_counter_clockwise_after_the_mirror():
    assert Augmentation(n_rot90=1).apply([[1, 2]]).tolist() == [[2], [1]]
    assert Augmentation(hflip=True, n_rot90=1).apply([[1, 2]]).tolist() == [[1], [2]]


def test_a_task_keeps_its_identity_and_loses_its_program():
    task = Task.from_dict(
        "t",
        {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]]}]},
        program="def transform(grid): ...",
        meta={"a": 1},
    )
    turned = Augmentation(hflip=True).apply_task(task)
    assert (turned.task_id, turned.meta, turned.program) == ("t", {"a": 1}, None)
    assert turned.test[0].output is None
    assert Augmentation().apply_task(task) == task


@pytest.mark.parametrize(
    "bad",
    [
        {"n_rot90": 4},
        {"n_rot90": -1},
        {"n_rot90": 0.5},
        {"color_map": (0,) * 10},
        {"color_map": tuple(range(9))},
        {"color_map": tuple(range(1, 11))},
    ],
)
def test_parameters_are_checked(bad):
    with pytest.raises(ArcnbError):
        Augmentation(**bad)


def test_colours_outside_the_map_are_refused():
    with pytest.raises(ArcnbError):
        Augmentation(color_map=tuple(range(10))).apply([[10]])


def test_draws_follow_the_stated_distribution():
    drawn = [Augmentation.sample(rng(0, "many", i)) for i in range(4000)]
    geometry = Counter((a.hflip, a.n_rot90) for a in drawn)
    assert len(geometry) == 8
    assert all(abs(n - 500) < 120 for n in geometry.values())
    # 0 moves when all ten colours are permuted (one time in ten) and does not land on itself (9 in 10).
    moved = sum(a.color_map[0] != 0 for a in drawn)
    assert abs(moved / 4000 - 0.09) < 0.02
    assert len({a.color_map for a in drawn}) > 3900


def test_the_same_seed_draws_the_same():
    assert Augmentation.sample(rng(1, "x")) == Augmentation.sample(rng(1, "x"))
    assert Augmentation.sample(rng(1, "x")) != Augmentation.sample(rng(1, "y"))
