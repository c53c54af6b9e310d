"""The trial of a teacher: what it reads must make right answers likelier, or nothing is learned from it.

trial = TeacherTrial(learner, start, seed)
if trial.passed(probes): ...
trial.gain, trial.reason, trial.seconds
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arcnb.search.learning.learner.learner import LoraLearner


@dataclass
class TeacherTrial:
    """One trial of the teacher that `learner` would be, with the weights that it would begin with.

    made: whether there was one. gain: how much likelier right answers became, nats a token; None without
    right answers. seconds: what it took.
    """

    learner: LoraLearner
    start: Path | None
    seed: int
    made: bool = False
    gain: float | None = None
    seconds: float = 0.0

    def passed(self, probes: Sequence[dict]) -> bool:
        """probes: rows of right answers, each with "told"."""
        began = time.monotonic()
        self.made = True
        if probes:
            self.gain = self.learner.teacher_gain(probes, self.start, self.seed)
        self.seconds += time.monotonic() - began
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why the teacher is left out; None where it is not."""
        if not self.made:
            return None
        if self.gain is None:
            return "there are no right answers to try it on"
        if self.gain <= 0:
            return f"with what it reads, right answers are {-self.gain:.3f} nats a token less likely"
        return None
