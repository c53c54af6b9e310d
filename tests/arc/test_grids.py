"""Grids: everything that is not one is refused with a sentence that says where."""

import numpy as np
import pytest

from arcnb.arc.grids import as_grid
from arcnb.errors import ArcnbError


def test_lists_tuples_and_arrays_become_the_same_read_only_uint8_array():
    rows = [[0, 9, 1], [2, 3, 4]]
    for value in (
        rows,
        tuple(map(tuple, rows)),
        np.array(rows),
        np.array(rows, np.uint8),
        np.array(rows, object),
    ):
        grid = as_grid(value)
        assert grid.dtype == np.uint8
        assert grid.shape == (2, 3)
        assert grid.tolist() == rows
        assert not grid.flags.writeable


def test_result_never_shares_memory_with_the_argument():
    source = np.array([[1, 2]], np.uint8)
    grid = as_grid(source)
    source[0, 0] = 7
    assert grid[0, 0] == 1


def test_numpy_integers_inside_lists_are_integers():
    assert as_grid([[np.int64(3), np.uint8(4)]]).tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "empty grid"),
        ([[]], "row 0 is empty"),
        ([[1], []], "row 1 is empty"),
        ([[1, 2], [3]], "ragged, row 1 has 1 cells but row 0 has 2"),
        ([[1, 10]], "row 0, column 1 holds 10"),
        ([[1], [-1]], "row 1, column 0 holds -1"),
        ([[True]], "True, not an integer"),
        ([[np.bool_(True)]], "not an integer"),
        ([["1"]], "'1', not an integer"),
        ([[1.0]], "1.0, not an integer"),
        ([[0.5]], "0.5, not an integer"),
        ([[None]], "None, not an integer"),
        ([[float("nan")]], "nan, not an integer"),
        ([[[1]]], "not an integer"),
        ([[2**70]], "beyond 64 bits"),
        ([1, 2], "row 0 is 1, not a list"),
        (["12"], "row 0 is '12', not a list"),
        ("12", "not a list of rows"),
        (None, "not a list of rows"),
        ({0: [1]}, "not a list of rows"),
        ([[0] * 31], "1x31 is larger than 30x30"),
        ([[0]] * 31, "31x1 is larger than 30x30"),
        (np.zeros((2, 2)), "float64"),
        (np.zeros((2, 2), bool), "bool"),
        (np.zeros(3, int), "1 dimensions"),
        (np.zeros((1, 2, 2), int), "3 dimensions"),
        (np.zeros((0, 3), int), "empty"),
        (np.array([[300]]), "holds 300"),
        (np.array([["a"]], object), "not an integer"),
    ],
)
def test_anything_else_is_refused_in_a_sentence_that_says_where(value, message):
    with pytest.raises(ArcnbError, match=r"^file x, task y: ") as caught:
        as_grid(value, "file x, task y")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_smallest_and_the_largest_grid_pass():
    assert as_grid([[0]]).shape == (1, 1)
    assert as_grid([[9] * 30] * 30).shape == (30, 30)
