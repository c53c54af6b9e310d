"""The error that one sentence explains, and how names stand in such sentences."""

import difflib
from collections.abc import Iterable, Sequence


class ArcnbError(ValueError):
    """Something cannot be done as asked: one sentence with the file, task or parameter, and the remedy.

    Notebooks and commands show the sentence alone, without a traceback, and end with a non-zero exit. Errors
    that callers handle in ways of their own have classes of their own, where they are raised.
    """


def near_miss(name: str, names: Iterable[str]) -> str:
    """'; did you mean ...?' if one of the names is nearly this one, else ''."""
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=len(names) or 1, cutoff=0.5)
    return f"; did you mean {min(close, key=lambda one: _edits(name, one))!r}?" if close else ""


def _edits(one: str, other: str) -> int:
    """How many letters to put in, leave out, replace or swap with their neighbour make one the other."""
    before: list[int] = []
    line = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        earlier, before, line = before, line, [i]
        for j, b in enumerate(other, start=1):
            least = min(line[-1] + 1, before[j] + 1, before[j - 1] + (a != b))
            if min(i, j) > 1 and one[i - 2 : i] == b + other[j - 2]:
                least = min(least, earlier[j - 2] + 1)
            line.append(least)
    return line[-1]


def nearest(name: str, names: Iterable[str]) -> str:
    """'; did you mean ...?' for a near miss, else the list of what there is, if that is short."""
    names = sorted(names)
    if asked_back := near_miss(name, names):
        return asked_back
    if len(names) > 40:
        return ""
    return f"; there are {', '.join(names)}" if names else "; there are none"


def some(names: Sequence[str]) -> str:
    """The first five names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
