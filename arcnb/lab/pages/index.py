"""index.html: one page that opens with what came out and leads to the page of each run.

It opens as the page of the last run that has results does (arcnb.lab.pages.opening), with a block of its own
for every run of that notebook, by name.

A run adds to its block through `run.record`: an outcome value that is a list of rows (a data frame) becomes
a table, an artifact that is an .svg, .png or .html fragment becomes a picture. What other runs have is one
click away.
"""

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.files import read_notebook, title_and_purpose
from arcnb.lab.notebooks.parameters import first_sentence
from arcnb.lab.pages.export import page_html, small_page
from arcnb.lab.pages.fragments import picture, without_external
from arcnb.lab.pages.links import relative
from arcnb.lab.pages.opening import HIGHLIGHTS, opening_of
from arcnb.lab.runs import cards
from arcnb.lab.runs.run import Run
from arcnb.machine.files import write_whole

PICTURE_BYTES = 4_000_000  # a larger artifact is not shown
UNREADABLE = "unreadable"  # a status, too: of a run whose manifest is damaged
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}


def write_index(runs: Sequence[Run], path: str | Path, title: str) -> Path:
    """Write the index of these runs (in the order given) and return its absolute path.

    Pages of the runs are linked by relative paths, everything else is in the file, which stays as small as
    the page of a run.
    """
    path = Path(path).resolve()
    entries = {run: _entry(run, path.parent) for run in runs}
    results = [(run, _results(run)) for run, entry in entries.items() if entry["status"] != UNREADABLE]
    telling = [run.kind for run, result in results if result["tables"] or result["pictures"]]
    blocks = [result for run, result in results if [run.kind] == telling[-1:]]
    if not blocks:  # no tables or pictures: the last sentence that there is
        blocks = [result for _, result in results if result["headline"]][-1:]
    pieces = [[block["highlights"], *(picture["html"] for picture in block["pictures"])] for block in blocks]

    def page() -> str:
        for block, (highlights, *shown) in zip(blocks, pieces, strict=True):
            block["highlights"] = highlights
            for one, fragment in zip(block["pictures"], shown, strict=True):
                one["html"] = fragment
        return page_html(
            "index.html.jinja",
            title=title,
            contents=[],
            code_button=False,
            blocks=blocks,
            runs=entries.values(),
            footer="This page loads nothing from elsewhere; it links to the pages of the runs beside it.",
        )

    write_whole(path, small_page(page, pieces, "the run's folder"))
    return path


def _entry(run: Run, folder: Path) -> dict[str, Any]:
    try:
        (status, why), manifest = run.verdict(), run.manifest
    except ArcnbError as error:
        told = {"name": run.called, "folder": run.path.name, "status": UNREADABLE, "why": str(error)}
        return dict.fromkeys(("heading", "purpose", "times", "page", "headline", "numbers"), "") | told
    heading, purpose = _opening(run)
    page = relative(run.page_path, folder) if run.page_path.is_file() else None
    return {
        "name": run.name,
        "folder": run.path.name,
        "heading": heading,
        "purpose": purpose,
        "status": status,
        "why": why,
        "times": cards.times_text(manifest),
        "page": page,
        "headline": str(manifest["outcome"].get("headline", "")),
        "numbers": [
            (name, cards.short_text(value))
            for name, value in cards.flat(manifest["outcome"]).items()
            if type(value) in (int, float)
        ][:12],
    }


def _opening(run: Run) -> tuple[str, str]:
    """The title of the notebook and the first sentence under it, this as HTML."""
    import mistune

    try:
        heading, purpose = title_and_purpose(read_notebook(run.copy_path))
    except ArcnbError:
        return "", ""
    return heading, without_external(str(mistune.html(first_sentence(purpose))))


def _results(run: Run) -> dict[str, Any]:
    """Opening, tables and pictures of a run."""
    manifest = run.manifest
    tables = []
    for name, value in manifest["outcome"].items():
        if cards.is_rows(value):
            columns = list(dict.fromkeys(column for row in value for column in row))
            rows = [[cards.short_text(row.get(column)) for column in columns] for row in value]
            tables.append({"name": name, "columns": columns, "rows": rows})
    pictures = [
        {
            "name": Path(item["path"]).stem.replace("_", " "),
            "html": shown,
            # Grids by the dozen: the list of runs comes first.
            "folded": item["path"].endswith(".html"),
        }
        for item in manifest["artifacts"]
        if item["path"] != HIGHLIGHTS
        and item["bytes"] <= PICTURE_BYTES
        and (shown := _picture(run.path / item["path"]))
    ]
    headline, highlights = opening_of(run)
    return {
        "name": run.name,
        "came": cards.summary(manifest["outcome"]),
        "headline": headline,
        "highlights": highlights,
        "tables": tables,
        "pictures": pictures,
    }


def _picture(path: Path) -> str:
    """An artifact as an HTML fragment, or nothing if it is no picture."""
    if path.suffix not in (".html", *KINDS) or not path.is_file():
        return ""
    try:
        data = path.read_bytes()
    except OSError:
        return ""
    if path.suffix == ".html":
        text = data.decode(errors="replace")
        return "" if "<html" in text.lower() else without_external(text)
    told = re.search(rb"<dc:title>(.*?)</dc:title>", data, re.S)  # what arcnb.lab.plots says of its figures
    alt = html.unescape(told[1].decode(errors="replace")) if told else path.stem
    return picture(data, KINDS[path.suffix], alt)
