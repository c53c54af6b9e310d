"""What the guard watches, when it fires, and what it does then."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from arcnb.plans import branch, option
from arcnb.values import SOME_SHARE

_threshold = partial(option, free=True)


@dataclass(frozen=True)
class Thresholds:
    """When a signal fires; `now`, `first` are means over the last and the first window.

    Right completions agree, so unique_outputs looks at those that do not solve their task: policies that
    settle on a few short programs that merely run lose these first, while nothing is truncated or repeats
    itself. Of the importance ratio token by token and the weights that the loss uses, the one farther from 1
    counts: over a sequence small differences multiply, and weights are clipped from above.
    """

    truncation: float = _threshold(0.5, "share of truncated completions: fires when now is at least this ...")
    truncation_rise: float = _threshold(0.25, "... and at least first plus this")
    repetition: float = _threshold(0.5, "distinct 3-grams / 3-grams: fires at or below this share of first")
    unique_tokens: float = _threshold(0.5, "distinct tokens / tokens: fires at or below this share of first")
    unique_outputs: float = _threshold(
        0.6,
        "distinct outputs / completions that do not solve their task: fires at or below this share of first",
    )
    held_out: float = _threshold(
        0.75,
        "pass rate of the eval tasks, last evaluation: fires at or below this share of the best one, if the "
        "fall, task by task, is no chance (95%)",
    )
    kl: float = _threshold(
        1.0, "KL to the starting policy (TRL's estimator); healthy runs stay below 0.1", "nats a token"
    )
    gap: float = _threshold(
        0.1, "mean |log p(sampler) - log p(learner)|; bf16 kernels alone give 0.01 to 0.02", "nats a token"
    )
    ratio_low: float = _threshold(0.5, "mean importance ratio learner/sampler: fires below")
    ratio_high: float = _threshold(2.0, "mean importance ratio learner/sampler: fires above")
    reward: float = _threshold(
        0.5,
        "fires when now, counted from 0 or the lowest seen, is at most this share of the best window ...",
    )
    reward_errors: float = _threshold(
        4.0, "... and so many standard errors of the difference below the best window"
    )


@dataclass(frozen=True)
class GuardOptions:
    """rollback returns to the best checkpoint by solve rate of the eval tasks, which may be the start; after
    `max_rollbacks` of them, or without such a checkpoint, it stops."""

    action: str = option(
        "warn",
        "on signs of collapse: warn, stop, or rollback to the best checkpoint",
        free=True,
        within=("warn", "stop", "rollback"),
    )
    window: int = option(
        20,
        "length of the window that the guard takes its means over",
        "logged steps",
        free=True,
        within="[2, inf)",
    )
    max_rollbacks: int = option(2, "rollbacks before the guard stops the run", free=True)
    learning_rate_factor: float = option(
        0.5, "the learning rate is multiplied by this at each rollback", free=True, within=SOME_SHARE
    )
    thresholds: Thresholds = branch(Thresholds)
