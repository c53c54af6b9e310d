"""What a manifest says, for people: a card for notebooks, and the texts of pages and of the terminal."""

import html
import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from arcnb.errors import short_number

# The numbers that every notebook which has them records by these names, and in this order.
FLAT = ("headline", "solved", "of", r"pass@\d+", "short_tasks", "submission", "seconds", "tokens")
LIST_CHARACTERS = 120  # of a list or dictionary that is shown; the manifest has all of it
MANY = 12  # entries of a dictionary that are shown as rows of their own
COLORS = {
    "queued": "#66717c",
    "running": "#2f7fd1",
    "done": "#2e9e5b",
    "failed": "#d1443c",
    "preempted": "#c98a12",
    "killed": "#a0409e",
}


CARD = (
    "border:1px solid rgba(128,128,128,.4); border-radius:8px; padding:.8em 1em; max-width:60em; "
    "font:13px/1.5 system-ui,sans-serif"
)
NAME = "text-align:left; padding:0 1.2em 0 0; border:0; opacity:.75"
VALUE = "text-align:left; padding:0; border:0; overflow-wrap:anywhere"


def run_card(name: str, manifest: dict[str, Any], status: str | None, why: str | None) -> str:
    """An HTML fragment: name, status, parameters, outcome, artifacts, in the colors of the page around it."""
    head = f"{badge(status)} " if status else ""
    numbers = {name: value for name, value in manifest["outcome"].items() if not is_rows(value)}
    artifacts = {item["path"]: size_text(item["bytes"]) for item in manifest["artifacts"]}
    tables = {"Parameters": manifest["parameters"], "Outcome": numbers, "Artifacts": artifacts}
    reason = f'<div style="margin-top:.3em">{html.escape(why)}</div>' if why else ""
    return (
        f'<div class="arcnb-run" style="{CARD}"><div>{head}<b>{html.escape(name)}</b> '
        f'<span style="opacity:.7">{html.escape(times_text(manifest))}</span></div>{reason}'
        '<div style="display:flex; flex-wrap:wrap; gap:0 2.5em">'
        f"{''.join(table_html(title, values) for title, values in tables.items())}</div></div>"
    )


def badge(status: str) -> str:
    style = f"background:{COLORS.get(status, '#777')}; color:#fff; border-radius:1em; padding:.1em .7em"
    style += "; font-size:.9em; white-space:nowrap"
    return f'<span class="arcnb-badge" style="{style}">{html.escape(status)}</span>'


def table_html(title: str, values: dict[str, Any]) -> str:
    """A two-column table of names and values, or nothing for an empty one."""
    if not values:
        return ""
    rows = "".join(
        f'<tr><td style="{NAME}">{html.escape(str(name))}</td>'
        f'<td style="{VALUE}">{html.escape(value_text(value))}</td></tr>'
        for name, value in values.items()
    )
    return (
        f'<div style="margin-top:.7em"><div style="font-weight:600">{html.escape(title)}</div>'
        f'<table style="border-collapse:collapse; border:0; margin:0">{rows}</table></div>'
    )


