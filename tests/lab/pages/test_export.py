"""Exported pages: everything inside, nothing from outside, small enough. (In a browser: tests/browser.)"""

import base64

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.pages import export
from arcnb.lab.pages.export import export_run, notebook_page
from arcnb.lab.pages.fragments import external_references, without_external
from arcnb.lab.pages.index import write_index
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.run import new_run

PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c636060606000000005000157bfabd40000000049454e44ae426082"
    )
).decode()
TEXT = """# The title
What this is: [a link](https://example.org/page) and ![remote](https://example.org/a.png)
and ![local](pic.png) and ![inside](attachment:b.png) and ![gone](nowhere.png).

## First part
<script src="https://cdn.example.org/x.js"></script><link rel="stylesheet" href="//cdn.example.org/y.css">

### Detail
## First part
"""
WIDGET = "application/vnd.jupyter.widget-view+json"
HOSTILE = (
    '<style>@import "https://example.org/a.css"; p { background: url(//example.org/b.png) }</style>'
    "<iframe src='http://example.org'></iframe><video poster=https://example.org/c.png></video>"
    '<svg xmlns="http://www.w3.org/2000/svg"><image href="https://example.org/d.png"/><use href="#x"/></svg>'
    '<a href="https://example.org">stays</a><table class="dataframe"><tr><td>1</td></tr></table>'
)


@pytest.fixture
def executed(tmp_path):
    """A notebook with every kind of output, as an engine would leave it."""
    (tmp_path / "pic.png").write_bytes(base64.b64decode(PNG))
    display = [
        new_output("display_data", {"text/html": HOSTILE, "text/plain": "x"}),
        new_output("display_data", {"image/png": PNG, "text/plain": "<Figure>"}),
        new_output("display_data", {"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg'/>"}),
        new_output("execute_result", {"text/plain": "{'a': '<b>'}"}, execution_count=1),
        new_output("display_data", {WIDGET: {"model_id": "1"}, "text/plain": "Loading: 0%"}),
        new_output("display_data", {WIDGET: {"model_id": "2"}, "text/html": "<p>as a page</p>"}),
        new_output("stream", text="10%\r50%\r100%\n", name="stderr"),
        new_output("stream", text="\x1b[31mred\x1b[0m & <plain>\n", name="stdout"),
    ]
    error = new_output(
        "error", ename="ValueError", evalue="n < 0", traceback=["\x1b[31mValueError\x1b[0m: n < 0"]
    )
    cells = [
        new_markdown_cell(TEXT, attachments={"b.png": {"image/png": PNG}}),
        new_code_cell("n = 3  # how many things", metadata={"tags": ["parameters"]}),
        new_code_cell(
            "# why\nshow('<everything>')", outputs=display, metadata={"papermill": {"duration": 12.34}}
        ),
        new_markdown_cell("A banner.", metadata={"tags": ["papermill-error-cell-tag"]}),
        new_code_cell("raise ValueError", outputs=[error], metadata={"papermill": {"status": "failed"}}),
        new_code_cell("never()", metadata={"papermill": {"status": "pending"}}),
        new_code_cell(
            "", outputs=[new_output("execute_result", {"text/html": '<div class="arcnb-run">card'})]
        ),
    ]
    return new_notebook(cells=cells)


@pytest.fixture
def run(executed, tmp_path):
    run = new_run("shown", {"n": 5}, {"path": str(tmp_path / "shown.ipynb"), "sha256": ""})
    run.record({"rate": 0.125, "rows": [{"task": "a", "solved": 1}, {"task": "b", "solved": 0}]})
    nbformat.write(executed, run.copy_path)
    return run


