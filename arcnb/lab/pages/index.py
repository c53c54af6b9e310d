"""index.html: one page that opens with what came out and leads to the page of each run.

It opens with the last run's `headline`, an outcome value of one sentence, and an artifact called
`highlights.html`.

A run adds to it through `run.record`: an outcome value that is a list of rows (a data frame) becomes a table,
an artifact that is an .svg, .png or .html fragment becomes a picture. Only those of the last run that has any
are shown, the others are one click away.
"""

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.files import read_notebook
from arcnb.lab.pages.export import page_html
from arcnb.lab.runs import cards
from arcnb.lab.runs.run import Run
from arcnb.machine.files import write_whole

HIGHLIGHTS = "highlights"  # an artifact of this name stands first, unfolded
PICTURE_BYTES = 4_000_000  # a larger artifact is named, not shown


def write_index(runs: Sequence[Run], path: str | Path, title: str) -> Path:
    """Write the index of these runs (in the order given) and return its absolute path.

    Pages of the runs are linked by relative paths, everything else is in the file.
    """
    path = Path(path).resolve()
    results = [_results(run) for run in runs]
    last = next((result for result in reversed(results) if result["tables"] or result["pictures"]), None)
    headline = next((result["headline"] for result in reversed(results) if result["headline"]), "")
    page = page_html(
        "index.html.jinja",
        title=title,
        contents=[],
        code_button=False,
        result=last,
        headline=headline,
        runs=[_entry(run, path.parent) for run in runs],
        footer="This page loads nothing from elsewhere; it links to the pages of the runs beside it.",
    )
    write_whole(path, page)
    return path


def _entry(run: Run, folder: Path) -> dict[str, Any]:
    manifest = run.manifest
    status, why = run.verdict()
    heading, purpose = _opening(run)
    page = os.path.relpath(run.page_path, folder) if run.page_path.is_file() else None
    return {
        "name": run.path.name,
        "heading": heading or manifest["name"],
        "purpose": purpose,
        "status": status,
        "why": why,
        "times": cards.times_text(manifest),
        "page": page,
        "headline": str(manifest["outcome"].get("headline", "")),
        "numbers": [
            (name, cards.value_text(value))
            for name, value in cards.flat(manifest["outcome"]).items()
            if name != "headline"
        ][:12],
    }


def _opening(run: Run) -> tuple[str, str]:
    """The title of the notebook and the first paragraph under it, this as HTML."""
    import mistune

    from arcnb.lab.pages.cells import without_external

    try:
        cells = read_notebook(run.copy_path)["cells"]
    except ArcnbError:
        return "", ""
    text = next((cell["source"] for cell in cells if cell["source"].startswith("# ")), "")
    heading, _, rest = text.partition("\n")
    return heading.lstrip("# ").strip(), without_external(str(mistune.html(rest.strip().split("\n\n")[0])))


def _results(run: Run) -> dict[str, Any]:
    """Tables and pictures of a run."""
    manifest = run.manifest
    tables = []
    for name, value in manifest["outcome"].items():
        if cards.is_rows(value):
            columns = list(dict.fromkeys(column for row in value for column in row))
            rows = [[cards.value_text(row.get(column, "")) for column in columns] for row in value]
            tables.append({"name": name, "columns": columns, "rows": rows})
    pictures = [
        {
            "name": Path(item["path"]).stem.replace("_", " "),
            "html": fragment,
            # Grids by the dozen: the list of runs comes first.
            "folded": item["path"].endswith(".html"),
            "first": Path(item["path"]).stem == HIGHLIGHTS,
        }
        for item in manifest["artifacts"]
        if item["bytes"] <= PICTURE_BYTES and (fragment := _picture(run.path / item["path"]))
    ]
    headline = str(manifest["outcome"].get("headline", ""))
    return {"name": run.path.name, "headline": headline, "tables": tables, "pictures": pictures}


def _picture(path: Path) -> str:
    """An artifact as an HTML fragment, or nothing if it is no picture."""
    from arcnb.lab.pages.cells import without_external

    kinds = {".svg": ("image/svg+xml", "drawing"), ".png": ("image/png", "photo")}
    if path.suffix == ".html" and path.is_file():
        text = path.read_text(encoding="utf-8")
        return "" if "<html" in text.lower() else without_external(text)
    if path.suffix not in kinds or not path.is_file():
        return ""
    kind, name = kinds[path.suffix]
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img class="{name}" src="data:{kind};base64,{data}" alt="{path.stem}">'
