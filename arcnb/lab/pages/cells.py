"""Notebook cells as HTML: markdown, folded code, outputs. Nothing in the result asks another host for
anything."""

import base64
import html
import mimetypes
import re
from contextlib import suppress
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import mistune
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from arcnb.lab.execution.terminal_text import printed
from arcnb.lab.pages.fragments import picture, without_external

# What shows a file: the name of the tag, and the file's.
_SHOWING = re.compile(
    r"<(img|video|audio|source|embed)\b[^>]*?\bsrc\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>]+))[^>]*>", re.I
)
LABELS = {"parameters": "parameters", "injected-parameters": "parameters of this run"}
STOPPED = ("failed", "preempted", "killed")
TEXT_CHARACTERS = 100_000  # of one output; nobody reads more on a page
ALT_CHARACTERS = 1000  # of a picture's text
_IDS = ("code", "palette", "theme", "stopped")  # of the page's buttons, and of the cell that failed
PICTURES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp")


class Markdown(mistune.HTMLRenderer):
    """Markdown of one notebook: headings get ids and are kept in `contents`, local pictures and attachments
    are embedded, remote ones become links, fenced code is highlighted."""

    def __init__(self, folders: list[Path]):
        super().__init__(escape=False)
        self.folders = folders
        self.contents: list[dict[str, Any]] = []
        self.attachments: dict[str, dict[str, str]] = {}
        self.parse = mistune.create_markdown(renderer=self, plugins=["table", "strikethrough", "task_lists"])

    def cell(self, cell: Any, source: str | None = None) -> str:
        """The cell, or a part of its source."""
        self.attachments = cell.get("attachments", {})
        source = cell["source"] if source is None else source
        text = self.whole(str(self.parse(source))) if source.strip() else ""
        return f'<div class="text">{text}</div>' if text else ""

    def whole(self, fragment: str) -> str:
        """HTML with the local files that it shows embedded, and a note or a link in the place of others."""

        def shown(match: re.Match[str]) -> str:
            group = next(group for group in (2, 3, 4) if match[group] is not None)
            url = html.unescape(match[group])
            if url.startswith("data:"):
                return match[0]
            if (source := self._embedded(url)) is None:
                return self._missing(url)
            start, end = (place - match.start() for place in match.span(group))
            return match[0][:start] + source + match[0][end:]

        return without_external(_SHOWING.sub(shown, fragment))

    def heading(self, text: str, level: int, **attributes: Any) -> str:
        plain = html.unescape(re.sub(r"<[^>]*>", "", text)).strip()
        slug = re.sub(r"\W+", "-", plain.lower()).strip("-") or "section"
        taken = {*_IDS, *(entry["id"] for entry in self.contents)}
        names = chain([slug], (f"{slug}-{n}" for n in count(2)))
        identity = next(name for name in names if name not in taken)
        self.contents.append({"level": level, "id": identity, "text": plain})
        lab = plain.replace(" ", "-")  # what links in JupyterLab call it
        anchor = f'<a id="{html.escape(lab)}"></a>' if lab not in {*taken, identity} else ""
        return f'<h{level} id="{identity}">{anchor}{text}</h{level}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """A link within the page, to a file of the run folder, or to another host. Of one to a file elsewhere
        the text stays: the page is sent to people who have no such file."""
        local = not re.match(r"[a-z][a-z0-9+.-]*:|//|#", url, re.I)
        if local and not (self.folders and (self.folders[0] / url.partition("#")[0]).is_file()):
            return text
        return super().link(text, url, title)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        source = self._embedded(url)
        if source is None:
            return self._missing(url, text)
        return f'<img src="{source}" alt="{html.escape(text)}">'

    @staticmethod
    def _missing(url: str, text: str = "") -> str:
        if re.match(r"(https?:)?//", url):
            return f'<a href="{html.escape(url)}">{text or "picture"}</a>'
        return f"<em>[no picture {html.escape(unquote(url))}]</em>"

    def block_code(self, code: str, info: str | None = None) -> str:
        return f"<pre><code>{highlighted(code, (info or 'text').split()[0])}</code></pre>\n"

    def _embedded(self, url: str) -> str | None:
        if url.startswith("data:"):
            return url
        if url.startswith("attachment:"):
            name = url.removeprefix("attachment:")
            content = self.attachments.get(name) or self.attachments.get(unquote(name), {})
            return next((f"data:{kind};base64,{data}" for kind, data in content.items()), None)
        if (path := self._file(url)) is None:
            return None
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"

    def _file(self, name: str) -> Path | None:
        """The file of this name, as it is or as URLs write it, in the first folder that has it."""
        names = [name, unquote(name)] if name and "\0" not in unquote(name) else []
        with suppress(OSError):  # a name too long for a file
            return next((f / one for f in self.folders for one in names if (f / one).is_file()), None)
        return None


def highlighted(code: str, language: str = "python") -> str:
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return html.escape(code)
    return highlight(code, lexer, HtmlFormatter(nowrap=True)).rstrip("\n")


def showing(cells: list[Any]) -> list[Any]:
    """The cells without the sections that were run and show nothing: a text, the code cells below it, and a
    heading none of whose subsections shows anything."""
    parts: list[list[Any]] = []
    for cell in cells:
        if cell["cell_type"] == "markdown" or not parts:
            parts.append([])
        parts[-1].append(cell)
    levels = [_level(part[0]) for part in parts]
    silent = [_silent(part) for part in parts]
    kept: list[Any] = []
    for number, (part, level) in enumerate(zip(parts, levels, strict=True)):
        rest = zip(levels[number + 1 :], silent[number + 1 :], strict=True)
        below = [empty for _, empty in takewhile(lambda other, level=level: other[0] > level, rest)]
        if not silent[number] or not all(below):
            kept += part
    return kept


def _level(cell: Any) -> int:
    """Of its heading; 7, below every heading, without one."""
    text = cell["source"] if cell["cell_type"] == "markdown" else ""
    return len(text) - len(text.lstrip("#")) or 7


def _silent(part: list[Any]) -> bool:
    """Whether it has code, all of it was run, and nothing is to be seen of that."""
    code = [cell for cell in part if cell["cell_type"] == "code" and cell["source"].strip()]
    nowhere = Markdown([])
    special = any("parameters" in tag for cell in code for tag in cell["metadata"].get("tags", []))
    run = all(cell.get("execution_count") for cell in code)
    return (
        bool(code)
        and run
        and not special
        and not any(output_html(output, nowhere) for cell in code for output in cell["outputs"])
    )


def cell_html(cell: Any, markdown: Markdown) -> list[str]:
    """Pieces of HTML: the text or the code first, then one for each output."""
    if cell["cell_type"] == "markdown":
        return [markdown.cell(cell)]
    if cell["cell_type"] != "code":
        return []
    return [code_html(cell), *(output_html(output, markdown) for output in cell["outputs"])]


def code_html(cell: Any) -> str:
    """The folded source of a code cell: its first line and its time as the handle; open where the cell
    failed."""
    source = cell["source"].strip("\n")
    if not source:
        return ""
    lines = source.splitlines()
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), lines[0])
    label = next((LABELS[tag] for tag in cell["metadata"].get("tags", []) if tag in LABELS), "code")
    papermill = cell["metadata"].get("papermill", {})
    status, seconds = papermill.get("status"), papermill.get("duration") or 0
    note = "not run" if status == "pending" else f"{seconds:.1f} s" if seconds >= 1 else ""
    stopped = ' id="stopped" open' if status in STOPPED else ""
    return (
        f'<details class="code"{stopped}><summary>{label}<code>{html.escape(first.strip())}</code>'
        f'<span class="took">{note}</span></summary><pre>{highlighted(source)}</pre></details>'
    )


def output_html(output: Any, markdown: Markdown) -> str:
    """One output of a code cell, in the richest form that a page can hold."""
    kind = output["output_type"]
    if kind == "stream":
        text = printed("", output["text"])
        return _pre(text, f"stream {output['name']}") if text.strip() else ""
    if kind == "error":
        name = html.escape(f"{output['ename']}: {output['evalue']}")
        trace = _coloured("\n".join(output["traceback"]))
        return f'<div class="output error"><strong>{name}</strong><pre>{trace}</pre></div>'
    data = output["data"]
    if 'class="arcnb-run"' in data.get("text/html", ""):
        return ""  # the page's top says the same, and how it ended
    if "text/html" in data:
        return f'<div class="output">{markdown.whole(data["text/html"])}</div>'
    if "application/vnd.jupyter.widget-view+json" in data:
        return ""  # a widget without a page's form, tqdm's bar for one: its text is the state it began with
    for kind in PICTURES:
        if kind in data:
            return _picture(kind, output)
    if "text/markdown" in data:
        rendered = markdown.whole(str(mistune.html(data["text/markdown"])))
        return f'<div class="output text">{rendered}</div>'
    text = data.get("text/plain") or data.get("text/latex") or ""
    return _pre(text, "result") if text else ""


def _picture(kind: str, output: Any) -> str:
    data = output["data"][kind]
    data = data.encode() if kind == "image/svg+xml" else base64.b64decode(data)
    size = output.get("metadata", {}).get(kind, {})
    width = size.get("width") if isinstance(size, dict) else None
    alt = output["data"].get("text/plain", "picture")[:ALT_CHARACTERS]
    return f'<div class="output">{picture(data, kind, alt, width)}</div>'


def _coloured(text: str) -> str:
    """HTML of a terminal's text with its colours."""
    if "\x1b" not in text:  # nbconvert takes a tenth of a second to load
        return html.escape(text)
    from nbconvert.filters.ansi import ansi2html

    return ansi2html(text)


def _pre(text: str, name: str) -> str:
    text = text.strip("\n")
    if len(text) > TEXT_CHARACTERS:
        half = TEXT_CHARACTERS // 2
        note = f"\n\n… {len(text) - 2 * half:,} characters left out; the executed notebook has them …\n\n"
        text = text[:half] + note + text[-half:]
    return f'<div class="output {name}"><pre>{_coloured(text)}</pre></div>'
