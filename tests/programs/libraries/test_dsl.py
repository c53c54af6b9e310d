"""The grid DSL on grids small enough to read."""

import inspect
import subprocess
import sys

import numpy as np
import pytest

from arcnb.programs.libraries import dsl


def grid(*rows: str) -> np.ndarray:
    """Rows of digits as a grid."""
    return np.array([[int(cell) for cell in row] for row in rows])


def same(result, *rows: str) -> bool:
    return np.array_equal(result, grid(*rows))


L = grid("100", "110")

# function name -> (arguments after the grid L, expected rows)
ON_L = {
    "flip_horizontal": ((), ("001", "011")),
    "flip_vertical": ((), ("110", "100")),
    "transpose": ((), ("11", "01", "00")),
    "rotate_clockwise": ((), ("11", "10", "00")),
    "rotate_counterclockwise": ((), ("00", "01", "11")),
    "rotate_180": ((), ("011", "001")),
    "upscale": ((2,), ("110000", "110000", "111100", "111100")),
    "tile": ((1, 2), ("100100", "110110")),
    "pad": ((1, 4), ("44444", "41004", "41104", "44444")),
    "crop": ((0, 1, 2, 2), ("00", "10")),
    "crop_to_content": ((), ("10", "11")),
    "left_half": ((), ("1", "1")),
    "right_half": ((), ("0", "0")),
    "top_half": ((), ("100",)),
    "bottom_half": ((), ("110",)),
    "recolor": ((1, 5), ("500", "550")),
    "swap_colors": ((0, 1), ("011", "001")),
    "map_colors": (({0: 1, 1: 0},), ("011", "001")),
    "remove_color": ((1,), ("000", "000")),
    "keep_color": ((1,), ("100", "110")),
    "set_color": ((7,), ("700", "770")),
    "draw_pixel": ((0, 2, 3), ("103", "110")),
    "draw_horizontal_line": ((0, 3), ("333", "110")),
    "draw_vertical_line": ((2, 3), ("103", "113")),
    "draw_line": (((0, 0), (1, 1), 4), ("400", "140")),
    "draw_ray": (((0, 0), (0, 1), 4), ("144", "110")),
    "draw_rectangle": ((0, 1, 5, 5, 4), ("144", "144")),
    "draw_border": ((4,), ("444", "444")),
    "outline": ((4,), ("144", "114")),
    "flood_fill": ((0, 1, 6), ("166", "116")),
    "gravity": (("right",), ("001", "011")),
    "shift": ((0, 1), ("010", "011")),
    "shift_wrap": ((0, -1), ("001", "101")),
    "mirror_horizontal": ((), ("100001", "110011")),
    "mirror_vertical": ((), ("100", "110", "110", "100")),
    "connect_pixels": ((1,), ("100", "110")),
}


@pytest.mark.parametrize("name", ON_L)
def test_function_on_a_small_grid(name):
    arguments, expected = ON_L[name]
    before = L.copy()
    assert same(getattr(dsl, name)(L, *arguments), *expected)
    assert np.array_equal(L, before), "the argument was changed"


def test_every_grid_function_is_pure():
    """What comes back never shares memory that a program could write through."""
    for name, (arguments, _) in ON_L.items():
        result = getattr(dsl, name)(L, *arguments)
        assert not np.shares_memory(result, L), name
    for part in (*dsl.split_columns(L, 3), *dsl.split_rows(L, 2), *dsl.split_grid(L, 0)[0]):
        assert not np.shares_memory(part, L)


def test_downscale_undoes_upscale():
    assert np.array_equal(dsl.downscale(dsl.upscale(L, 3), 3), L)


def test_trim_undoes_pad():
    assert np.array_equal(dsl.trim(dsl.pad(L, 2), 2), L)


def test_draw_rectangle_clips_and_keeps_the_inside():
    empty = dsl.create_grid(4, 4)
    assert same(dsl.draw_rectangle(empty, -1, -1, 4, 4, 2, filled=False), "0020", "0020", "2220", "0000")
    assert same(dsl.draw_rectangle(empty, -3, -3, 2, 2, 2), *["0000"] * 4)


