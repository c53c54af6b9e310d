"""Drawing: well-formed, complete, small pictures that need nothing from outside."""

import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from arcnb.arc.grids import as_grid
from arcnb.arc.pictures.figures import difference_svg, grid_svg, prediction_html
from arcnb.arc.pictures.palettes import PALETTES, palette_css, use_palette
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Pair, Task

SVG = "{http://www.w3.org/2000/svg}"


def grid(height: int, width: int):
    return as_grid(rng(0, "drawing").integers(0, 10, (height, width)))


def cells(svg: str) -> dict[tuple[int, int], tuple[str, str]]:
    """(row, column) -> (fill, title) of every titled cell."""
    found = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        for path in group.findall(f"{SVG}path"):
            title = path.find(f"{SVG}title")
            if title is not None:
                column, row = re.match(r"M(\d+) (\d+)h1v1h-1z$", path.get("d")).groups()
                found[int(row), int(column)] = (group.get("fill"), title.text)
    return found


def well_formed(html: str) -> ET.Element:
    named = {"&rarr;": "→", "&middot;": "·", "&#10003;": "✓", "&#10007;": "✗"}
    for entity, character in named.items():
        html = html.replace(entity, character)
    return ET.fromstring(f"<div>{html}</div>")


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (30, 1), (3, 5), (30, 30)])
@pytest.mark.parametrize("palette", PALETTES)
def test_every_cell_is_drawn_in_its_colour_and_says_where_it_is(shape, palette, monkeypatch):
    monkeypatch.setenv("ARCNB_PALETTE", palette)
    g = grid(*shape)
    found = cells(grid_svg(g))
    assert len(found) == g.size
    for (row, column), (fill, title) in found.items():
        assert fill == PALETTES[palette][g[row, column]]
        assert title == f"row {row}, column {column}: {g[row, column]}"


def test_small_and_large_grids_are_legible():
    for shape, smallest, largest in (((1, 1), 20, 30), ((30, 30), 150, 250), ((1, 30), 150, 250)):
        svg = ET.fromstring(grid_svg(grid(*shape)))
        assert smallest <= int(svg.get("width")) <= largest
    assert ET.fromstring(grid_svg(grid(3, 4), cell=10)).get("width") == "42"


def test_thumbnails_show_the_same_cells_without_titles():
    g = grid(7, 9)
    painted = np.full(g.shape, -1)
    for group in ET.fromstring(grid_svg(g, hover=False)).iter(f"{SVG}g"):
        for path in group.findall(f"{SVG}path"):
            for column, row, n in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", path.get("d")):
                painted[int(row), int(column) : int(column) + int(n)] = PALETTES["arc"].index(
                    group.get("fill")
                )
    assert painted.tolist() == g.tolist()
    assert "<title>" not in grid_svg(g, hover=False)


def test_ten_of_the_largest_grids_stay_under_a_megabyte():
    assert 10 * len(grid_svg(grid(30, 30), compare=as_grid(9 - grid(30, 30)))) < 1_000_000
    assert len(grid_svg(grid(30, 30), hover=False)) < 15_000


def test_cells_that_differ_are_marked_and_say_what_was_expected():
    expected = as_grid([[1, 2], [3, 4]])
    svg = grid_svg(as_grid([[1, 2], [3, 5]]), compare=expected)
    assert cells(svg)[1, 1][1] == "row 1, column 1: 5, expected 4"
    assert svg.count("M1.5 1.5h0") == 2  # one dot, white in black
    assert grid_svg(expected, compare=expected) == grid_svg(expected)
    assert grid_svg(as_grid([[1]]), compare=expected) == grid_svg(as_grid([[1]]))


def test_the_difference_shows_both_colours_of_a_wrong_cell_and_nothing_else():
    expected = as_grid([[1, 2], [3, 4]])
    svg = difference_svg(expected, as_grid([[1, 2], [3, 5]]))
    root = ET.fromstring(svg)
    drawn = {g.get("class"): g[0].get("d") for g in root.iter(f"{SVG}g") if g.get("class")}
    assert drawn == {"c4": "M1 1h1l-1 1z", "c5": "M2 1v1h-1z"}
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles[0] == "row 0, column 0: 1, right"
    assert titles[3] == "row 1, column 1: 5, expected 4"
    with pytest.raises(ValueError, match="no difference"):
        difference_svg(expected, as_grid([[1]]))


