"""What a page opens with, what it leaves out, and where it leads."""

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from arcnb.lab import opening, plots
from arcnb.lab.pages.export import export_run, notebook_page
from arcnb.lab.pages.index import write_index
from arcnb.lab.runs.run import new_run


def seen(text="something"):
    return [new_output("stream", text=text, name="stdout")]


def code(source, outputs=(), count=1):
    return new_code_cell(source, outputs=list(outputs), execution_count=count)


@pytest.fixture
def run(tmp_path):
    """A run of a notebook with a title and its purpose."""
    made = new_run("first", {}, {"path": str(tmp_path / "06_evaluate.ipynb"), "sha256": ""})
    cells = [new_markdown_cell("# 06 · Evaluate\nThe purpose. More of it."), code("1", seen())]
    nbformat.write(new_notebook(cells=cells), made.copy_path)
    return made


def curve():
    return pd.DataFrame(
        {"k": [1, 8], "mean": [0.1, 0.4], "low": [0.0, 0.2], "high": [0.2, 0.6], "n_short": 0}
    )


def test_a_page_opens_with_the_sentences_and_a_picture_whose_text_says_its_numbers(run):
    opening(run, "6 of 16 tasks <solved>.", plots.pass_at_k(curve()), None, pd.DataFrame({"n": [7]}))
    run.record({"raw": 0.000588734})
    page = export_run(run).read_text()
    assert "<title>first · 06 · Evaluate</title>" in page
    places = [
        page.index(text)
        for text in (
            "<h1", "The purpose.", "6 of 16 tasks &lt;solved&gt;.", "alt=", "More of it.", "0.000588734",
        )
    ]  # fmt: skip
    assert places == sorted(places), "what it is for, what came out, a picture, and all else folded"
    assert 'alt="pass@k, tasks solved (%): 10 at 1 to 40 at 8"' in page
    for place in places[4:]:
        assert page.rindex("<details", 0, place) > page.rfind("</details>", 0, place)


def test_a_run_without_an_opening_shows_its_purpose_unfolded(run):
    page = export_run(run).read_text()
    assert 'class="headline"' not in page
    assert 'class="about"' not in page
    assert "The purpose." in page


def test_sections_that_show_nothing_are_left_out_and_those_not_run_stay():
    cells = [
        new_markdown_cell("# Title\nPurpose"),
        new_markdown_cell("## Empty"), code("a = 1"),
        new_markdown_cell("## Shown below"), code("b = 1"),
        new_markdown_cell("More of it:"), code("print()", seen()),
        new_markdown_cell("### Part without"), code("None"),
        new_markdown_cell("## Gone with its parts"), code("c = 1"),
        new_markdown_cell("### Gone part"), code("None", seen(" \n")),
        new_markdown_cell("## Not run"), code("d = 1", count=None),
    ]  # fmt: skip
    page = notebook_page(new_notebook(cells=cells))
    shown = [
        text
        for text in ("Empty", "Shown below", "Part without", "More of it", "Gone", "Not run")
        if text in page
    ]
    assert shown == ["Shown below", "More of it", "Not run"]
    assert "Sections that show nothing are left out" in page
    assert "left out" not in notebook_page(new_notebook(cells=cells[:1] + cells[-2:]))


def test_pages_lead_to_index_parents_children_and_files_also_in_a_moved_runs_folder(run, tmp_path):
    (run.path / "tasks here.parquet").write_bytes(b"12345")
    run.record(artifacts=["tasks here.parquet"])
    child = new_run("second", {"predictions": str(run.path)}, {"path": "06_evaluate.ipynb", "sha256": ""})
    child.record()
    nbformat.write(nbformat.read(run.copy_path, as_version=4), child.copy_path)
    for one in (run, child):
        export_run(one)
    moved = run.path.parent.rename(tmp_path / "elsewhere")
    run, child = (type(one)(moved / one.path.name) for one in (run, child))
    write_index([run, child], moved / "index.html", "All")
    page, below = export_run(run).read_text(), export_run(child).read_text()
    assert '<a href="../index.html">all runs</a>' in page
    assert f'used by: <a href="../{child.path.name}/06_evaluate.html">second</a>' in page
    assert f'made from: <a href="../{run.path.name}/06_evaluate.html">first</a>' in below
    assert '<a href="tasks%20here.parquet">tasks here.parquet (5 B)</a>' in page
    assert str(tmp_path) not in page.split("<footer>")[0].split('class="facts"')[0]


def test_several_evaluations_on_an_index_are_a_block_each_by_name(run, tmp_path):
    other = new_run("second", {}, {"path": "06_evaluate.ipynb", "sha256": ""})
    inference = new_run("samples", {}, {"path": "03_inference.ipynb", "sha256": ""})
    for number, one in enumerate((run, other, inference)):
        opening(one, f"Sentence {number}.", pd.DataFrame({"n": [number]}))
    for one in (run, other):
        one.record({"table": [{"metric": "solved", "value": "1"}]})
    page = (
        write_index([run, inference, other], tmp_path / "index.html", "All").read_text().split("<h2>Runs")[0]
    )
    assert [text in page for text in ("<h2>first</h2>", "<h2>second</h2>", "samples")] == [True, True, False]
    assert page.index("Sentence 0.") < page.index("<h2>second</h2>") < page.index("Sentence 1.")