def test_a_page_holds_all_of_the_notebook_and_the_run(run):
    page = export_run(run).read_text()
    assert "<h1" in page
    assert '<a href="#first-part">First part</a>' in page
    assert '<a href="#first-part-2">First part</a>' in page
    assert page.count(PNG) == 3
    assert 'href="https://example.org/page"' in page
    assert '<a href="https://example.org/a.png">remote</a>' in page
    assert "[no picture nowhere.png]" in page
    assert "100%" in page
    assert "50%" not in page, "what a carriage return overwrote is gone"
    assert '<span class="ansi-red-fg">red</span> &amp; &lt;plain&gt;' in page
    assert "{&#x27;a&#x27;: &#x27;&lt;b&gt;&#x27;}" in page
    assert "12.3 s" in page
    assert page.count('<details class="code" id="stopped" open>') == 1, "only the failing cell is open"
    assert page.count("not run") == 1
    assert "A banner." not in page
    assert "Loading: 0%" not in page, "a widget's first state is no result"
    assert "<p>as a page</p>" in page
    assert ">card" not in page
    assert "how many things" in page
    assert "<summary>parameters<code>" not in page, "they stand on top, once"
    assert 'title="default: 3"' in page
    assert "0.125" in page
    assert run.path.name in page


def test_every_local_picture_stands_in_the_page_or_is_named(run, executed, tmp_path):
    (tmp_path / "my pic.png").write_bytes(base64.b64decode(PNG))
    (tmp_path / "sound.wav").write_bytes(b"RIFF")
    executed["cells"] = [
        new_markdown_cell(
            '![one](my%20pic.png) ![two](<my pic.png>) <img src="pic.png" width=9> '
            "![three](attachment:my%20pic.png)\n\n<img src='gone away.png'>"
            "<img alt=x src=https://example.org/far.png>",
            attachments={"my pic.png": {"image/png": PNG}},
        ),
        new_code_cell(
            "show()",
            outputs=[
                new_output(
                    "display_data", {"text/html": "<IMG src='my pic.png'><audio src=sound.wav></audio>"}
                ),
                new_output("display_data", {"text/markdown": "![four](my%20pic.png)"}),
            ],
        ),
    ]
    nbformat.write(executed, run.copy_path)
    page = export_run(run).read_text()
    assert page.count(f"data:image/png;base64,{PNG}") == 6
    assert "width=9>" in page
    assert "data:audio/x-wav;base64,UklGRg==" in page
    assert "[no picture gone away.png]" in page
    assert '<a href="https://example.org/far.png">picture</a>' in page
    assert external_references(page) == []


@pytest.mark.parametrize("width", [300, 300.5, "50%", "300px", None])
def test_a_picture_is_as_wide_as_its_cell_asked_for(width):
    output = new_output("display_data", {"image/png": PNG}, metadata={"image/png": {"width": width}})
    page = notebook_page(new_notebook(cells=[new_code_cell("Image('a.png')", outputs=[output])]))
    assert page.count(f' width="{width}">') == (width is not None)


def test_a_page_that_is_sent_has_no_dead_links(run, executed, tmp_path):
    (tmp_path / "01_next.ipynb").write_text("")
    (run.path / "table.csv").write_text("")
    executed["cells"][0]["source"] += "\n[next](01_next.ipynb#part), [gone](02_gone.ipynb), [own](table.csv)"
    executed["cells"][0]["source"] += ", [there](https://arcprize.org), [here](#small)"
    nbformat.write(executed, run.copy_path)
    page = export_run(run).read_text()
    assert ">next, gone, <a" in page
    for link in ('"table.csv">own', '"https://arcprize.org">there', '"#small">here'):
        assert f"<a href={link}</a>" in page


def test_a_page_loads_nothing_from_elsewhere(run):
    page = export_run(run).read_text()
    assert external_references(page) == []
    assert "default-src 'none'" in page
    for trap in ("a.css", "b.png)", "c.png", "d.png", "x.js", "y.css", "<iframe"):
        assert trap not in page
    assert ">stays</a>" in page
    assert '<use href="#x"/>' in page


@pytest.mark.parametrize(
    "piece",
    [
        '<script type="module" src="https://unpkg.com/x">1</script>',
        "<LINK HREF='http://x/y.css'>",
        "<img alt='a' src=//x/y.png>",
        '<image xlink:href="https://x/y.png">',
        '<source srcset="https://x/y.png 2x">',
        "p { background: url( 'https://x/y' ) }",
        "@import url(https://x/y.css);",
    ],
)
def test_what_would_load_is_found_and_taken_out(piece):
    assert external_references(f"<p>before {piece} after</p>")
    assert external_references(without_external(f"<p>before {piece} after</p>")) == []
    assert without_external("<p>see https://x.org and <a href='https://x.org'>x</a></p>").count("https") == 2


