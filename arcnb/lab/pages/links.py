"""Where a page leads: its index, the runs it was made from, those made from it, its files."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from arcnb.errors import ArcnbError
from arcnb.lab.runs import cards
from arcnb.lab.runs.manifest import MANIFEST
from arcnb.lab.runs.run import Run, is_run

INDEX = "index.html"  # beside the run folders, where a page looks for it if nobody names another


def links(run: Run, index: Path | None = None) -> dict[str, list[tuple[str, str]]]:
    """{what: (name, address)}, addresses relative to the run folder; what there is none of is left out.

    Runs are known by the names of their folders, so that the links survive a runs folder that was moved.
    """
    beside = run.path.parent / INDEX
    parents = [Run(path) for path in map(_present(run), run.manifest["parents"]) if path]
    files = [
        (f"{item['path']} ({cards.size_text(item['bytes'])})", quote(item["path"]))
        for item in run.manifest["artifacts"]
    ]
    found = {
        "index": [("all runs", relative(index or beside, run.path))] if index or beside.is_file() else [],
        "made from": [_to_page(parent, run.path) for parent in parents],
        "used by": [_to_page(child, run.path) for child in _children(run)],
        "files": [*files, (run.copy_path.name, quote(run.copy_path.name))],
    }
    return {what: entries for what, entries in found.items() if entries}


def relative(path: Path, folder: str | Path) -> str:
    """The address of a file on a page in that folder."""
    return quote(os.path.relpath(path, folder))


def _to_page(run: Run, folder: Path) -> tuple[str, str]:
    try:
        return run.name, relative(run.page_path if run.page_path.is_file() else run.path, folder)
    except ArcnbError:  # its manifest is damaged
        return run.called, relative(run.path, folder)


def _present(run: Run):
    """parent folder as the manifest has it -> where it is, None where it is gone."""

    def found(parent: str) -> Path | None:
        places = (run.path.parent / Path(parent).name, Path(parent))
        return next((place for place in places if is_run(place)), None)

    return found


def _children(run: Run) -> list[Run]:
    """The runs beside it that name it as their parent, oldest first."""
    found = []
    for path in sorted(run.path.parent.glob(f"*/{MANIFEST}")):
        try:
            if run.path.name in (Path(parent).name for parent in Run(path.parent).manifest["parents"]):
                found.append(Run(path.parent))
        except ArcnbError:  # of another version of arcnb, say
            continue
    return found
