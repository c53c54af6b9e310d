"""Which exceptions programs died of, as shares that a training run logs.

`status/error` lumps all of them, and they say different things: NameErrors are of a policy that forgets to
define, IndexErrors of one that misjudges grids. Programs raise exceptions of any name, their own included, so
the names logged are these of Python alone, every one each time: a log stays narrow, and means over steps are
shares again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

# The commonest of programs for ARC tasks.
CLASSES = (
    "AssertionError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "ModuleNotFoundError",
    "NameError",
    "TypeError",
    "UnboundLocalError",
    "ValueError",
    "ZeroDivisionError",
)
OTHER = "other"


def error_classes(verdicts: Sequence[tuple[str, str | None]]) -> dict[str, float]:
    """{"error/NAME": share of all completions}; together they are `status/error`.

    verdicts: the executor's status and the name of the exception, of each completion. Other verdicts than
    "error" are classes of their own, `status/...`, whatever exception came with them.
    """
    raised = Counter(name if name in CLASSES else OTHER for status, name in verdicts if status == "error")
    return {f"error/{name}": raised[name] / len(verdicts) for name in (*CLASSES, OTHER)}
