"""Small bounded terms that are added to a reward scheme, each with a weight.

    plan = RewardPlan("arc-v2-no-pixel-score", {"overlong": 1.0, "repetition": 0.5})
    rewards = plan.rewards(completions)

A term sees one group at a time, the completions of one prompt. Every term is 0 for a plain good first answer
and stays within its bounds, so that a weight says at most how much it can cost or give. Under advantages
"group" they are divided by the group's spread: a tie-break of any weight then acts at full strength in
a group whose rewards are equal otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from arcnb.rl.rewards.metrics import ngram_statistics
from arcnb.rl.rewards.rollout import Rollout, Scores
from arcnb.rl.rewards.schemes import Scheme, reward_scheme

NGRAM, FREE = 6, 0.5  # repetition: at this share of distinct n-grams and above nothing is paid


@dataclass(frozen=True)
class TermLimits:
    """max_completion_length, tokens; overlong_buffer: tokens before it at which the overlong ramp begins."""

    max_completion_length: int
    overlong_buffer: int = 0

    def __post_init__(self):
        if not 0 <= self.overlong_buffer <= self.max_completion_length:
            raise ValueError(
                f"overlong_buffer={self.overlong_buffer} must be within 0..{self.max_completion_length}"
            )


def overlong(group: Sequence[Rollout], limits: TermLimits) -> list[float]:
    """0 up to max_completion_length - overlong_buffer tokens, then linear to -1 at the limit, -1 for a
    truncated completion; [-1, 0].

    The ramp of DAPO (Yu et al. 2025): with buffer 0 only truncated completions pay.
    """
    start = limits.max_completion_length - limits.overlong_buffer
    values = []
    for rollout in group:
        over = len(rollout.tokens) - start
        if rollout.truncated:
            values.append(-1.0)
        else:
            values.append(-over / limits.overlong_buffer if over > 0 else 0.0)
    return values


def repetition(group: Sequence[Rollout], limits: TermLimits) -> list[float]:
    """0 while at least half of the 6-grams are distinct, then linear to -1; [-1, 0]."""
    values = []
    for rollout in group:
        statistics = ngram_statistics(rollout.tokens, NGRAM)
        enough = statistics["total_ngrams"] > 0
        values.append(min(0.0, statistics["unique_ngram_ratio"] / FREE - 1) if enough else 0.0)
    return values


def valid_code(group: Sequence[Rollout], limits: TermLimits) -> list[float]:
    """-1 where the program gave no valid outputs, else 0; [-1, 0]."""
    return [0.0 if rollout.scores.has_outputs else -1.0 for rollout in group]


def shortest_of_solved(group: Sequence[Rollout], limits: TermLimits) -> list[float]:
    """In a group whose completions are all right: 0 for the shortest to -1 for the longest; [-1, 0]."""
    lengths = [len(rollout.tokens) for rollout in group]
    span = max(lengths) - min(lengths)
    if not span or not all(rollout.solved and not rollout.cheating for rollout in group):
        return [0.0] * len(group)
    return [-(length - min(lengths)) / span for length in lengths]


def improvement(group: Sequence[Rollout], limits: TermLimits) -> list[float]:
    """0 for a program closer to the goal than the one it was asked to improve, -0.5 for one as close, -1 for
    one farther; [-1, 0].

    By share of right grids among those known, then by similarity; 0 without a parent. Three steps and no
    difference: a group shares its parent, and advantages would not see a constant that all are reduced by.
    """
    values = []
    for rollout in group:
        if rollout.parent is None:
            values.append(0.0)
            continue
        now, then = (0.0, 0.0) if rollout.cheating else _closeness(rollout.scores), _closeness(rollout.parent)
        values.append(0.0 if now > then else -0.5 if now == then else -1.0)
    return values


def _closeness(scores: Scores) -> tuple[float, float]:
    return (scores.known_correct, scores.pixel) if scores.has_outputs else (0.0, 0.0)


TERMS: dict[str, Callable[[Sequence[Rollout], TermLimits], list[float]]] = {
    "overlong": overlong,
    "repetition": repetition,
    "valid_code": valid_code,
    "shortest_of_solved": shortest_of_solved,
    "improvement": improvement,
}


@dataclass(frozen=True)
class RewardPlan:
    """A scheme and weighted terms. A program that cheats earns nothing: the scheme counts 0 for it.

    ArcnbError for a scheme, ValueError for a term that does not exist.
    """

    scheme: str
    limits: TermLimits
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self):
        self.of_scores  # noqa: B018  what is no scheme is refused at once
        self.check_weights()

    @cached_property
    def of_scores(self) -> Scheme:
        """The scheme's function; a file's is read once, so that a run keeps what it began with."""
        return reward_scheme(self.scheme)

    def check_weights(self) -> None:
        """ValueError for a term that does not exist."""
        for name in self.weights:
            if name not in TERMS:
                raise ValueError(f"reward term {name!r} does not exist; there are {', '.join(TERMS)}")

    def parts(self, group: Sequence[Rollout]) -> dict[str, list[float]]:
        """{"scheme" or term: its weighted contribution to each completion's reward}."""
        parts = {"scheme": [0.0 if rollout.cheating else self.of_scores(rollout.scores) for rollout in group]}
        return parts | self.terms(group)

    def terms(self, group: Sequence[Rollout]) -> dict[str, list[float]]:
        """{term: its weighted contribution to each completion's reward}."""
        return {
            name: [weight * value for value in TERMS[name](group, self.limits)]
            for name, weight in self.weights.items()
            if weight
        }

    def rewards(self, group: Sequence[Rollout]) -> list[float]:
        """One reward a completion of the group."""
        return [sum(values) for values in zip(*self.parts(group).values(), strict=True)]