def test_lines_are_clipped():
    assert same(dsl.draw_line(dsl.create_grid(2, 3), (0, 0), (0, 9), 1), "111", "000")


def test_ray_stops_at_the_first_obstacle():
    assert same(dsl.draw_ray(grid("2000300"), (0, 0), (0, 1), 5), "2555300")


@pytest.mark.parametrize(
    ("direction", "rows"),
    [
        ("down", ("000", "010", "123")),
        ("up", ("113", "020", "000")),
        ("left", ("100", "230", "100")),
        ("right", ("001", "023", "001")),
    ],
)
def test_gravity_keeps_order(direction, rows):
    assert same(dsl.gravity(grid("010", "023", "100"), direction), *rows)


def test_stacking():
    assert same(dsl.stack_horizontal(L, L), "100100", "110110")
    assert same(dsl.stack_vertical(L, L), "100", "110", "100", "110")


def test_colors_and_counts():
    cells = grid("0122", "0133")
    assert dsl.colors(cells) == [1, 2, 3]
    assert dsl.colors(cells, None) == [0, 1, 2, 3]
    assert dsl.color_count(cells, 2) == 2
    assert dsl.mode_color(grid("01122", "00222")) == 2
    assert dsl.mode_color(cells) == 1, "the smallest of equals"
    assert dsl.least_color(grid("01122", "00222")) == 1
    assert dsl.color_mask(cells, 3).sum() == 2


def test_fill_enclosed_leaves_open_areas():
    assert same(dsl.fill_enclosed(grid("1110", "1010", "1110", "0101"), 5), "1110", "1510", "1110", "0101")


def test_connect_pixels_joins_neighbours_only_over_background():
    assert same(dsl.connect_pixels(grid("10020", "00000", "10001"), 1, 4), "10020", "40000", "14441")


def test_objects_in_reading_order_with_their_properties():
    cells = grid("0110003", "0100000", "0000444", "2000404", "0000444")
    first, dot, ring, last = dsl.find_objects(cells)
    assert (first.position, first.size, first.area, first.color) == ((0, 1), (2, 2), 3, 1)
    assert not first.is_rectangle
    assert (dot.position, dot.is_square, dot.is_line) == ((0, 6), True, False)
    assert (ring.n_holes, ring.center, ring.bottom, ring.right) == (1, (3, 5), 4, 6)
    assert ring.is_symmetric_horizontal
    assert ring.is_symmetric_vertical
    assert last.color == 2
    assert dsl.touches_border(cells, last)
    assert dsl.largest_object([first, dot, ring, last]) is ring
    assert dsl.smallest_object([first, dot, ring, last]) is dot
    assert [obj.area for obj in dsl.sort_objects([first, dot, ring], "area", reverse=True)] == [8, 3, 1]


def test_connectivity_and_colors_of_objects():
    cells = grid("120", "003")
    assert len(dsl.find_objects(cells)) == 3
    assert len(dsl.find_objects(cells, single_color=False)) == 2
    (whole,) = dsl.find_objects(cells, single_color=False, diagonal=True)
    assert whole.colors == [1, 2, 3]
    assert dsl.find_objects(grid("000")) == []
    assert [obj.color for obj in dsl.find_objects(grid("551"), background=5)] == [1]


def test_objects_move_recolor_turn_and_are_drawn_back():
    cells = grid("1000", "1100", "0000")
    (obj,) = dsl.find_objects(cells)
    erased = dsl.erase_object(cells, obj)
    assert not erased.any()
    assert same(dsl.draw_object(erased, obj.move(1, 2)), "0000", "0010", "0011")
    assert same(dsl.draw_object(erased, obj.move(-1, 3)), "0001", "0000", "0000"), "clipped"
    assert same(dsl.draw_object(erased, obj.move(9, 9)), "0000", "0000", "0000")
    assert same(dsl.draw_object(erased, obj.recolor(7).move_to(0, 2)), "0070", "0077", "0000")
    assert same(obj.flip_horizontal().grid, "01", "11")
    assert same(obj.flip_vertical().grid, "11", "10")
    assert same(obj.rotate_clockwise().grid, "11", "10")
    assert obj.same_shape(obj.recolor(5).move(3, 3))
    assert not obj.same_shape(obj.flip_vertical())


