"""Pieces of a page that need nothing from elsewhere: pictures inside, what would be fetched taken out."""

import base64
import html
import re

WIDE = 500.0  # points: no letter of a drawing so wide can be read on a phone that shows it whole
# What makes a browser fetch something, in HTML that a cell's output or its markdown brought along.
_FETCHING = (
    re.compile(r"<script\b[^>]*\bsrc\s*=[^>]*>.*?</script\s*>", re.I | re.S),
    re.compile(r"<(?:link|base)\b[^>]*>", re.I),
    re.compile(
        r"<(?!a\b)[a-z]+\b[^>]*?\b(?:src|srcset|data|poster|(?<!xmlns:)xlink:href|href)"
        r"\s*=\s*[\"']?\s*(?:https?:)?//[^>]*>",
        re.I,
    ),
    re.compile(r"@import\b[^;]*;", re.I),
    re.compile(r"url\(\s*[\"']?(?:https?:)?//[^)]*\)", re.I),
)


def external_references(page: str) -> list[str]:
    """What in an HTML page would make a browser load something from elsewhere (links to follow do not)."""
    found = [match.group(0)[:200] for pattern in _FETCHING for match in pattern.finditer(page)]
    return [piece for piece in found if not piece.startswith('<link rel="icon" href="data:,">')]


def without_external(fragment: str) -> str:
    """The fragment without what `external_references` finds."""
    for pattern in _FETCHING:
        fragment = pattern.sub("", fragment)
    return fragment


def picture(data: bytes, kind: str, alt: str, width: object = None) -> str:
    """An image that needs no file beside the page; width in pixels, or as HTML has it ("50%"). A drawing of
    several columns is called wide: on a phone it is scrolled and not made smaller than its letters can be
    read."""
    name = "drawing" if kind == "image/svg+xml" else "photo"
    if name == "drawing" and (told := re.search(rb'<svg[^>]* width="([\d.]+)pt"', data)):
        name += " wide" * (float(told[1]) > WIDE)
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    size = f' width="{html.escape(str(width))}"' if width else ""
    return f'<img class="{name}" src="{source}" alt="{html.escape(alt)}"{size}>'
