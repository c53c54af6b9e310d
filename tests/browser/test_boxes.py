"""Pages on a phone, on a wide screen and on paper: the boxes of what they show, not their pixels."""

import base64
import json
import re
import zlib
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from arcnb.arc.predictions.prediction import Prediction, output_fingerprint
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.similarity import score
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.lab import opening, plots
from arcnb.lab.explorer.live import Explorer
from arcnb.lab.pages.export import export_run, notebook_page
from arcnb.lab.pages.index import write_index
from arcnb.lab.runs import cards
from arcnb.lab.runs.run import Run, new_run
from arcnb.search.comparing.showcase import highlights
from tests.paths import tooling

WIDTHS = (390, 800, 1600)
PAPER = 718  # pixels between the margins of A4
# Elements that reach over the side of the window, though none around them can be scrolled sideways.
OUTSIDE = """
const inside = (e) => { for (let p = e.parentElement; p; p = p.parentElement)
  if (p.scrollWidth > p.clientWidth && getComputedStyle(p).overflowX !== 'visible') return true;
  return false; };
return [...document.querySelectorAll('main *')].filter((e) => !e.closest('details:not([open])') &&
  e.getBoundingClientRect().right > innerWidth + 1 && !inside(e)).map((e) => e.outerHTML.slice(0, 120));"""
SCROLLING = """
return [...document.querySelectorAll('main *')].filter((e) => getComputedStyle(e).overflow !== 'visible' &&
  !(e instanceof SVGElement) && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1) &&
  e.clientWidth).map((e) => e.outerHTML.slice(0, 120));"""
# Cells of tables that are too narrow for the words in them: a letter a line.
NARROW = """
return [...document.querySelectorAll('td, th')].filter((e) => e.clientWidth &&
  e.textContent.trim().length > 8 && e.getBoundingClientRect().width < 40).map((e) => e.textContent);"""
# Numbers, words and badges in tables that take more than one line.
BROKEN = """
const broken = (e) => { const all = document.createRange(); all.selectNodeContents(e);
  const boxes = [...all.getClientRects()];
  return Math.max(...boxes.map((box) => box.top)) >= Math.min(...boxes.map((box) => box.bottom)); };
const cells = 'table.dataframe td, table.dataframe .arcnb-badge, table.rows td';
return [...document.querySelectorAll(cells)].filter((e) =>
  e.clientWidth && /^\\S{1,20}$/.test(e.textContent.trim()) && broken(e)).map((e) => e.textContent);"""


