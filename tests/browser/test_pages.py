"""Exported pages in a real browser."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from arcnb.arc.pictures.palettes import PALETTES
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.lab.explorer.live import Explorer
from arcnb.lab.pages.export import notebook_page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a notebook whose outputs are an explorer of six tasks, a task and a prediction."""
    folder = tmp_path_factory.mktemp("page")
    tasks = load_tasks("arc-agi-1/training")[:6]

    def made(task, index, right):
        outputs = [pair.output.copy() for pair in (*task.train, *task.test)]
        for output in outputs:
            output[0, 0] = (output[0, 0] + (0 if right else 1)) % 10
        scores = {
            f"{part}_{score}": float(right) for part in ("train", "test") for score in ("correct_grids",)
        }
        scores |= {"train_is_correct": int(right), "test_is_correct": int(right)}
        return Prediction(
            task.task_id,
            task.fingerprint,
            round=0,
            index=index,
            program=f"# program {index}",
            status="ok",
            outputs=outputs,
            fingerprint=str(right),
            **scores,
        )

    predictions = PredictionSet(folder / "predictions")
    rows = [made(tasks[0], 0, False), made(tasks[0], 1, True), made(tasks[1], 0, False)]
    predictions.write_part(rows, 0)
    explorer = Explorer(tasks, predictions)._repr_mimebundle_()["text/html"]
    htmls = [explorer, tasks[2]._repr_html_(), rows[0].card(tasks[0])]
    cells = [new_markdown_cell("# A page\nTo look at.\n\n## One\n\n## Two")]
    for html in htmls:
        cells.append(new_code_cell("show()", outputs=[new_output("display_data", {"text/html": html})]))
    path = folder / "page.html"
    path.write_text(notebook_page(new_notebook(cells=cells)), encoding="utf-8")
    return path.as_uri()


def test_links_and_contents_lead_to_the_section_that_they_name(browser, tmp_path):
    """Also to one that is called as a button of the page is, and by the name that JupyterLab gives it."""
    text = '# A page\n[there](#2-·-Über-"uns")\n\n## Code\n\n## 2 · Über "uns"\n\n'
    path = tmp_path / "page.html"
    path.write_text(notebook_page(new_notebook(cells=[new_markdown_cell(text)])), encoding="utf-8")
    browser.open(path.as_uri())
    target = "document.querySelector(':target').closest('h2').textContent"
    for link, section in (("nav li:first-child a", "Code"), ("main p a", '2 · Über "uns"')):
        browser.find(link).click()
        assert browser.run(f"return {target}") == section
    assert browser.count("nav a.here") == 1
    assert browser.text("nav a.here") == '2 · Über "uns"'


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_renders_without_script_errors_and_without_requests(browser, page, dark):
    browser.open(page, dark)
    browser.wait(lambda: browser.count(".arcnb-explorer .arcnb-grid"))
    assert browser.text("h1") == "A page"
    assert browser.errors() == []
    assert browser.hosts() == set()
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


def test_the_check_sees_errors_and_requests(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://example.org/x.png'><script>throw new Error('seen')</script>")
    browser.open(bad.as_uri())
    assert any("seen" in message for message in browser.errors())
    assert browser.hosts() == {"example.org"}


def test_the_buttons_open_the_code_and_change_the_theme(browser, page):
    browser.open(page)
    assert browser.count("details.code[open]") == 0
    browser.find("#code").click()
    assert browser.count("details.code[open]") == browser.count("details.code") == 3
    assert browser.text("#code") == "Hide code"
    browser.find("#theme").click()
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert browser.run("return document.body.dataset.jpThemeLight") == "false"
    browser.find("#theme").click()
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_explorer_of_a_page_filters_and_pages(browser, page):
    browser.open(page)
    browser.wait(lambda: browser.text(".arcnb-explorer .count") == "6 of 6 tasks")
    assert browser.text(".arcnb-explorer .says").startswith("prediction 1 of 2")
    assert "solved" in browser.text(".arcnb-explorer .says")
    assert browser.text(".arcnb-explorer pre") == "# program 1"
    browser.find(".prediction-next").click()
    assert browser.text(".arcnb-explorer .says").startswith("prediction 2 of 2")
    assert browser.text(".arcnb-explorer pre") == "# program 0"
    assert "difference" in browser.text(".arcnb-explorer .view") or "shape" in browser.text(
        ".arcnb-explorer .view"
    )
    assert not browser.find(".prediction-next").is_enabled()
    browser.find(".task-next").click()
    assert browser.text(".arcnb-explorer .says").startswith("prediction 1 of 1")
    browser.run(
        "const rate = document.querySelector('.arcnb-explorer select.rate'); rate.value = 'solved';"
        "rate.dispatchEvent(new Event('change'))"
    )
    assert browser.text(".arcnb-explorer .count") == "1 of 6 tasks"
    browser.find(".arcnb-explorer input.text").send_keys("zzz")
    assert browser.text(".arcnb-explorer .view") == "No task fits."
    assert browser.errors() == []


def test_a_color_filter_needs_all_its_colors(browser, page):
    browser.open(page)
    browser.wait(lambda: browser.count(".arcnb-explorer .swatch") == 10)
    tasks = load_tasks("arc-agi-1/training")[:6]
    values = [
        {int(v) for p in (*t.train, *t.test) for g in (p.input, p.output) for v in g.flat} for t in tasks
    ]
    browser.run("document.querySelectorAll('.arcnb-explorer .swatch')[7].click()")
    browser.run("document.querySelectorAll('.arcnb-explorer .swatch')[0].click()")
    wanted = sum({0, 7} <= colors for colors in values)
    assert browser.text(".arcnb-explorer .count") == f"{wanted} of 6 tasks"


def test_the_reader_chooses_the_grid_colors(browser, page):
    browser.open(page)
    browser.wait(lambda: browser.count(".arcnb-explorer .arcnb-grid"))

    def colors():
        script = (
            "return [...document.querySelectorAll('.arcnb-grid .c2')].map((e) => getComputedStyle(e).fill)"
        )
        return set(browser.run(script))

    def rgb(color):
        return f"rgb({int(color[1:3], 16)}, {int(color[3:5], 16)}, {int(color[5:7], 16)})"

    assert colors() == {rgb(PALETTES["arc"][2])}
    for name in [*[name for name in PALETTES if name != "arc"], "arc"]:
        browser.find("#palette").click()
        assert browser.text("#palette") == f"Grid colors: {name}"
        assert colors() == {rgb(PALETTES[name][2])}, "in svg of Python and of the explorer's script"


def test_a_cell_says_its_row_column_and_value_and_paper_is_light(browser, page):
    browser.open(page, dark=True)
    browser.wait(lambda: browser.count(".arcnb-explorer .arcnb-grid"))
    titles = browser.run(
        "return [...document.querySelectorAll('.arcnb-grid title')].map((e) => e.textContent)"
    )
    assert "row 0, column 0: 0" in titles
    assert any("expected" in title for title in titles)
    browser.find("#theme").click()
    browser.find("#theme").click()
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
