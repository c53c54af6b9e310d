"""What a trainer really runs with, against what it was asked: a difference has to have a known reason.

unsloth changes batch size, scale_rewards, clip options and defaults in silence; transformers converts some
values. Everything that was asked is compared with the trainer's arguments after it was made.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from arcnb.errors import ArcnbError


def check_effective(asked: Mapping, arguments, accept: bool = False):
    """A data frame: setting, asked, effective, reason (empty where both are the same).

    arguments: the trainer's args. ArcnbError names every difference without a known reason, unless `accept`.
    """
    import pandas as pd

    rows, unexplained = [], []
    for name, value in asked.items():
        effective = getattr(arguments, name, None)
        effective = effective.value if isinstance(effective, enum.Enum) else effective
        reason = ""
        if _same(value, effective):
            effective = value
        elif (reason := _explain(name, value, effective, asked)) is None:
            reason = "UNEXPLAINED"
            unexplained.append(f"{name} was asked as {value!r} and is {effective!r}")
        rows.append((name, str(value), str(effective), reason))
    if unexplained and not accept:
        raise ArcnbError(
            f"the trainer changed settings without a known reason: {'; '.join(unexplained)}; "
            "ask for what it runs with, or set accept_other_config=True"
        )
    return pd.DataFrame(rows, columns=["setting", "asked", "effective", "reason"])


def _explain(name: str, asked: object, effective: object, asked_all: Mapping) -> str | None:
    """Why a setting is not as asked; None: for no known reason."""
    if (
        (name == "scale_rewards" and {True: "group", False: "none"}.get(asked, asked) == effective)
        or (name == "report_to" and ([asked] == effective or (asked == "none" and effective in ([], None))))
        or (name == "top_k" and {asked, effective} <= {0, -1, None})  # TRL's and unsloth's word for no cut
    ):
        return "another spelling of the same"
    if name == "bf16" and effective is False and asked_all.get("use_cpu"):
        return "no bf16 training on a CPU"
    if name == "num_train_epochs" and asked_all.get("max_steps", -1) > 0:
        return "max_steps decides"
    return None


def _same(asked: object, effective: object) -> bool:
    if isinstance(asked, bool) or isinstance(effective, bool):
        return asked is effective
    if isinstance(asked, int | float) and isinstance(effective, int | float):
        return abs(asked - effective) <= 1e-12 * max(abs(asked), abs(effective))
    return asked == effective