def answered(task, folder):
    """A set with a right and a nearly right prediction of the task."""
    outputs = [pair.output for pair in (*task.train, *task.test)]
    wrong = [output.copy() for output in outputs]
    for output in wrong:
        output[0, 0] = (output[0, 0] + 1) % 10
    program = "def transform(grid):\n    return " + " + ".join(["grid"] * 60)
    rows = []
    for index, made in enumerate((outputs, wrong)):
        row = Prediction(task.task_id, task.fingerprint, 0, index, program=program, status="ok", outputs=made)
        row.fingerprint = output_fingerprint(made)
        for name, value in score(made, task).items():
            setattr(row, name, value)
        rows.append(row)
    return rows


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of a run with an opening and whatever is wide or long, and its index: addresses."""
    folder = tmp_path_factory.mktemp("boxes")
    tasks = load_tasks("arc-agi-1/training")[:8]
    predictions = PredictionSet(folder / "predictions")
    predictions.write_part([row for task in tasks[3:5] for row in answered(task, folder)], 0)
    wide = pd.DataFrame({f"a column {n}": ["a sentence of several words", 0.123456] for n in range(14)})
    tall = pd.DataFrame({"n": range(120)})
    curve = pd.DataFrame(
        {"k": [1, 8], "mean": [0.1, 0.4], "low": [0.0, 0.2], "high": [0.2, 0.6], "n_short": 0}
    )
    shown = [wide, tall, tasks[0], highlights(tasks, predictions), plots.pass_at_k(curve)]
    htmls = [one._repr_html_() for one in shown[:4]]
    prose = "a sentence of several words " * 20
    row = f"<tr><td>{cards.badge('running')}</td><td>16.7 s</td><td>{prose}</td><td>0.026230</td></tr>"
    htmls.append(f'<table class="dataframe">{row}</table>')
    htmls.append(Explorer(tasks, predictions)._repr_mimebundle_()["text/html"])
    long = "a line without an end " * 40 + "and_a_word_without_an_end" * 20
    cells = [new_markdown_cell("# 06 · Evaluate\nThe purpose of it."), new_markdown_cell("## One\nText.")]
    cells += [
        new_code_cell("show", outputs=[new_output("display_data", {"text/html": html})]) for html in htmls
    ]
    two = plots.training_curves([{"step": n, "reward": n, "kl": 0.1} for n in range(9)], ["reward", "kl"])
    drawn = new_output("display_data", {"image/svg+xml": two._repr_svg_(), "text/plain": repr(two)})
    cells.append(new_code_cell("curves", outputs=[drawn]))
    cells.append(new_markdown_cell("## Two"))
    cells.append(new_code_cell("print", outputs=[new_output("stream", text=long, name="stdout")]))
    error = new_output("error", ename="ValueError", evalue=long, traceback=[long])
    cells.append(new_code_cell("raise", outputs=[error], metadata={"papermill": {"status": "failed"}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCNB_RUNS", str(folder / "runs"))
        parameters = {"tasks": "/a/long/path" * 20, "n": 3}
        run = new_run("boxes", parameters, {"path": str(folder / "06_evaluate.ipynb"), "sha256": ""})
        nbformat.write(new_notebook(cells=cells), run.copy_path)
        opening(run, "One of 8 tasks is solved (13%, 95% interval 2 to 47%).", shown[3], shown[4])
        run.record({"raw": 0.5, "table": wide, "a name of a value that is quite long": long})
        index = write_index([run], folder / "index.html", "All")
        return {"page": export_run(run, index).as_uri(), "index": index.as_uri()}


@pytest.mark.parametrize("which", ["page", "index"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_reaches_over_the_side_of_the_window(browser, pages, which, width):
    browser.open(pages[which], width=width)
    browser.run(
        "document.querySelectorAll('details.folded, .facts details').forEach((d) => { d.open = true; })"
    )
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(OUTSIDE) == []
    assert browser.run(NARROW) == []
    assert browser.run(BROKEN) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_screen_holds_the_sentences_and_the_beginning_of_the_picture(browser, pages, width):
    browser.open(pages["page"], width=width)
    bottom = browser.run("return document.querySelector('.headline').getBoundingClientRect().bottom")
    top = browser.run("return document.querySelector('.highlights svg').getBoundingClientRect().bottom")
    assert 0 < bottom < top < 700


def test_the_letters_of_drawings_can_be_read_on_a_phone(browser, pages):
    browser.open(pages["page"], width=390)
    scale = "return [...document.querySelectorAll('img.drawing')].map((e) => e.width / e.naturalWidth)"
    shown = browser.run(scale)
    assert len(shown) == 2
    assert all(10 * 4 / 3 * one > 8 for one in shown), "letters of 10 points, in pixels"


@pytest.mark.parametrize("which", ["page", "index"])
def test_paper_has_no_scroll_bars_and_cuts_nothing(browser, pages, which):
    browser.open(pages[which], width=PAPER, printed=True)
    assert browser.run(SCROLLING) == []
    assert browser.run(OUTSIDE) == []
    assert browser.run("return getComputedStyle(document.querySelector('.bar')).display") == "none"


def test_headings_stay_with_what_follows_and_sheets_are_a4(browser, pages):
    browser.open(pages["page"], printed=True)
    avoid = "return [...document.querySelectorAll('main h1, main h2, main h3, .arcnb-head')]"
    assert browser.run(f"{avoid}.every((e) => getComputedStyle(e).breakAfter === 'avoid')")
    pdf = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27})["data"])
    boxes = [list(map(float, box.split())) for box in re.findall(rb"/MediaBox \[([^\]]*)\]", pdf)]
    assert 2 < len(boxes) < 40
    assert all(abs(box[2] - 595) < 2 for box in boxes), "A4, not shrunk"


def last_letters(pdf):
    """The size of the letters that stand last on each sheet of a PDF of Chromium's, in pixels."""
    objects = dict(re.findall(rb"\n(\d+) 0 obj\n(.*?)\nendobj", pdf, re.DOTALL))
    for sheet in objects.values():
        if re.search(rb"/Type\s*/Page\b", sheet):
            stream = objects[re.search(rb"/Contents (\d+) 0 R", sheet)[1]].partition(b"stream\n")[2]
            drawn = zlib.decompressobj().decompress(stream)
            yield float(re.findall(rb"/F\d+ ([\d.]+) Tf", drawn)[-1])


