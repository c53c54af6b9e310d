"""Sees a collapse coming: statistics over a window of steps against documented thresholds.

    monitor = CollapseMonitor(GuardOptions(window=20))
    for step, row in rows: alarms = monitor.update(step, row)

Runs of ironbar/arc25 ended alike: completions grow to the limit, first repeating themselves, later as
gibberish, and reward falls. Small models can settle instead on a few short programs that run and solve
nothing. Each signal is the mean over the last `window` logged steps; relative ones are compared with the
run's own first full window, since a small model may start truncated and repetitive.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from arcnb.rl.plan.guard import GuardOptions

CHANGE_HIGH = "held_out/change_high"
TOKEN_RATIO, WEIGHT = "sampling/importance_ratio", "sampling/importance_sampling_ratio/mean"
# signal -> the logged names that carry it, first choice first; of "ratio" the one farthest from 1
SERIES = {
    "truncation": ("truncated_completions_ratio",),
    "repetition": ("unique_3gram_ratio",),
    "unique_tokens": ("unique_tokens_ratio",),
    "unique_outputs": ("unique_wrong_outputs",),
    "kl": ("kl",),
    "gap": ("sampling/logp_gap", "sampling/sampling_logp_difference/mean"),
    "ratio": (TOKEN_RATIO, WEIGHT),
    "reward": ("reward",),
    "held_out": ("held_out/pass@1",),
}
ABOVE = {
    "truncation": "share of truncated completions",
    "kl": "KL to the start, nats a token",
    "gap": "gap between sampler and learner, nats a token",
}
FALLEN = {
    "reward": "reward {now:.3g} against {best:.3g} in the best window",
    "held_out": "pass rate of the eval tasks {now:.3g} against {best:.3g} at best",
}
RELATIVE = {
    "repetition": "distinct 3-grams / 3-grams",
    "unique_tokens": "distinct tokens / tokens",
    "unique_outputs": "distinct outputs / completions that do not solve their task",
}


def signal_value(signal: str, row: Mapping[str, float | None]) -> float | None:
    """The signal's value in a logged step; None where it was not logged."""
    values = [float(row[name]) for name in SERIES[signal] if row.get(name) is not None]
    if signal == "ratio" and _nothing_left(row):
        return None
    if signal == "ratio" and values:
        return max(values, key=_distance_from_one)
    return values[0] if values else None


def _nothing_left(row: Mapping[str, float | None]) -> bool:
    """Whether all completions of the step were truncated and masked, so that its loss saw no token: the ratio
    by token is then not logged, and TRL gives 0 as the mean of no weights."""
    return row.get(TOKEN_RATIO) is None and row.get(WEIGHT) == 0


def _distance_from_one(ratio: float) -> float:
    return math.inf if math.isnan(ratio) else abs(math.log(max(ratio, 1e-300)))


@dataclass(frozen=True)
class Alarm:
    """One signal over its threshold. now: its mean over the last window; limit: what it was held against."""

    signal: str
    step: int
    now: float
    limit: float
    sentence: str


