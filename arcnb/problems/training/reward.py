"""Rewards by test cases: the share of tests passed, a bonus for all of them, and one for the format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from arcnb.arc.predictions.prediction import Prediction
from arcnb.errors import ArcnbError
from arcnb.problems.sets.problem import Problem
from arcnb.rl.rewards.function import Answers
from arcnb.rl.rewards.rollout import Rollout, Scores
from arcnb.rl.rewards.terms import RewardPlan


@dataclass(frozen=True)
class TestRollout(Rollout):
    """strict: the answer kept the format that was asked for."""

    __test__ = False

    strict: bool = False


@dataclass(frozen=True)
class TestcaseRewards(RewardPlan):
    """base x share of tests passed + perfect when all pass; binary: base + perfect, or nothing.

    format_weight: added when the answer kept its format. The terms of arcnb.rl.rewards.terms come on top.
    ArcnbError for weights that are all zero.
    """

    __test__ = False

    base: float = 1.0
    perfect: float = 1.0
    binary: bool = False
    format_weight: float = 0.0

    def __post_init__(self):
        self.check_weights()
        if not self.base + self.perfect:
            raise ArcnbError("base_reward_weight and perfect_reward_weight are both 0: tests would not count")

    def parts(self, group: Sequence[Rollout]) -> dict[str, list[float]]:
        """{"tests", "format" or term: its contribution to each completion's reward}."""
        parts = {"tests": [self._tests(rollout) for rollout in group]}
        if self.format_weight:
            parts["format"] = [self.format_weight * getattr(rollout, "strict", False) for rollout in group]
        return parts | self.terms(group)

    def _tests(self, rollout: Rollout) -> float:
        share = rollout.scores.train_correct
        if self.binary:
            return (self.base + self.perfect) * (share == 1)
        return self.base * share + self.perfect * (share == 1)


def problem_rollout(prediction: Prediction, problem: Problem) -> TestRollout:
    """What rewards are made of, from an answer whose tests were run."""
    scores = replace(Scores.of(prediction, 1, 0), test_correct=None, test_pixel=None)
    strict = (prediction.extraction or "").startswith("strict")
    return TestRollout(scores, (), bool(prediction.train_is_correct), strict=strict)


def problem_metrics(answers: Answers) -> dict[str, float]:
    """How this process's answers were read, and the share of tests passed: TRL takes the mean over
    processes."""
    passed = [rollout.scores.train_correct for _, rollout in answers]
    counts = parse_counts([prediction for prediction, _ in answers])
    return counts | {"tests_passed_ratio": sum(passed) / len(passed)}


def parse_counts(judged: Sequence[Prediction]) -> dict[str, float]:
    """Shares of answers that kept the format, that held a program all the same, and that held none."""
    kinds = [(prediction.extraction or "none").split(",")[0] for prediction in judged]
    return {f"parse/{kind}": kinds.count(kind) / len(kinds) for kind in ("strict", "lenient", "none")}