def test_no_sheet_ends_with_a_heading(browser, tmp_path):
    cells = [new_markdown_cell("# Long")]
    for number in range(60):
        lines = "\n\n".join(["A line of text."] * (1 + number % 7))
        cells.append(new_markdown_cell(f"{'#' * (2 + number % 2)} Heading {number}\n{lines}"))
    (tmp_path / "page.html").write_text(notebook_page(new_notebook(cells=cells)))
    browser.open((tmp_path / "page.html").as_uri(), printed=True)

    def sheets():
        sizes = {"paperWidth": 8.27, "paperHeight": 11.69}
        printed = browser.driver.execute_cdp_cmd("Page.printToPDF", sizes)
        return list(last_letters(base64.b64decode(printed["data"])))

    kept = sheets()
    assert len(kept) > 8
    assert max(kept) <= 16, "text, not headings"
    browser.run(
        "document.head.insertAdjacentHTML('beforeend', '<style>* { break-after: auto !important }</style>')"
    )
    assert max(sheets()) > 16, "else there is nothing to see here"


def test_the_explorer_opens_on_predictions_and_answers_the_keyboard(browser, pages):
    from selenium.webdriver.common.keys import Keys

    browser.open(pages["page"])
    browser.wait(lambda: browser.count(".arcnb-explorer .says"))
    assert browser.run("return document.querySelector('.arcnb-explorer select.task').selectedIndex") == 3
    explorer = browser.find(".arcnb-explorer")
    explorer.send_keys(Keys.ARROW_RIGHT)
    assert browser.text(".arcnb-explorer .says").startswith("prediction 2 of 2")
    lines = "svg[aria-label^=difference] path[fill-opacity]"
    assert browser.count(f".arcnb-explorer {lines}"), "right cells of a difference have lines, too"
    explorer.send_keys(Keys.SHIFT + Keys.ARROW_RIGHT)
    assert browser.run("return document.querySelector('.arcnb-explorer select.task').selectedIndex") == 4
    browser.find(".prediction-next").send_keys(Keys.ENTER)
    assert browser.run("return document.querySelector('.arcnb-explorer').contains(document.activeElement)")
    browser.run(
        "const rate = document.querySelector('.arcnb-explorer select.rate'); rate.value = 'predicted';"
        "rate.dispatchEvent(new Event('change'))"
    )
    assert browser.text(".arcnb-explorer .count") == "2 of 8 tasks"
    assert browser.errors() == []


def test_every_picture_has_a_text_that_says_numbers(browser, pages):
    browser.open(pages["page"])
    alts = browser.run("return [...document.querySelectorAll('main img')].map((e) => e.alt)")
    labels = browser.run("return [...document.querySelectorAll('svg.arcnb-grid')].map((e) => e.ariaLabel)")
    curves = "reward: 0 at 0 to 8 at 8. kl: 0.1 at 0 to 0.1 at 8"
    assert alts == ["pass@k, tasks solved (%): 10 at 1 to 40 at 8", curves]
    assert all(re.match(r"(grid|difference) \d+x\d+(:| with the values) ", label) for label in labels)


@pytest.mark.long("starts a browser of its own")
def test_the_gallery_has_every_page_and_its_screens_in_a_few_kilobytes(pages, tmp_path):
    page = Path(pages["page"].removeprefix("file://"))
    index = Path(pages["index"].removeprefix("file://"))
    gallery, run = tooling("gallery"), Run(page.parent)
    kept = {
        "05_grpo": {
            "folder": "1-gpu",
            "run": "gpu",
            "machine": "a GPU",
            "day": "yesterday",
            "said": "It learns.",
        }
    }
    (tmp_path / gallery.MADE).write_text(json.dumps(kept))
    made = gallery.write_gallery(tmp_path, [page, page], index)
    names = ("index", "06_evaluate", "06_evaluate-boxes")
    pictures = {path.name: path for path in made.parent.glob("*.webp")}
    screens = {f"{name}-{width}.webp" for name in names for width in (1300, 390)}
    assert set(pictures) == screens | {"explorer.webp"}
    for name, path in pictures.items():
        assert path.stat().st_size < 150_000
        assert name not in screens or Image.open(path).width == int(name.rpartition("-")[2][:-5])
    told = (
        "![06_evaluate, 390 pixels wide: One of 8 tasks is solved (13%, 95% interval 2 to 47%).](06_evaluate"
    )
    text = made.read_text()
    assert "Run `gpu`, yesterday. Machine: a GPU." in text, "pages of other runs stay"
    assert f"{told}-390.webp)" in text
    assert "* Did RL help? The first screen of [06_evaluate](#06_evaluate)." in text
    ran = r"^Run `boxes`, 20[\d-]+\. Machine: .+, \d+ cores, [\d.]+ GB, .+\. \[The whole page\]"
    assert re.search(ran + r"\(pages/06_evaluate", text, flags=re.MULTILINE)
    whole = (made.parent / "pages/06_evaluate.html").read_text()
    assert '<a href="index.html">all runs</a>' in whole
    assert "<li>06_evaluate.ipynb</li>" in whole, "a file that is not there has no link"
    assert str(run.manifest["cwd"]) + "/" not in whole