def test_the_palette_is_a_setting_of_the_process_and_of_the_page(monkeypatch):
    g = as_grid([[1]])
    assert PALETTES["arc"][1] in grid_svg(g)
    monkeypatch.setenv("ARCNB_PALETTE", "colorblind")
    assert PALETTES["colorblind"][1] in grid_svg(g)
    monkeypatch.setattr("arcnb.arc.pictures.palettes._chosen", {})
    use_palette("arc")
    assert PALETTES["arc"][1] in grid_svg(g)
    with pytest.raises(ValueError, match="no palette 'colourblind'; did you mean 'colorblind'"):
        use_palette("colourblind")
    rule = f':root[data-palette="colorblind"] .arcnb-grid .c1{{fill:{PALETTES["colorblind"][1]}}}'
    assert rule in palette_css()
    assert 'class="arcnb-grid"' in grid_svg(g)
    assert 'class="c1"' in grid_svg(g)


def task(known: bool = True) -> Task:
    test = Pair(as_grid([[5]]), as_grid([[6, 7]]) if known else None)
    return Task(
        "a<b>&c", (Pair(as_grid([[1, 2]]), as_grid([[2, 1]])), Pair([[3]], [[4]])), (test,), source="s<p>"
    )


def drawn(of: Task, outputs) -> str:
    return prediction_html(of.task_id, of.named_pairs, outputs)


def test_a_task_shows_every_pair_and_escapes_its_names():
    html = task()._repr_html_()
    well_formed(html)
    assert html.count("<svg") == 6
    assert "a&lt;b&gt;&amp;c" in html
    assert "s&lt;p&gt;" in html
    assert ">?</div>" in task(known=False)._repr_html_()


def test_a_prediction_shows_input_expected_produced_difference_and_a_verdict():
    outputs = [as_grid([[2, 2]]), as_grid([[4]]), as_grid([[6]])]
    html = drawn(task(), outputs)
    well_formed(html)
    assert html.count("<svg") == 10
    captions = re.findall(r'class="arcnb-cap">([^<]*)<', html)
    assert captions == ["input", "expected", "produced", "difference", *["input", "expected", "produced"] * 2]
    verdicts = re.findall(r'class="arcnb-note">([^<]*)<', html)
    assert verdicts == [
        "train 0: &#10007; 1 of 2 cells differ",
        "train 1: &#10003; right",
        "test 0: &#10007; shape 1x1 instead of 1x2",
    ]


def test_missing_outputs_and_unknown_answers_are_said():
    html = drawn(task(known=False), [None, as_grid([[4]]), as_grid([[6]])])
    assert "train 0: no output" in html
    assert "test 0: 1x1, expected output unknown" in html
    assert drawn(task(), None).count(": no output") == 3
    with pytest.raises(ValueError, match="shorter"):
        drawn(task(), [None])


def test_pages_load_nothing_from_outside():
    html = task()._repr_html_() + drawn(task(), None)
    outside = html.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|<script|<link|@import|url\(", outside)


def test_text_takes_the_colour_of_the_page_so_that_dark_pages_work():
    style = re.search(r"<style>(.*?)</style>", task()._repr_html_())[1]
    assert ".arcnb{color:inherit" in style
    assert re.findall(r"#[0-9a-f]{3,6}", style) == []


# ---------------------------------------------------------------- colours for every eye

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


def lab(color: str, sight: str) -> np.ndarray:
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(SIGHT[sight]) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_colours_of_the_colorblind_palette_can_be_told_apart(sight):
    seen = [lab(color, sight) for color in PALETTES["colorblind"]]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 29.5


def test_any_two_colours_of_the_lightness_palette_differ_in_lightness():
    lightness = [lab(color, "normal")[0] for color in PALETTES["lightness"]]
    assert min(b - a for a, b in itertools.pairwise(lightness)) > 10
