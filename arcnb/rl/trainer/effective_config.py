"""What a trainer really runs with, against what it was asked: a difference has to have a known reason.

unsloth changes batch size, scale_rewards, clip options and defaults in silence; transformers converts some
values. Everything that was asked is compared with the trainer's arguments after it was made.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from arcnb.errors import ArcnbError


@dataclass(frozen=True)
class Difference:
    """One setting that is not as asked; reason None: unexplained."""

    name: str
    asked: object
    effective: object
    reason: str | None


def _explain(name: str, asked: object, effective: object, asked_all: Mapping) -> str | None:
    if name == "scale_rewards" and {True: "group", False: "none"}.get(asked, asked) == effective:
        return "another spelling of the same"
    if name == "report_to" and asked == "none" and effective in ([], None):
        return "another spelling of the same"
    if name == "top_k" and {asked, effective} <= {0, -1, None}:  # TRL's and unsloth's word for no cut
        return "another spelling of the same"
    if name == "report_to" and [asked] == effective:
        return "another spelling of the same"
    if name == "bf16" and effective is False and asked_all.get("use_cpu"):
        return "no bf16 training on a CPU"
    if name == "num_train_epochs" and asked_all.get("max_steps", -1) > 0:
        return "max_steps decides"
    return None


def differences(asked: Mapping, arguments) -> list[Difference]:
    """Every asked setting whose value in `arguments` (a trainer's args) is another one."""
    found = []
    for name, value in asked.items():
        effective = getattr(arguments, name, None)
        effective = effective.value if isinstance(effective, enum.Enum) else effective
        if _same(value, effective):
            continue
        found.append(Difference(name, value, effective, _explain(name, value, effective, asked)))
    return found


def _same(asked: object, effective: object) -> bool:
    if isinstance(asked, bool) or isinstance(effective, bool):
        return asked is effective
    if isinstance(asked, int | float) and isinstance(effective, int | float):
        return abs(asked - effective) <= 1e-12 * max(abs(asked), abs(effective))
    return asked == effective


def check_effective(asked: Mapping, arguments, accept: bool = False) -> list[Difference]:
    """The differences, all of them explained. ArcnbError otherwise, unless `accept`."""
    found = differences(asked, arguments)
    unexplained = [difference for difference in found if difference.reason is None]
    if unexplained and not accept:
        named = "; ".join(f"{d.name} was asked as {d.asked!r} and is {d.effective!r}" for d in unexplained)
        raise ArcnbError(
            f"the trainer changed settings without a known reason: {named}; "
            "ask for what it runs with, or set accept_other_config=True"
        )
    return found


def effective_table(asked: Mapping, arguments):
    """A data frame: setting, asked, effective, reason (empty where both are the same)."""
    import pandas as pd

    changed = {difference.name: difference for difference in differences(asked, arguments)}
    rows = []
    for name, value in asked.items():
        difference = changed.get(name)
        effective = difference.effective if difference else value
        reason = (difference.reason or "UNEXPLAINED") if difference else ""
        rows.append((name, str(value), str(effective), reason))
    return pd.DataFrame(rows, columns=["setting", "asked", "effective", "reason"])