def test_a_page_stays_below_its_limit(run, executed, monkeypatch):
    monkeypatch.setattr(export, "MAX_BYTES", 100_000)
    for letter, size in (("a", 60_000), ("b", 70_000), ("c", 20_000)):
        output = new_output("stream", text=letter * size, name="stdout")
        executed["cells"].append(new_code_cell(letter, outputs=[output]))
    page = notebook_page(executed, [], run)
    assert len(page.encode()) <= 100_000
    assert "An output of 70" in page
    assert "c" * 20_000 in page, "only the largest go"


def test_a_page_of_many_outputs_is_made_twice_at_most(run, executed, monkeypatch):
    made, page_html = [], export.page_html
    monkeypatch.setattr(export, "MAX_BYTES", 200_000)
    monkeypatch.setattr(
        export, "page_html", lambda *names, **values: made.append(1) or page_html(*names, **values)
    )
    outputs = [new_output("display_data", {"text/html": f"<p>{'x' * (2000 + n)}</p>"}) for n in range(500)]
    executed["cells"].append(new_code_cell("shows()", outputs=outputs))
    page = notebook_page(executed, [], run)
    assert len(made) == 2
    assert 190_000 < len(page.encode()) <= 200_000, "no more is left out than has to be"
    assert f"<p>{'x' * 2000}</p>" in page
    assert f"<p>{'x' * 2499}</p>" not in page


def test_a_large_opening_is_left_out_of_the_page(run, executed, monkeypatch):
    monkeypatch.setattr(export, "MAX_BYTES", 100_000)
    (run.path / "highlights.html").write_text(f"<p>{'x' * 200_000}</p>")
    run.record(artifacts=["highlights.html"])
    page = notebook_page(executed, [], run)
    assert len(page.encode()) <= 100_000
    assert "An output of 200 kB is left out" in page


def test_the_index_stays_below_the_limit_of_a_page(run, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "MAX_BYTES", 100_000)
    for n in range(4):
        (run.path / f"{n}.html").write_text(f"<p>{str(n) * (30_000 + n)}</p>")
    run.record(artifacts=[f"{n}.html" for n in range(4)])
    page = write_index([run], tmp_path / "index.html", "Title").read_text()
    assert len(page.encode()) <= 100_000
    assert page.count("the run's folder has it") == 2
    assert "0" * 30_000 in page, "only the largest go"


