"""What a group of tasks learns from after a round, as rows for the learner.

learned = lessons.learned(histories, round_, order, TeacherTrial(learner, start, seed))
learned.rows, learned.new_tasks, learned.dropped
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.tasks.task import Task
from arcnb.models.sampling.backends import Backend
from arcnb.programs.executor.executor import Executor
from arcnb.search.learning.lessons.demonstrations import Demonstrations
from arcnb.search.learning.lessons.feedback import FeedbackSettings, feedback_rows
from arcnb.search.learning.lessons.hindsight import (
    HindsightSettings,
    HindsightTask,
    dealt,
    learning_rows,
    relabel,
)
from arcnb.search.learning.lessons.trial import TeacherTrial
from arcnb.search.sampling.sampled_set import SampledSet

KNOWS_NO_MORE = "teacher knows no more"


@dataclass
class Learned:
    """rows: what is learned from, best last. new_tasks: hindsight tasks of programs of this round. dropped:
    reason -> predictions, or rows, left out."""

    rows: list[dict] = field(default_factory=list)
    new_tasks: list[Task] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def n_taught(self) -> int:
        """Answers with a teacher among the rows."""
        return sum("told" in row for row in self.rows)

    def leave_out(self, counts: Mapping[str, int], kind: str = "") -> None:
        """kind: of the lesson, where its reasons are not the only ones. Counts that are 0 go."""
        self.dropped += Counter({f"{reason} ({kind})" if kind else reason: n for reason, n in counts.items()})


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
        trial: TeacherTrial,
    ) -> Learned:
        """histories: each task of the group with its predictions, round by round up to this one. order: in
        which the tasks are dealt. trial: of a lesson's teacher, before anything is sampled for it."""
        found, format_, tokenizer = Learned(), self.made.prompt_format, self.engine.tokenizer
        told = {"seed": self.seed, "round_": round_, "max_tokens": self.max_tokens}
        if self.kind in ("feedback", "both"):
            latest = [(task, rounds[-1]) for task, rounds in histories]
            made = feedback_rows(latest, self.executor, tokenizer, format_, self.feedback, **told)
            found.leave_out(made.dropped, "feedback")
            if not made.rows or trial.passed(made.probes):
                found.rows += made.rows
            else:
                found.leave_out({KNOWS_NO_MORE: len(made.rows)})
        if self.kind == "feedback":
            return found
        tasks = self._hindsight_tasks(histories, order, found)
        if self.kind == "demonstrations":
            lesson = Demonstrations(tasks, tokenizer, format_, **told)
            if not tasks or trial.passed(lesson.probes()):
                rows, dropped = lesson.rows(self.engine, self.made.sampling)
                found.rows += rows
                found.leave_out(dropped, "demonstrations")
            else:
                found.leave_out({KNOWS_NO_MORE: len(tasks)})
        else:
            rows, too_long = learning_rows(tasks, tokenizer, format_, epochs=self.epochs, **told)
            found.rows += rows
            found.leave_out({"row too long": too_long})
        return found

    def _hindsight_tasks(self, histories, order: Sequence[int], found: Learned) -> list[HindsightTask]:
        made = relabel(histories, self.executor, self.engine.tokenizer, self.hindsight, self.seed)
        for one in made:
            found.dropped += one.dropped
        found.new_tasks = [task.task for one in made for task in one.tasks if task.age == 0]
        return dealt([made[i].tasks for i in order])
