"""The error that one sentence explains, and how names and numbers stand in sentences."""

import difflib
from collections.abc import Iterable, Sequence


class ArcnbError(ValueError):
    """Something cannot be done as asked: one sentence with the file, task or parameter, and the remedy.

    Notebooks and commands show the sentence alone, without a traceback, and end with a non-zero exit. Errors
    that callers handle in ways of their own have classes of their own, where they are raised.
    """


def reason(error: Exception) -> str:
    """Why the system refused a file or a program, without the path, which the sentence has named by then."""
    return getattr(error, "strerror", None) or str(error)


def near_miss(name: str, names: Iterable[str]) -> str:
    """'; did you mean ...?' if one of the names is nearly this one, else ''."""
    close = difflib.get_close_matches(name, sorted(names), n=5, cutoff=0.5)
    swapped = [one for one in close if sorted(one) == sorted(name)]  # letters that changed places
    return f"; did you mean {(swapped or close)[0]!r}?" if close else ""


def nearest(name: str, names: Iterable[str]) -> str:
    """'; did you mean ...?' for a near miss, else the list of what there is, if that is short."""
    names = sorted(names)
    if asked_back := near_miss(name, names):
        return asked_back
    if len(names) > 40:
        return ""
    return f"; there are {', '.join(names)}" if names else "; there are none"


def number_of(n: int, noun: str) -> str:
    """'1 step', '2 steps'."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def short_number(value: float) -> str:
    """Three digits of a number, or all before its point: no power of ten below a million."""
    return f"{value:.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"


def some(names: Sequence[str]) -> str:
    """The first five names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