def test_a_large_picture_is_reduced_before_anything_is_left_out(run, executed, monkeypatch):
    import io

    import numpy as np
    from PIL import Image

    monkeypatch.setattr(export, "MAX_BYTES", 400_000)
    noise = np.random.default_rng(0).integers(0, 256, (400, 600, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    picture = base64.b64encode(buffer.getvalue()).decode()
    assert len(picture) > 900_000
    output = new_output("display_data", {"image/png": picture}, metadata={"image/png": {"width": 600}})
    executed["cells"].append(new_code_cell("show()", outputs=[output]))
    page = notebook_page(executed, [], run)
    assert len(page.encode()) <= 400_000
    assert "Reduced to keep this page small" in page
    assert "is left out" not in page
    data = page.split("data:image/webp;base64,")[1].split('"')[0]
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (300, 200)
    assert page.split("data:image/webp;base64,")[1].split(">")[0].endswith('width="600"'), (
        "shown as large as it was"
    )


def test_endless_text_keeps_its_two_ends(executed):
    text = "begin" + "x" * 300_000 + "end"
    executed["cells"].append(new_code_cell("x", outputs=[new_output("stream", text=text, name="stdout")]))
    page = notebook_page(executed)
    assert "begin" in page
    assert "xend" in page
    assert "200,008 characters left out" in page
    assert len(page) < 200_000


def test_a_page_that_cannot_be_small_enough_is_refused(executed, monkeypatch):
    monkeypatch.setattr(export, "MAX_BYTES", 1000)
    with pytest.raises(ArcnbError, match=r"the page is .* too large"):
        notebook_page(executed)


def test_a_run_without_a_copy_is_refused():
    with pytest.raises(ArcnbError, match=r"notebook\.ipynb is not a notebook"):
        export_run(new_run("empty"))


def test_the_index_shows_results_and_links_pages(run, tmp_path):
    export_run(run)
    (run.path / "curve.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (run.path / "grids.html").write_text("<div class='grid'>G</div><img src='https://example.org/x.png'>")
    run.record(artifacts=["curve.svg", "grids.html"])
    failed = new_run("failed")
    failed.update(status="failed", error={"type": "X", "message": "m", "sentence": "cell 3: X: <m>"})
    path = write_index([run, failed], tmp_path / "site" / ".." / "index.html", "The <demo>")
    page = path.read_text()
    assert external_references(page) == []
    assert "The &lt;demo&gt;" in page
    assert f'href="runs/{run.path.name}/shown.html"' in page
    assert "<th>solved</th>" in page
    assert "data:image/svg+xml;base64," in page
    assert "<div class='grid'>G</div>" in page
    assert "cell 3: X: &lt;m&gt;" in page
    assert "What this is:" in page


def test_the_index_tells_runs_of_one_notebook_apart_and_shows_short_numbers(run, executed, tmp_path):
    other = new_run("seed_1", notebook={"path": "shown.ipynb", "sha256": ""})
    nbformat.write(executed, other.copy_path)
    other.record({"pass@1": 0.217105, "seconds": 1693.511, "tokens": 10944})
    other.record({"cost": [{"run": "a", "GPU hours": None}, {"run": "b"}]})
    for one in (run, other):
        export_run(one)
    page = write_index([run, other], tmp_path / "index.html", "Two").read_text()
    for one in (run, other):
        assert (
            f'<a href="runs/{one.path.name}/shown.html">{one.name}</a></strong> <span>The title</span>'
            in page
        )
    assert page.count("<td></td>") == 2, "what is unknown is left empty"
    for text in ("<b>0.217</b> pass@1", "<b>1694</b> seconds", "<b>10944</b> tokens"):
        assert text in page


def test_the_index_opens_with_the_last_headline_and_the_highlights(run, tmp_path):
    (run.path / "highlights.html").write_text("<div>three solved tasks</div>")
    (run.path / "closest.html").write_text("<div>grids by the dozen</div>")
    prose = "one of the samples is right on all train and test pairs"
    run.record({"headline": "It became better.", "ways": [{"n": "1", "what": prose}]})
    run.record(artifacts=["closest.html", "highlights.html"])
    page = write_index([run], tmp_path / "index.html", "Title").read_text()
    places = [page.index(text) for text in ("It became better.", "three solved tasks", prose, "by the dozen")]
    assert places == sorted(places)
    assert f'<td class="prose">{prose}</td>' in page
    assert page.rindex("<details", 0, places[3]) > places[2], "what is long stands folded"
    assert page.find("<details", 0, places[1]) == -1


def test_several_evaluations_are_a_block_each_by_name(tmp_path):
    kinds = {"data": "01_prepare_data", "before": "06_evaluate", "after": "06_evaluate"}
    runs = []
    for solved, (name, kind) in enumerate(kinds.items(), start=1):
        run = new_run(name, notebook={"path": f"{kind}.ipynb", "sha256": "0"})
        outcome = {"headline": f"{name} is done", "table": [{"x": name}], "solved": solved, "of": 4}
        runs.append(run.record(outcome))
    page = write_index(runs, tmp_path / "index.html", "Title").read_text()
    for run in runs[1:]:
        block = page[page.index(f"<h2>{run.name}</h2>") :]
        assert f"{run.name} is done" in block
        assert f"{run.manifest['outcome']['solved']} of 4 solved" in block
    assert f"<h2>{runs[0].name}</h2>" not in page, "of another notebook"
    one = write_index(runs[:2], tmp_path / "index.html", "Title").read_text()
    assert one.count("<h2>") == 1, "the list of runs"


def test_a_damaged_run_takes_no_other_along(run, tmp_path, capsys):
    damaged = new_run("damaged")
    run.record(parents=[damaged])
    (damaged.path / "manifest.json").write_text('{"schema": 1')
    assert cli.main(["report", "shown", "damaged", "-o", str(tmp_path / "all.html")]) == 1
    assert "manifest.json cannot be read" in capsys.readouterr().err
    assert f">{damaged.called}</a>" in run.page_path.read_text(), "a parent"
    page = (tmp_path / "all.html").read_text()
    assert f'href="runs/{run.path.name}/shown.html"' in page
    assert '<span class="tag unreadable">unreadable</span> <strong>damaged</strong>' in page
    assert "manifest.json cannot be read" in page


def test_a_page_is_written_of_artifacts_that_are_not_utf_8(run, tmp_path):
    for name in ("highlights.html", "note.html"):
        (run.path / name).write_bytes(f"<p>caf\xe9 {name}</p>".encode("latin-1"))
    (run.path / "curve.svg").write_bytes(b"<svg><dc:title>caf\xe9</dc:title></svg>")
    run.record(artifacts=["highlights.html", "note.html", "curve.svg"])
    assert cli.main(["report", "shown", "-o", str(tmp_path / "all.html")]) == 0
    for page in (run.page_path, tmp_path / "all.html"):
        assert "caf\ufffd highlights.html" in page.read_text()
    assert "caf\ufffd note.html" in (tmp_path / "all.html").read_text()
    assert 'alt="caf\ufffd"' in (tmp_path / "all.html").read_text()


def test_the_index_links_a_page_whatever_its_name(executed, tmp_path):
    one = new_run("odd", notebook={"path": "my #1 50% run.ipynb", "sha256": ""})
    nbformat.write(executed, one.copy_path)
    export_run(one)
    page = write_index([one], tmp_path / "index.html", "Title").read_text()
    assert f'href="runs/{one.path.name}/my%20%231%2050%25%20run.html"' in page


def test_report_writes_pages_and_index(run, tmp_path, capsys):
    assert cli.main(["report", "shown", "-o", str(tmp_path / "all.html"), "--title", "All"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "all.html")
    assert run.page_path.is_file()


def test_a_page_that_cannot_be_written_is_said_and_leaves_the_run_done(
    notebook, start, tmp_path, monkeypatch, capsys
):
    """As on a node without a package that pages need."""
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    (stubs / "mistune.py").write_text("raise ModuleNotFoundError('No module named so')\n")
    monkeypatch.setenv("PYTHONPATH", str(stubs))
    process = start("run", notebook("run.record({'n': n})"), "--name", "plain")
    out, error = process.communicate(timeout=120)
    (run,) = list_runs()
    why = "ModuleNotFoundError: No module named so"
    sentence = f"the report of {run.path} could not be written: {why}"
    assert process.returncode == 0, error
    assert out.strip() == str(run.path)
    assert f"arcnb: {sentence}; `arcnb report {run.path.name}` writes it later\n" in error
    assert error.count(why) == 1  # no traceback
    assert "done in" in error.splitlines()[-1]
    assert (run.status, run.manifest["outcome"], run.manifest["error"]) == ("done", {"n": 3}, None)
    assert not run.page_path.exists()
    assert cli.main(["show", "plain"]) == 0
    assert f"report       not written: {why}\n" in capsys.readouterr().out

    process = start("report", "plain", "-o", tmp_path / "all.html")
    _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (1, f"arcnb: {sentence}\n")
    monkeypatch.delenv("PYTHONPATH")
    assert cli.main(["report", "plain", "-o", str(tmp_path / "all.html")]) == 0
    assert run.page_path.is_file()
    capsys.readouterr()
    assert cli.main(["show", "plain"]) == 0
    assert "not written" not in capsys.readouterr().out


def test_the_report_of_a_failed_run_that_cannot_be_written_hides_no_failure(notebook, monkeypatch, capsys):
    def broken(*arguments):
        raise ZeroDivisionError("division by\nzero")

    monkeypatch.setattr(export, "notebook_page", broken)
    assert cli.main(["run", str(notebook("run.path / 0")), "--name", "torn"]) == 1
    (run,) = list_runs()
    error = capsys.readouterr().err
    assert f"the report of {run.path} could not be written: ZeroDivisionError: division by zero;" in error
    assert "01_small.ipynb failed at cell 4" in error
    assert run.status == "failed"
