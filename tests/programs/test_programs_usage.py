"""Usage statistics by syntax tree.  pytest tests/programs/test_programs_usage.py"""

import pytest

from arcnb.programs.usage import cooccurrence, draw_cooccurrence, usage_table, used_names

FIND = """from dsl import *

def transform(grid):
    obj = find_objects(grid)[0]
    return crop_object(grid, obj) if obj.area > 2 else obj.grid
"""
FLIP = """from dsl import *

def transform(grid):
    # find_objects is not used here
    return flip_vertical(flip_vertical(grid))
"""


def test_names_and_attributes_are_counted_by_the_syntax_tree():
    assert used_names(FIND) == {"find_objects": 1, "crop_object": 1, ".area": 1, ".grid": 1}
    assert used_names(FLIP) == {"flip_vertical": 2}


def test_parts_of_longer_names_do_not_count():
    assert used_names("x = cropped(outline_2, my_tile)") == {}


def test_other_libraries():
    assert used_names("y = mostcolor(I)", "rearc_dsl") == {"mostcolor": 1}
    with pytest.raises(ValueError, match="no grid library 'arc_dsl'"):
        used_names("", "arc_dsl")


def test_usage_table_lists_every_name():
    frame = usage_table([FIND, FLIP, FLIP]).set_index("name")
    assert frame.loc["flip_vertical"].tolist() == [2, pytest.approx(2 / 3), 4]
    assert frame.loc["gravity", "programs"] == 0
    assert frame.index[0] == "flip_vertical"
    assert ".area" in frame.index


def test_cooccurrence_is_a_correlation():
    frame = cooccurrence([FIND, FLIP, FIND, FLIP])
    assert frame.loc["find_objects", "crop_object"] == pytest.approx(1)
    assert frame.loc["find_objects", "flip_vertical"] == pytest.approx(-1)
    assert frame.loc["find_objects", "find_objects"] == pytest.approx(1)


def test_cooccurrence_of_nothing_and_of_one_name():
    assert cooccurrence([]).shape == (0, 0)
    assert cooccurrence([FLIP, "x = 1"]).shape == (1, 1)


def test_picture_names_every_row():
    pytest.importorskip("matplotlib").use("Agg")
    ax = draw_cooccurrence(cooccurrence([FIND, FLIP]))
    assert [label.get_text() for label in ax.get_yticklabels()][:2] == [".area", ".grid"]
