"""Rewards of one judged prediction, as schemes over small bounded terms.

A scheme is a function of the scores on the prediction record and of the number of train and test
pairs; `SCHEMES` lists them side by side, so comparing them is a loop. `solved` is a flag of its own
and never read off the number. The four schemes of ironbar/arc25 are kept under their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arcnb.rl.rewards.rollout import Scores


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


SCHEMES: dict[str, Callable[[Scores], float]] = {
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


def reward_scheme(name: str) -> Callable[[Scores], float]:
    """The scheme of that name. ValueError names the schemes there are."""
    if name not in SCHEMES:
        raise ValueError(f"reward scheme {name!r} does not exist; there are {', '.join(SCHEMES)}")
    return SCHEMES[name]
