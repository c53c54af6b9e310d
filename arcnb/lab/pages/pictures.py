"""Pictures inside a page made smaller, for pages that would be too large."""

import base64
import io
import re

SMALLEST = 100_000  # characters of a data URI: below, there is nothing to gain
_PICTURE = re.compile(r"data:image/(?:png|jpeg|webp);base64,([A-Za-z0-9+/=\s]+)")
_NOTE = (
    '<div class="output left-out">Reduced to keep this page small; the notebook has the whole picture.</div>'
)


def reduced(fragment: str) -> str | None:
    """The fragment with its large bitmaps at half their width and height; None where that does not help."""
    smaller = _PICTURE.sub(_halved, fragment)
    if len(smaller) >= 0.9 * len(fragment):
        return None
    return smaller if _NOTE in smaller else smaller + _NOTE


def _halved(match: re.Match[str]) -> str:
    from PIL import Image, UnidentifiedImageError

    if len(match[0]) < SMALLEST:
        return match[0]
    try:
        picture = Image.open(io.BytesIO(base64.b64decode(match[1])))
        picture = picture.convert("RGBA")
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError):
        return match[0]
    picture = picture.resize(
        (max(1, picture.width // 2), max(1, picture.height // 2)), Image.Resampling.LANCZOS
    )
    buffer = io.BytesIO()
    picture.save(buffer, "WEBP", quality=80)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
