"""What a search did, where its time went, and what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from arcnb.errors import number_of
from arcnb.search.learning.journal import TIMES
from arcnb.search.learning.learner.learner import LearningReport
from arcnb.search.learning.lessons.lessons import Learned
from arcnb.search.sampling.report import InferenceReport


@dataclass
class SearchReport:
    """Counts and wall seconds of this process; of a resumed search, of its last attempt. What is taken over
    of another search was not made here.

    opening_seconds: loading the engine (added by whoever opened it) and the trainer; switching_seconds:
    saving adapters, loading them into the trainer and into the engine. dropped: reason -> predictions that
    were not learned from. failures: one sentence for every training that failed; notes: for every one that
    was done other than asked. by_round: {"round", and the seconds of `TIMES`} of every round, also
    of earlier attempts; opening the engine belongs to no round. peak_memory_gb: of a training, on the GPU.
    """

    tasks: int = 0
    rounds: int = 0
    solved_train: int = 0
    out_of_time: bool = False
    completions: int = 0
    completion_tokens: int = 0
    trainings: int = 0
    training_rows: int = 0
    training_tokens: int = 0
    hindsight_tasks: int = 0
    taught_answers: int = 0
    adapters_deleted: int = 0
    opening_seconds: float = 0.0
    switching_seconds: float = 0.0
    sampling_seconds: float = 0.0
    relabelling_seconds: float = 0.0
    learning_seconds: float = 0.0
    seconds: float = 0.0
    too_long: dict[str, int] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    by_round: list[dict] = field(default_factory=list)
    peak_memory_gb: float = 0.0
    engine_seconds: float = 0.0

    @property
    def start_share(self) -> float:
        """Share of all time, 0 to 1, that went into loading things rather than using them."""
        total = self.seconds + self.engine_seconds
        return (self.opening_seconds + self.switching_seconds) / total if total else 0.0

    def add_engine(self, seconds: float) -> None:
        """Count what opening the engine took, which happens before the search begins."""
        self.engine_seconds += seconds
        self.opening_seconds += seconds

    def add_sampling(self, inference: InferenceReport, seconds: float, switching: float) -> None:
        self.completions += inference.made
        self.completion_tokens += inference.completion_tokens
        self.too_long |= inference.too_long
        self.sampling_seconds += seconds
        self.switching_seconds += switching

    def add_lessons(self, learned: Learned) -> None:
        self.hindsight_tasks += len(learned.new_tasks)
        self.taught_answers += learned.n_taught
        self.dropped += learned.dropped

    def add_learning(self, report: LearningReport, switching: float) -> None:
        self.trainings += 1
        self.training_rows += report.rows
        self.training_tokens += report.tokens
        self.learning_seconds += report.seconds
        self.switching_seconds += switching
        self.peak_memory_gb = max(self.peak_memory_gb, report.peak_memory_gb)
        self.notes += report.notes

    def times(self) -> dict[str, float]:
        """Seconds so far, by the names of `TIMES`."""
        start_up = self.opening_seconds + self.switching_seconds
        seconds = (self.sampling_seconds, self.relabelling_seconds, self.learning_seconds, start_up)
        return dict(zip(TIMES, seconds, strict=True))

    def times_since(self, before: Mapping[str, float], share: int = 1) -> dict[str, float]:
        """What came on top of `before`, divided by `share` groups that it was for."""
        return {name: (seconds - before[name]) / share for name, seconds in self.times().items()}

    def outcome(self) -> dict:
        """Plain values for the run's manifest."""
        return vars(self) | {"dropped": dict(self.dropped), "start_share": self.start_share}

    def __str__(self) -> str:
        used = {
            "sampling": self.sampling_seconds,
            "relabelling": self.relabelling_seconds,
            "learning": self.learning_seconds,
            "loading and switching": self.opening_seconds + self.switching_seconds,
        }
        times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in used.items())
        lines = [
            f"{self.solved_train} of {number_of(self.tasks, 'task')} have a program that solves their train "
            f"pairs, after {number_of(self.rounds, 'round')}"
            + (" (the time was up)" if self.out_of_time else ""),
            f"made by this start: {self.completions:,} completions, {self.hindsight_tasks:,} hindsight tasks"
            + (f", {self.taught_answers:,} answers with a teacher" if self.taught_answers else "")
            + f"; {self.trainings} trainings on {self.training_rows:,} "
            f"rows, {self.training_tokens:,} tokens",
            f"{times}: {self.start_share:.1%} of the time was start-up"
            + (f"; training took up to {self.peak_memory_gb:.1f} GB" if self.peak_memory_gb else ""),
        ]
        if self.dropped:
            lines.append("not learned from: " + ", ".join(f"{n} {r}" for r, n in self.dropped.most_common()))
        if self.too_long:
            lines.append(
                f"{len(self.too_long)} tasks have prompts that are too long for the context, skipped"
            )
        return "\n".join([*lines, *self.notes, *self.failures])
