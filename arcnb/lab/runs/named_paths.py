"""Which pieces of a parameter's text are paths. Some parameters name one file or folder, others several:

    runs/a/predictions, runs/b/predictions        prediction sets
    runs/a/tasks.parquet*100 + barc:rows.jsonl    a recipe of tasks
    sampled = A | B; refined = A[:64] + R         arms of a comparison

A name with any of the separators in it stands in double quotes. What a stage depends on, the parents of a
run, and the runs that others still need are all found by this.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from arcnb.values import bare, split_unquoted

# From the outermost to the innermost. "=" comes last and splits once: what follows `name =` may hold another.
SEPARATORS = (",", ";", "|", "+", "=")
_AMOUNT = re.compile(r"(\[:\d+\]|\*\s*\d+)$")  # the first n of a set, n tasks of a source


def texts(value: Any) -> Iterator[str]:
    """Every text in a parameter's value: lists and mappings have several."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)


def pieces(text: str, separators: tuple[str, ...] = SEPARATORS) -> Iterator[str]:
    """Everything in the text that may be a path: the whole, its parts, and the parts of those."""
    yield _bare(text)
    for part, inner in _parts(text, separators):
        yield from pieces(part, inner)


def pieces_that(is_path: Callable[[str], bool], text: str, inner: tuple[str, ...] = SEPARATORS) -> list[str]:
    """The pieces that are paths, in their order; of one that is, the parts are not asked for: the names of
    files may hold commas and the like."""
    if is_path(_bare(text)):
        return [_bare(text)]
    return [piece for part, rest in _parts(text, inner) for piece in pieces_that(is_path, part, rest)]


def existing(piece: str) -> Path | None:
    """The path if there is something; None for any other text, however strange or long."""
    try:
        path = Path(piece).expanduser()
        return path if piece and os.path.exists(path) else None
    except (OSError, RuntimeError, ValueError):  # RuntimeError: `~` and the name of nobody
        return None


def existing_file(piece: str | Path) -> Path | None:
    """As `existing`, of files alone."""
    path = existing(str(piece))
    return path if path is not None and os.path.isfile(path) else None


def _parts(text: str, separators: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """The parts by the outermost separator in the text, and the separators that may split them further."""
    for number, separator in enumerate(separators):
        if separator in text:
            parts = split_unquoted(text, separator, 1 if separator == "=" else -1)
            if len(parts) > 1:
                return [(part, separators[number + 1 :]) for part in parts]
    return []


def _bare(text: str) -> str:
    return bare(_AMOUNT.sub("", bare(text).removeprefix("barc:")))