def test_crop_object_keeps_what_lies_in_its_box():
    cells = grid("110", "120")
    obj = dsl.find_objects(cells)[0]
    assert same(dsl.crop_object(cells, obj), "11", "12")
    assert same(obj.grid, "11", "10")


def test_slide_object_stops_before_an_obstacle():
    cells = grid("110", "000", "000", "020")
    assert same(dsl.slide_object(cells, dsl.find_objects(cells)[0], "down"), "000", "000", "110", "020")


def test_splitting():
    cells = grid("12512", "34534", "55555", "00511")
    parts = dsl.split_grid(cells, 5)
    assert [[part.tolist() for part in row] for row in parts] == [
        [[[1, 2], [3, 4]]] * 2,
        [[[0, 0]], [[1, 1]]],
    ]
    assert [part.tolist() for part in dsl.split_columns(L, 3)] == [[[1], [1]], [[0], [1]], [[0], [0]]]
    assert [part.tolist() for part in dsl.split_rows(L, 2)] == [[[1, 0, 0]], [[1, 1, 0]]]


def test_symmetry_is_tested_and_completed():
    assert dsl.is_symmetric_horizontal(grid("121", "333"))
    assert not dsl.is_symmetric_horizontal(L)
    assert dsl.is_symmetric_vertical(grid("12", "12"))
    assert same(dsl.complete_symmetry(grid("1221", "3443", "3400", "1200")), "1221", "3443", "3443", "1221")


def test_tilings_are_completed_by_the_smallest_tile():
    assert same(dsl.complete_tiling(grid("121212", "343434", "120012", "340034")), *["121212", "343434"] * 2)
    with pytest.raises(dsl.DslError, match="no tile"):
        dsl.complete_tiling(grid("123", "456", "789"))


def test_overlay_shows_the_bottom_through_the_background():
    assert same(dsl.overlay(grid("123"), grid("040")), "143")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dsl.create_grid(0, 3), "not 0x3"),
        (lambda: dsl.crop(L, 0, 2, 2, 2), r"crop of 2x2 at \(0, 2\) is not inside 2x3"),
        (lambda: dsl.crop_to_content(dsl.create_grid(2, 2)), "background color 0"),
        (lambda: dsl.trim(L), "crop of 0x1"),
        (lambda: dsl.mode_color(dsl.create_grid(2, 2)), "no color other"),
        (lambda: dsl.largest_object([]), "no objects"),
        (lambda: dsl.sort_objects([], by="weight"), "'weight'"),
        (lambda: dsl.gravity(L, "sideways"), "'sideways'"),
        (lambda: dsl.stack_horizontal(L, L.T), r"\[2, 3\]"),
        (lambda: dsl.stack_vertical(L, L.T), r"\[3, 2\]"),
        (lambda: dsl.overlay(L, L.T), r"\(3, 2\)"),
        (lambda: dsl.fill_mask(L, L.T == 0, 1), r"\(3, 2\)"),
        (lambda: dsl.flood_fill(L, 5, 5, 1), r"\(5, 5\)"),
        (lambda: dsl.split_columns(L, 2), "3 columns"),
        (lambda: dsl.split_rows(L, 3), "2 rows"),
        (lambda: dsl.draw_ray(L, (0, 0), (0, 0), 1), "step"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(dsl.DslError, match=message):
        call()


def test_every_public_function_has_a_manual_line_and_types():
    for name in dsl.__all__:
        value = getattr(dsl, name)
        assert inspect.getdoc(value), name
        if inspect.isfunction(value):
            assert inspect.signature(value).return_annotation is not inspect.Signature.empty, name


def test_importing_the_dsl_does_not_load_scipy():
    code = "import sys, arcnb.programs.libraries.dsl; sys.exit('scipy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
