"""What a page opens with: one to three sentences, and a picture or two that show them.

    opening(run, "6 of 16 tasks are solved.", showcase, table)      # in the last cell of a notebook

The sentences are the outcome value `headline`, the pictures the artifact `highlights.html`; the page of the
run and the index of runs show both before anything else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arcnb.lab.pages.fragments import picture, without_external
from arcnb.lab.runs.run import Run
from arcnb.machine.files import write_whole

HIGHLIGHTS = "highlights.html"


def opening(run: Run, headline: str, *shown: Any) -> None:
    """Let the run's page open with the sentences and what is shown: figures, tables, showcases.

    None is passed over. Records both, so it belongs beside `run.record`.
    """
    write_whole(run.path / HIGHLIGHTS, "\n".join(fragment(one) for one in shown if one is not None))
    run.record({"headline": headline}, artifacts=[HIGHLIGHTS])


def fragment(shown: Any) -> str:
    """A figure or whatever draws itself as HTML, with the figure's `repr` as its alternative text."""
    if hasattr(shown, "_repr_svg_"):
        return picture(shown._repr_svg_().encode(), "image/svg+xml", repr(shown))
    return f'<div class="shown">{shown._repr_html_()}</div>'


def opening_of(run: Run) -> tuple[str, str]:
    """(the sentences, the pictures as HTML) of a run, empty where it has none."""
    path = Path(run.path, HIGHLIGHTS)
    listed = any(item["path"] == HIGHLIGHTS for item in run.manifest["artifacts"])
    shown = path.read_text(encoding="utf-8", errors="replace") if listed and path.is_file() else ""
    return str(run.manifest["outcome"].get("headline") or ""), without_external(shown)