@dataclass
class CollapseMonitor:
    """Feeds on the logged rows of a run.

    first: means over the first windows. best: of reward and held_out, the best window's mean, and of reward
    its standard error. crossed: signal -> the step at which it first fired.
    """

    options: GuardOptions = GuardOptions()
    first: dict[str, float] = field(default_factory=dict)
    best: dict[str, tuple[float, float]] = field(default_factory=dict)
    lowest_reward: float = 0.0
    crossed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self):
        # An evaluation is a mean over many samples by itself: the last one is its window.
        self._values: dict[str, deque[float]] = {
            signal: deque(maxlen=1 if signal == "held_out" else self.options.window) for signal in SERIES
        }

    def update(self, step: int, row: Mapping[str, float | None]) -> list[Alarm]:
        """Take in a logged step; the signals that fire now and did not fire the step before."""
        alarms = []
        for signal in SERIES:
            value = signal_value(signal, row)
            if value is None:
                continue
            self._values[signal].append(value)
            if signal == "reward":
                self.lowest_reward = min(self.lowest_reward, value)
            if len(self._values[signal]) < self._values[signal].maxlen:
                continue
            alarm = self._judge(signal, step, row)
            if alarm is None:
                self.crossed.pop(signal, None)
            elif signal not in self.crossed:
                self.crossed[signal] = step
                alarms.append(alarm)
            self.first.setdefault(signal, self.now(signal))
        return alarms

    def now(self, signal: str) -> float:
        """Mean of the signal over the last window; NaN where it was never logged."""
        values = self._values[signal]
        return sum(values) / len(values) if values else math.nan

    def forget(self) -> None:
        """Start new windows, so that what still is over its limit a window later is an alarm again; the first
        and the best window stay what they were."""
        for values in self._values.values():
            values.clear()
        self.crossed.clear()

    def _judge(self, signal: str, step: int, row: Mapping[str, float | None]) -> Alarm | None:
        limits, now = self.options.thresholds, self.now(signal)
        first = self.first.get(signal)
        if math.isnan(now):
            return Alarm(signal, step, now, math.nan, f"{signal} is no number")
        if signal == "ratio":
            if limits.ratio_low <= now <= limits.ratio_high:
                return None
            limit = limits.ratio_low if now < limits.ratio_low else limits.ratio_high
            text = f"mean importance ratio {now:.3g} is outside [{limits.ratio_low}, {limits.ratio_high}]"
            return Alarm(signal, step, now, limit, text)
        if signal == "reward":
            values = self._values[signal]
            spread = math.sqrt(sum((value - now) ** 2 for value in values) / (len(values) - 1))
            return self._judge_fall(signal, step, now, self.lowest_reward, spread / math.sqrt(len(values)))
        if signal == "held_out":
            return self._judge_fall(signal, step, now, 0.0, seen=row.get(CHANGE_HIGH, 0.0) < 0)
        if signal in ABOVE:
            limit = getattr(limits, signal)
            if signal == "truncation":
                limit = max(limit, math.inf if first is None else first + limits.truncation_rise)
            text = f"{ABOVE[signal]} {now:.3g}, limit {limit:.3g}"
            return Alarm(signal, step, now, limit, text) if now >= limit else None
        share = getattr(limits, signal)
        if first and now <= share * first:  # a run that begins with nothing has nothing to lose
            text = f"{RELATIVE[signal]} {now:.3g}, at most {share:g} of {first:.3g} in the first window"
            return Alarm(signal, step, now, share * first, text)
        return None

    def _judge_fall(
        self, signal: str, step: int, now: float, floor: float, error: float = 0.0, seen: bool | None = None
    ) -> Alarm | None:
        """An alarm where `now`, counted from `floor`, is too small a share of the best, and not by chance:
        `seen` says so, or standard errors do."""
        limits = self.options.thresholds
        best, best_error = self.best.get(signal, (-math.inf, 0.0))
        if now > best:
            self.best[signal] = (now, error)
            return None
        limit = floor + getattr(limits, signal) * (best - floor)
        if seen is None:
            seen = best - now > limits.reward_errors * math.hypot(error, best_error)
        if now > limit or not seen:
            return None
        return Alarm(signal, step, now, limit, FALLEN[signal].format(now=now, best=best))

    def as_dict(self) -> dict:
        """Plain values for a checkpoint."""
        return {
            "first": self.first,
            "best": self.best,
            "lowest_reward": self.lowest_reward,
            "crossed": self.crossed,
            "values": {signal: list(values) for signal, values in self._values.items()},
        }

    def restore(self, state: Mapping) -> None:
        """The inverse of as_dict."""
        self.first = dict(state["first"])
        self.best = {signal: tuple(best) for signal, best in state["best"].items()}
        self.lowest_reward = state["lowest_reward"]
        self.crossed = dict(state["crossed"])
        for signal, values in state["values"].items():
            self._values[signal] = deque(values, maxlen=self._values[signal].maxlen)
