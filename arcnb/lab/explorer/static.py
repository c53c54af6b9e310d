"""The explorer as HTML that needs no kernel: data and a small script inside one element.

It filters and pages like the living one; only running programs needs a kernel. Data are compressed, to a few
kilobytes a task. Where scripts may not run, the first tasks are shown.
"""

from __future__ import annotations

import base64
import gzip
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arcnb.arc.grids import Grid
from arcnb.arc.pictures.figures import STYLE
from arcnb.arc.pictures.palettes import PALETTES, palette_name
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.lab.explorer.entries import Entry

SCRIPT = Path(__file__).with_name("templates") / "explorer.js"
CSS = Path(__file__).with_name("templates") / "explorer.css"
MAX_BYTES = 4_000_000  # of compressed data; the tasks beyond are left out, which the explorer says


def explorer_html(entries: Sequence[Entry], title: str) -> str:
    """One element that filters and pages through the entries by itself."""
    shown, data = _packed(entries)
    name = f"arcnb-{uuid.uuid4().hex[:12]}"
    note = f"; {len(entries) - shown} more are left out, for size" if shown < len(entries) else ""
    facts = {"title": title, "note": note, "colors": PALETTES[palette_name()], "data": data}
    argument = json.dumps(facts).replace("<", "\\u003c")  # a title must not end the script, nor open another
    some = TaskSet(title, tuple(entry.task for entry in entries[:12]))
    return (
        f"{STYLE}<style>{CSS.read_text(encoding='utf-8')}</style>"
        f'<div class="arcnb arcnb-explorer" id="{name}">{some._repr_html_()}'
        '<div class="arcnb-note">The explorer needs a script, which may not run here.</div></div>'
        f"<script>{SCRIPT.read_text(encoding='utf-8')}\n"
        f'arcnbExplore(document.getElementById("{name}"), {argument});</script>'
    )


def _packed(entries: Sequence[Entry]) -> tuple[int, str]:
    """(how many entries fit, they as JSON, compressed, base64)."""
    shown = len(entries)
    while True:
        text = json.dumps([_plain(entry) for entry in entries[:shown]], separators=(",", ":"))
        packed = gzip.compress(text.encode(), 6, mtime=0)
        if len(packed) <= MAX_BYTES or shown <= 1:
            return shown, base64.b64encode(packed).decode()
        shown = max(1, int(0.9 * shown * MAX_BYTES / len(packed)))


def _plain(entry: Entry) -> dict[str, Any]:
    task = entry.task
    return {
        "id": task.task_id,
        "side": entry.side,
        "colors": sorted(map(int, entry.colors)),
        "rate": entry.rate,
        "train": len(task.train),
        "pairs": [[_text(pair.input), _text(pair.output)] for pair in (*task.train, *task.test)],
        "predictions": [
            {
                "set": name,
                "says": row.verdict,
                "outputs": row.outputs and [_text(grid) for grid in row.outputs],
                "program": row.program or row.completion_prefix + row.completion,
            }
            for name, row in entry.predictions
        ],
    }


def _text(grid: Grid | None) -> str | None:
    """Rows of digits, joined by slashes."""
    return None if grid is None else "/".join("".join(map(str, row)) for row in grid.tolist())
