"""Choosing attempts for a test input among the outputs of many programs; the rules are rivals in `RULES`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from arcnb.arc.grids import Grid
from arcnb.errors import ArcnbError

N_ATTEMPTS = 2


@dataclass(frozen=True, eq=False)
class Candidate:
    """A program with valid outputs: its text, its grid for each test input, and how well it does on train."""

    program: str
    test_outputs: tuple[Grid | None, ...]
    train_score: float


@dataclass(frozen=True, eq=False)
class Vote:
    """One grid proposed for a test input, and the candidates that propose it, in order of appearance."""

    grid: Grid
    voters: tuple[Candidate, ...]

    @property
    def mean_code_length(self) -> float:
        """Characters of program text, mean over the voters."""
        return sum(len(voter.program) for voter in self.voters) / len(self.voters)


Rule = Callable[[Sequence[Candidate], int], list[Grid]]


def count_votes(candidates: Sequence[Candidate], test_index: int) -> list[Vote]:
    """The distinct grids proposed for a test input, in order of appearance."""
    voters: dict[tuple, list[Candidate]] = {}
    for candidate in candidates:
        grid = candidate.test_outputs[test_index]
        if grid is not None:
            voters.setdefault((grid.shape, grid.tobytes()), []).append(candidate)
    return [Vote(found[0].test_outputs[test_index], tuple(found)) for found in voters.values()]


def by_train_score(candidates: Sequence[Candidate], test_index: int) -> list[Grid]:
    """Grids of the programs that do best on train, then most voted for by distinct programs of that score,
    then the shortest such program, then the first seen.
    """
    return [vote.grid for vote in sorted(count_votes(candidates, test_index), key=_train_key)]


def by_majority(candidates: Sequence[Candidate], test_index: int) -> list[Grid]:
    """Grids by votes of distinct programs, whatever these do on train; ties as in `by_train_score`."""

    def key(vote: Vote) -> tuple[int, float, int, int]:
        return -len({voter.program for voter in vote.voters}), *_train_key(vote)

    return [vote.grid for vote in sorted(count_votes(candidates, test_index), key=key)]


def legacy(candidates: Sequence[Candidate], test_index: int) -> list[Grid]:
    """The reference's rule: score level by score level, by votes, then mean code length.

    Every prediction votes, however often its program occurs, and a grid proposed at two levels comes twice.
    """

    def level(candidate: Candidate) -> float:
        return -candidate.train_score

    grids = []
    for _, same_score in groupby(sorted(candidates, key=level), key=level):
        votes = count_votes(list(same_score), test_index)
        grids += [vote.grid for vote in sorted(votes, key=lambda v: (-len(v.voters), v.mean_code_length))]
    return grids


def certainty(candidates: Sequence[Candidate], test_index: int, rule: Rule = by_train_score) -> float:
    """How sure the first choice of a rule is, 0..1: the train score of its best programs, times the share of
    the distinct programs of that score that propose it; 0 without any output."""
    grids = rule(candidates, test_index)
    if not grids:
        return 0.0
    able = [one for one in candidates if one.test_outputs[test_index] is not None]
    agreeing = [one for one in able if np.array_equal(one.test_outputs[test_index], grids[0])]
    best = max(one.train_score for one in agreeing)
    agree, all_ = ({one.program for one in some if one.train_score == best} for some in (agreeing, able))
    return best * len(agree) / len(all_)


def _train_key(vote: Vote) -> tuple[float, int, int]:
    best = max(voter.train_score for voter in vote.voters)
    programs = {voter.program for voter in vote.voters if voter.train_score == best}
    return -best, -len(programs), min(map(len, programs))


RULES: dict[str, Rule] = {"train-score": by_train_score, "majority": by_majority, "legacy": legacy}


def rule_of(name: str) -> Rule:
    """The rule of that name. ArcnbError where there is none."""
    if name not in RULES:
        raise ArcnbError(f"submission_rule {name!r} does not exist; there are {', '.join(RULES)}")
    return RULES[name]
