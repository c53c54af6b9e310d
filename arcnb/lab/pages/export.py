"""An executed notebook as one HTML page that needs nothing else: no script, style, font or picture from
anywhere.

It opens with what came out, in sentences and a picture. Code, parameters and manifest are folded, headings
make a table of contents, sections that show nothing are left out, dark mode follows the reader. A page stays
below 15 MB: the largest pictures are reduced, other large outputs left out, with a note.
"""

import base64
import contextlib
import heapq
import io
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from arcnb.arc.pictures.palettes import palette_css
from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.files import ERROR_TAG, read_notebook, title_and_purpose
from arcnb.lab.notebooks.parameters import Declared, first_sentence, notebook_parameters
from arcnb.lab.pages.links import links
from arcnb.lab.pages.opening import opening_of
from arcnb.lab.runs import cards
from arcnb.lab.runs.run import Run
from arcnb.machine.files import write_whole

MAX_BYTES = 15_000_000
SMALL = 1000  # bytes of a piece: to leave it out would gain next to nothing
SMALLEST = 100_000  # characters of a picture's data URI: below, there is nothing to gain
_PICTURE = re.compile(r"data:image/(?:png|jpeg|webp);base64,([A-Za-z0-9+/=\s]+)")
_NOTE = '<div class="output left-out">{}</div>'
TEMPLATES = Path(__file__).with_name("templates")


def export_run(run: Run, index: Path | None = None) -> Path:
    """Write the page of a run beside its executed notebook and return its path.

    index: the page of many runs that it leads back to; default the one beside the run folders, if any.
    Raises ArcnbError for whatever went wrong, a missing package too: the run itself is over, and its
    manifest keeps the reason as `report_problem` until a page was written.
    """
    try:
        source = (run.manifest["notebook"] or {}).get("path")
        folders = [run.path] + ([Path(source).parent] if source else [])
        write_whole(run.page_path, notebook_page(read_notebook(run.copy_path), folders, run, index))
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


def notebook_page(
    notebook: Any, folders: Iterable[Path] = (), run: Run | None = None, index: Path | None = None
) -> str:
    """The page as a string; `folders` is where pictures that the markdown names are looked for."""
    from arcnb.lab.pages.cells import Markdown, cell_html, showing

    markdown = Markdown(list(folders))
    # The banners that papermill and the engine add are for JupyterLab; here the top says it, with a link.
    cells = [cell for cell in notebook["cells"] if ERROR_TAG not in cell["metadata"].get("tags", [])]
    opens = bool(cells) and cells[0]["cell_type"] == "markdown"
    heading, _, purpose = cells[0]["source"].partition("\n") if opens else ("", "", "")
    sentence = first_sentence(title_and_purpose(notebook)[1])
    texts = [markdown.cell(cells[0], part) if opens else "" for part in (heading, sentence, purpose)]
    shown = showing(cells[opens:])
    # Of a run the top has the parameters, with their comments.
    told = {"parameters", "injected-parameters"} if run is not None else set()
    blocks = [
        cell_html(cell, markdown) for cell in shown if told.isdisjoint(cell["metadata"].get("tags", ()))
    ]
    facts = _run_facts(run, notebook, index) if run is not None else None
    title = next((entry["text"] for entry in markdown.contents), run.path.name if run else "Notebook")
    footer = "An executed notebook of arcnb; this page loads nothing from elsewhere."
    if len(shown) < len(cells[opens:]):
        footer += " Sections that show nothing are left out; the notebook has them."

    def page() -> str:
        body = [f'<div class="cell">{piece}</div>' for block in blocks if (piece := "".join(block))]
        if facts is not None:
            facts["highlights"] = opening[0]
        return page_html(
            "report.html.jinja",
            title=f"{run.name} · {title}" if run else title,
            contents=[entry for entry in markdown.contents if entry["level"] in (2, 3)],
            heading=texts[0],
            purpose={"sentence": texts[1], "text": texts[2]},
            body="\n".join(body),
            run=facts,
            code_button=True,
            footer=footer,
        )

    opening = [facts["highlights"] if facts else ""]
    return small_page(page, [opening, *blocks], "the notebook")