def run_facts(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of what a reader of a result may ask: which notebook and code, where, from what."""
    git, hardware = manifest["git"], manifest["hardware"]
    code = "not in a git work tree"
    if git is not None:
        state = {True: ", with local changes", False: "", None: ", changes unknown"}[git["dirty"]]
        code = f"commit {git['commit'][:12]}{state}"
    facts = [
        ("notebook", (manifest["notebook"] or {}).get("path", "unknown")),
        ("code", code),
        ("hardware", f"{hardware['host']}: {machine_text(hardware)}"),
        ("packages", ", ".join(f"{name} {version}" for name, version in manifest["packages"].items())),
    ]
    facts += [("parent", parent) for parent in manifest["parents"]]
    if lost := manifest.get("lost_outputs"):
        facts.append(("outputs", f"the last ones of cell {', '.join(map(str, lost))} are lost"))
    for number, attempt in enumerate(manifest["attempts"], start=1):
        why = (attempt["error"] or {}).get("sentence")
        facts.append((f"attempt {number}", attempt["status"] + (f": {why}" if why else "")))
    return facts


def machine_text(hardware: dict[str, Any]) -> str:
    """Of a manifest's `hardware`, without the machine's name: processor, cores, memory, GPUs."""
    cards = Counter(f"{gpu['name']} ({gpu['memory_gb']:.0f} GB)" for gpu in hardware["gpus"])
    gpus = ", ".join(card if n == 1 else f"{n} × {card}" for card, n in cards.items()) or "no GPU"
    return f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['memory_gb']} GB, {gpus}"


def times_text(manifest: dict[str, Any]) -> str:
    start = datetime.fromisoformat(manifest["start"]).strftime("%Y-%m-%d %H:%M:%S UTC")
    took = "" if manifest["seconds"] is None else f", {duration_text(manifest['seconds'])}"
    memory = "" if not manifest["peak_memory_gb"] else f", at most {manifest['peak_memory_gb']:.1f} GB"
    return start + took + memory


def duration_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if is_rows(value):
        return f"table of {len(value)} rows"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | dict) and len(text) > LIST_CHARACTERS:
        return f"{len(value)}: {text[1:LIST_CHARACTERS].rpartition(',')[0]}, …"
    return text


def short_text(value: Any) -> str:
    """Three digits of a number are enough beside others; the page of the run has them all. Nothing for what
    is unknown."""
    if value is None or value != value:
        return ""
    return short_number(value) if isinstance(value, float) else value_text(value)


def size_text(n_bytes: int) -> str:
    size = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Dictionaries inside as entries of their own, "outer/inner", but one of more than MANY (tasks left out,
    say) stays one; what is empty and tables are left out."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and len(value) <= MANY:
            found |= flat(value, f"{before}{name}/")
        elif value not in ("", []) and value is not None and not is_rows(value):
            found[f"{before}{name}"] = value
    return found


def first(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome with its flat numbers in front: what every notebook calls by the same names."""
    return dict(sorted(outcome.items(), key=lambda item: _place(item[0])))


def _place(name: str) -> int:
    """Of a name of an outcome; those that no two notebooks share stay behind, in their order."""
    return next((n for n, flat_name in enumerate(FLAT) if re.fullmatch(flat_name, name)), len(FLAT))


def news(outcome: dict[str, Any]) -> str:
    """What came out, in a line: flat numbers, of several evaluations by name, then the headline; where there
    is neither, the first numbers."""
    headline = "".join(sign if sign.isprintable() else " " for sign in str(outcome.get("headline", "")))
    told = [text for text in (summary(outcome), headline) if text]
    numbers = (
        f"{name} {short_text(value)}" for name, value in outcome.items() if type(value) in (int, float)
    )
    return " · ".join(told) or ", ".join(islice(numbers, 5))


def summary(outcome: dict[str, Any]) -> str:
    """ "6 of 16 solved, pass@1 13%, pass@8 38%, submission 40%", or so for each evaluation, by name."""
    from arcnb.arc.scores.intervals import percent  # with numpy, which most commands need not load

    pieces = [f"{outcome['solved']} of {outcome['of']} solved"] if {"solved", "of"} <= outcome.keys() else []
    rates = [name for name in outcome if re.fullmatch(r"pass@\d+|submission", name)]
    pieces += [f"{name} {percent(outcome[name])}" for name in rates if type(outcome[name]) in (int, float)]
    inner = {name: summary(value) for name, value in outcome.items() if isinstance(value, dict)}
    return ", ".join(pieces) or "; ".join(f"{name}: {text}" for name, text in inner.items() if text)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of words, each word as wide as the widest of its column."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{word:{width}}" for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def is_rows(value: Any) -> bool:
    """Is an outcome's value a table (a list of rows)?"""
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)
