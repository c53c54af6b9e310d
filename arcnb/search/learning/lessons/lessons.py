"""What a group of tasks learns from after a round, as rows for the learner.

learned = lessons.learned(histories, round_, order)
learned.rows, learned.new_tasks, learned.dropped
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.tasks.task import Task
from arcnb.models.sampling.backends import Backend
from arcnb.programs.executor.executor import Executor
from arcnb.search.learning.lessons.demonstrations import demonstration_rows
from arcnb.search.learning.lessons.feedback import FeedbackSettings, feedback_rows
from arcnb.search.learning.lessons.hindsight import (
    HindsightSettings,
    HindsightTask,
    dealt,
    learning_rows,
    relabel,
)
from arcnb.search.learning.lessons.rows import Taught
from arcnb.search.sampling.sampled_set import SampledSet


@dataclass
class Learned:
    """rows: what is learned from, best last. probes: see `Taught`. new_tasks: hindsight tasks of programs of
    this round. dropped: reason -> predictions, or rows, left out."""

    rows: list[dict] = field(default_factory=list)
    probes: list[dict] = field(default_factory=list)
    new_tasks: list[Task] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def n_taught(self) -> int:
        """Answers with a teacher among the rows."""
        return sum("told" in row for row in self.rows)

    def add_taught(self, made: Taught, kind: str) -> None:
        self.rows += made.rows
        self.probes += made.probes
        self.dropped += Counter({f"{reason} ({kind})": n for reason, n in made.dropped.items()})

    def leave_out_taught(self, reason: str) -> None:
        self.dropped += Counter({reason: self.n_taught})
        self.rows = [row for row in self.rows if "told" not in row]


@dataclass(frozen=True)
class Lessons:
    """kind: the plan's `lessons`. engine: the search's, which samples for demonstrations with the adapter
    that it uses. epochs: passes over hindsight tasks. max_tokens: of a row."""

    kind: str
    hindsight: HindsightSettings
    feedback: FeedbackSettings
    made: SampledSet
    engine: Backend
    executor: Executor
    seed: int
    epochs: int
    max_tokens: int

    def learned(
        self,
        histories: Sequence[tuple[Task, Sequence[Sequence[Prediction]]]],
        round_: int,
        order: Sequence[int],
    ) -> Learned:
        """histories: each task of the group with its predictions, round by round up to this one. order: in
        which the tasks are dealt."""
        found, format_, tokenizer = Learned(), self.made.prompt_format, self.engine.tokenizer
        told = {"seed": self.seed, "round_": round_, "max_tokens": self.max_tokens}
        if self.kind in ("feedback", "both"):
            latest = [(task, rounds[-1]) for task, rounds in histories]
            made = feedback_rows(latest, self.executor, tokenizer, format_, self.feedback, **told)
            found.add_taught(made, "feedback")
        if self.kind == "feedback":
            return found
        tasks = self._hindsight_tasks(histories, order, found)
        if self.kind == "demonstrations":
            made = demonstration_rows(tasks, self.engine, format_, self.made.sampling, **told)
            found.add_taught(made, "demonstrations")
        else:
            rows, too_long = learning_rows(tasks, tokenizer, format_, epochs=self.epochs, **told)
            found.rows += rows
            found.dropped += Counter({"row too long": too_long})  # counts that are 0 go
        return found

    def _hindsight_tasks(self, histories, order: Sequence[int], found: Learned) -> list[HindsightTask]:
        made = relabel(histories, self.executor, self.engine.tokenizer, self.hindsight, self.seed)
        for one in made:
            found.dropped += one.dropped
        found.new_tasks = [task.task for one in made for task in one.tasks if task.age == 0]
        return dealt([made[i].tasks for i in order])