def small_page(page: Callable[[], str], blocks: list[list[str]], whole: str) -> str:
    """What `page` makes of the blocks' pieces, each of which it shows once as it is; where that is too large,
    with the largest pieces reduced or left out. whole: what has them all. ArcnbError where nothing large is
    left."""
    first = page()
    excess = len(first.encode()) - MAX_BYTES
    if excess <= 0:
        return first
    places = [(block, index) for block in blocks for index in range(len(block))]
    heap = [(-len(block[index].encode()), number) for number, (block, index) in enumerate(places)]
    heapq.heapify(heap)
    while excess > 0:
        size, number = heapq.heappop(heap) if heap else (0, 0)
        if -size < SMALL:
            raise ArcnbError(f"the page is {cards.size_text(excess)} too large, by outputs many and small")
        block, index = places[number]
        block[index] = _lighter(block[index], whole)
        left = len(block[index].encode())
        excess -= -size - left
        heapq.heappush(heap, (-left, number))
    return page()


def page_html(template: str, **values: Any) -> str:
    """Fill one of the templates, style and script included."""
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    js = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    return environment.get_template(template).render(css=page_style(), js=js, **values)


def page_style() -> str:
    """The style sheet of every page."""
    return (TEMPLATES / "report.css").read_text(encoding="utf-8") + palette_css()


def _lighter(piece: str, whole: str) -> str:
    """With its pictures reduced, or a note in its place."""
    reduced = _NOTE.format(f"Reduced to keep this page small; {whole} has the whole picture.")
    smaller = _PICTURE.sub(_halved, piece)
    if len(smaller) < 0.9 * len(piece):
        return smaller if reduced in smaller else smaller + reduced
    size = cards.size_text(len(piece.encode()))
    return _NOTE.format(f"An output of {size} is left out to keep this page small; {whole} has it.")


def _halved(match: re.Match[str]) -> str:
    """A large bitmap at half its width and height."""
    from PIL import Image, UnidentifiedImageError

    if len(match[0]) < SMALLEST:
        return match[0]
    try:
        picture = Image.open(io.BytesIO(base64.b64decode(match[1]))).convert("RGBA")
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError):
        return match[0]
    size = (max(1, picture.width // 2), max(1, picture.height // 2))
    buffer = io.BytesIO()
    picture.resize(size, Image.Resampling.LANCZOS).save(buffer, "WEBP", quality=80)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _run_facts(run: Run, notebook: Any, index: Path | None) -> dict[str, Any]:
    """What the top of the page says of the run."""
    manifest = run.manifest
    status, why = run.verdict()
    try:
        declared = notebook_parameters(notebook)
    except ArcnbError:
        declared = Declared()
    parameters = [_parameter(name, value, declared) for name, value in manifest["parameters"].items()]
    outcome = cards.flat(manifest["outcome"])
    headline, highlights = opening_of(run)
    outcome.pop("headline", None)
    return {
        "name": run.name,
        "headline": headline,
        "highlights": highlights,
        "links": links(run, index),
        "status": status,
        "why": why,
        "folder": run.path.name,
        "times": cards.times_text(manifest),
        "outcome": [(name, cards.value_text(value)) for name, value in outcome.items()],
        "parameters": parameters,
        "n_changed": sum(row["changed"] for row in parameters),
        "facts": cards.run_facts(manifest),
    }


def _parameter(name: str, value: Any, declared: Declared) -> dict[str, Any]:
    row = {"name": name, "value": cards.value_text(value), "comment": "", "default": "", "changed": False}
    try:
        known = declared.find(name)
    except ArcnbError:  # the notebook, or its plan as it is today, does not know it
        return row
    default = cards.value_text(known.default)
    return row | {"comment": known.sentence, "default": default, "changed": known.default != value}
