"""An executed notebook as one HTML page that needs nothing else: no script, style, font or picture from
anywhere.

Code is folded, headings make a table of contents, parameters and manifest stand on top, dark mode follows the
reader. A page stays below 15 MB: the largest pictures are reduced, other large outputs left out, with a note.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from arcnb.arc.pictures.palettes import palette_css
from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.files import ERROR_TAG, read_notebook
from arcnb.lab.notebooks.parameters import Declared, Parameter, notebook_parameters
from arcnb.lab.runs import cards
from arcnb.lab.runs.run import Run
from arcnb.machine.files import write_whole

MAX_BYTES = 15_000_000
TEMPLATES = Path(__file__).with_name("templates")


def export_run(run: Run) -> Path:
    """Write the page of a run beside its executed notebook and return its path.

    Raises ArcnbError for whatever went wrong, a missing package too: the run itself is over, and its
    manifest keeps the reason as `report_problem` until a page was written.
    """
    try:
        source = (run.manifest["notebook"] or {}).get("path")
        folders = [run.path] + ([Path(source).parent] if source else [])
        write_whole(run.page_path, notebook_page(read_notebook(run.copy_path), folders, run))
    except Exception as error:
        told = isinstance(error, ArcnbError)
        why = " ".join((f"{error}" if told else f"{type(error).__name__}: {error}").split())
        with contextlib.suppress(ArcnbError):  # a folder that takes no page may take no manifest either
            run.update(report_problem=why)
        raise ArcnbError(f"the report of {run.path} could not be written: {why}") from error
    with contextlib.suppress(ArcnbError):
        if run.manifest.get("report_problem"):
            run.update(report_problem=None)
    return run.page_path


def notebook_page(notebook: Any, folders: Iterable[Path] = (), run: Run | None = None) -> str:
    """The page as a string; `folders` is where pictures that the markdown names are looked for."""
    from arcnb.lab.pages.cells import Markdown

    markdown = Markdown(list(folders))
    # The banners that papermill and the engine add are for JupyterLab; here the top says it, with a link.
    cells = [cell for cell in notebook["cells"] if ERROR_TAG not in cell["metadata"].get("tags", [])]
    blocks = _blocks(cells, markdown)
    n_opening = 1 if cells and cells[0]["cell_type"] == "markdown" else 0
    facts = _run_facts(run, notebook) if run is not None else None
    title = next((entry["text"] for entry in markdown.contents), run.path.name if run else "Notebook")

    def render() -> str:
        pieces = ["".join(block) for block in blocks[n_opening:]]
        return page_html(
            "report.html.jinja",
            title=title,
            contents=[entry for entry in markdown.contents if entry["level"] in (2, 3)],
            opening="\n".join(block for cell in blocks[:n_opening] for block in cell),
            body="\n".join(f'<div class="cell">{piece}</div>' for piece in pieces if piece),
            run=facts,
            code_button=True,
            footer="An executed notebook of arcnb; this page loads nothing from elsewhere.",
        )

    page = render()
    while (size := len(page.encode())) > MAX_BYTES:
        _lighten_largest(blocks, size - MAX_BYTES)
        page = render()
    return page


def page_html(template: str, **values: Any) -> str:
    """Fill one of the templates, style and script included."""
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    css = (TEMPLATES / "report.css").read_text(encoding="utf-8") + palette_css()
    js = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    return environment.get_template(template).render(css=css, js=js, **values)


def _blocks(cells: list[Any], markdown: Any) -> list[list[str]]:
    """For each cell its pieces of HTML: the text or the code first, then one for each output."""
    from arcnb.lab.pages.cells import code_html, output_html

    blocks = []
    for cell in cells:
        if cell["cell_type"] == "markdown":
            blocks.append([markdown.cell(cell)])
        elif cell["cell_type"] == "code":
            blocks.append([code_html(cell), *(output_html(output) for output in cell["outputs"])])
        else:
            blocks.append([])
    return blocks


def _lighten_largest(blocks: list[list[str]], excess: int) -> None:
    """Reduce the pictures of the largest piece, or leave it out."""
    from arcnb.lab.pages.pictures import reduced

    places = [(cell, index) for cell, pieces in enumerate(blocks) for index in range(len(pieces))]
    cell, index = max(places, key=lambda place: len(blocks[place[0]][place[1]]))
    size = len(blocks[cell][index].encode())
    if size < 1000:
        raise ArcnbError(f"the page is {cards.size_text(excess)} too large, by outputs many and small")
    note = f"An output of {cards.size_text(size)} is left out to keep this page small; the notebook has it."
    blocks[cell][index] = reduced(blocks[cell][index]) or f'<div class="output left-out">{note}</div>'


def _run_facts(run: Run, notebook: Any) -> dict[str, Any]:
    """What the top of the page says of the run."""
    manifest = run.manifest
    status, why = run.verdict()
    try:
        declared = notebook_parameters(notebook)
    except ArcnbError:
        declared = Declared()
    parameters = []
    for name, value in manifest["parameters"].items():
        known = _declared(name, declared)
        parameters.append({
            "name": name,
            "value": cards.value_text(value),
            "comment": known.sentence if known else "",
            "default": cards.value_text(known.default) if known else "",
            "changed": known is not None and known.default != value,
        })  # fmt: skip
    return {
        "status": status,
        "why": why,
        "folder": run.path.name,
        "times": cards.times_text(manifest),
        "outcome": [
            (name, cards.value_text(value)) for name, value in cards.flat(manifest["outcome"]).items()
        ],
        "parameters": parameters,
        "n_changed": sum(row["changed"] for row in parameters),
        "facts": cards.run_facts(manifest),
        "artifacts": [(item["path"], cards.size_text(item["bytes"])) for item in manifest["artifacts"]],
    }


def _declared(name: str, declared: Declared) -> Parameter | None:
    """None for what the notebook, or its plan as it is today, does not know."""
    try:
        return declared.find(name)
    except ArcnbError:
        return None
