"""Rewards of one judged prediction, as schemes over small bounded terms.

A scheme is a function of the scores on the prediction record and of the number of train and test
pairs; `SCHEMES` lists them side by side, so comparing them is a loop. A file of yours may hold others:
"my_rewards.py:brave". `solved` is a flag of its own and never read off the number. The four schemes of
ironbar/arc25 are kept under their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError, reason

if TYPE_CHECKING:
    from arcnb.rl.rewards.rollout import Scores

Scheme = Callable[["Scores"], float]


def arc_v1(scores: Scores) -> float:
    """1 for valid outputs + 8 x share of right grids + mean pixel similarity; range [0, 10]."""
    return 1 + 8 * scores.correct + scores.pixel if scores.has_outputs else 0.0


def arc_v2_no_pixel_score(scores: Scores) -> float:
    """1 for valid outputs + 9 x share of right grids; range [0, 10]."""
    return 1 + 9 * scores.correct if scores.has_outputs else 0.0


def legacy_parse_penalty(scores: Scores) -> float:
    """arc-v1 with -1 where there is no program; range [-1, 10]."""
    return arc_v1(scores) if scores.has_program else -1.0


def legacy_sum(scores: Scores) -> float:
    """Train share + test share of right grids, -1 where there is no program; range [-1, 2]."""
    if not scores.has_program:
        return -1.0
    return scores.train_correct + (scores.test_correct or 0.0) if scores.has_outputs else 0.0


def known_grids(scores: Scores) -> float:
    """0.1 for valid outputs + 0.9 x share of right grids among those known; range [0, 1].

    A perfect program earns the top also where test outputs are unknown, unlike in arc25's schemes.
    """
    return 0.1 + 0.9 * scores.known_correct if scores.has_outputs else 0.0


def test_pairs(scores: Scores) -> float:
    """1 for valid outputs + 9 x share of right test grids, which no prompt showed; range [0, 10].

    Train pairs copied into the program earn nothing. Where test outputs are unknown, train grids count.
    """
    known = scores.train_correct if scores.test_correct is None else scores.test_correct
    return 1 + 9 * known if scores.has_outputs else 0.0


def right_grids(scores: Scores) -> float:
    """Share of right grids among those known, nothing for outputs that are merely valid; range [0, 1].

    Where few programs are right, most groups differ by validity alone, and advantages divided by a group's
    spread may then teach short programs that run; see docs/results/log/2026-11-21_first_grpo_arms.md.
    """
    return scores.known_correct if scores.has_outputs else 0.0


def solved(scores: Scores) -> float:
    """1 for a program that is right on every grid whose expected output is known, else 0."""
    return float(scores.has_outputs and scores.known_correct == 1.0)


SCHEMES: dict[str, Scheme] = {
    "arc-v1": arc_v1,
    "simplified": arc_v1,  # arc25's other name for it
    "arc-v2-no-pixel-score": arc_v2_no_pixel_score,
    "legacy-parse-penalty": legacy_parse_penalty,
    "legacy-sum": legacy_sum,
    "known-grids": known_grids,
    "test-pairs": test_pairs,
    "right-grids": right_grids,
    "solved": solved,
}


def reward_scheme(name: str) -> Scheme:
    """The scheme of that name, or the function that FILE.py:FUNCTION names; the file is run to find it.

    ArcnbError names the schemes there are, or what is wrong with file or function; the function of a file
    raises it where it gives no finite number.
    """
    file = file_of(name)
    if file is None:
        if name not in SCHEMES:
            there = ", ".join(SCHEMES)
            raise ArcnbError(f"reward={name!r} does not exist; there are {there}, and FILE.py:FUNCTION")
        return SCHEMES[name]
    module = ModuleType(file.stem)  # the function needs it for as long as it lives
    try:
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), vars(module))
    except OSError as error:
        raise ArcnbError(f"reward={name!r}: {file} cannot be read: {reason(error)}") from error
    except Exception as error:
        raise ArcnbError(f"reward={name!r}: {file} ends with {type(error).__name__}: {error}") from error
    function = vars(module).get(name.rpartition(":")[2])
    if not callable(function):
        raise ArcnbError(f"reward={name!r}: {file} has no such function")

    def scheme(scores: Scores) -> float:
        value = function(scores)
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ArcnbError(f"reward={name!r} is to be a finite number, but was {value!r} for {scores}")
        return float(value)

    return scheme


def file_of(name: str) -> Path | None:
    """The file of a reward that is written FILE.py:FUNCTION; None for the name of a scheme."""
    file, colon, _ = name.rpartition(":")
    return Path(file).expanduser() if colon and file.endswith(".py") else None
