"""Search and learn: sample programs, learn from what they did, sample again, until solved or out of budget.

    search = SearchAndLearn(tasks, engine, executor, folder, plan, base=model)
    report = search.run()

A round predicts for all groups of tasks, each with its own adapter, then learns for each group from what its
programs did (`arcnb.search.learning.lessons`). Below `folder`:

    predictions/            every prediction of every round, a prediction set as inference leaves it
    hindsight/              the tasks made of them, one task set a round and group
    adapters/               one a round and group, within a budget of disk
    steps-shard00-of-01.jsonl   a line for each finished step

A process that is killed is started again with the same arguments: it reads what is complete and goes on with
the first step that is not, and ends with the rows that it would have had.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.stop_rules import record_rule
from arcnb.arc.seeds import derive_seed, rng
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import write_tasks
from arcnb.errors import ArcnbError
from arcnb.models.prompts.chat import count_tokens
from arcnb.models.prompts.format import prompt_format
from arcnb.models.prompts.rendering import template_digest
from arcnb.models.registry import ModelPath
from arcnb.programs.executor.executor import Executor
from arcnb.search.learning.budgets import Clock, TimedEngine
from arcnb.search.learning.journal import AdapterFolder, StepJournal, drop_other_divisions
from arcnb.search.learning.learner.learner import LoraLearner
from arcnb.search.learning.learner.settings import LoraSettings
from arcnb.search.learning.lessons.lessons import Learned, Lessons
from arcnb.search.learning.lessons.trial import TeacherTrial
from arcnb.search.learning.plan import SearchPlan
from arcnb.search.learning.report import SearchReport
from arcnb.search.learning.state import RoundRows, TaskState
from arcnb.search.learning.submission_file import SubmissionFile
from arcnb.search.sampling.conditions import conditions, hold_to_conditions
from arcnb.search.sampling.predict import predict, shard_of
from arcnb.search.sampling.sampled_set import SampledSet

MOST_AHEAD = 64  # prompts that are looked at: a budget without a limit in completions has no last one
MANY_PARTS = 64  # parts of this shard are packed when there are more: every round reads them


class SearchAndLearn:
    """See the module. engine: a generation backend, with room for adapters of the rank of `plan.lora`.

    base: the model that the engine runs, to be trained; None for search alone, on the same prompts. shard:
    (i, n), the tasks of shard i of n. open_learner: called with base and `plan.lora` when there is something
    to learn. shared: a search's set whose rows of the first round are taken over, with the seconds that they
    took (search alone, say: both arms then begin with the same programs and the same budget spent).
    submission: kept up to date.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        engine,
        executor: Executor,
        folder: Path,
        plan: SearchPlan,
        *,
        base: ModelPath | None = None,
        shard: tuple[int, int] = (0, 1),
        open_learner: Callable[[ModelPath, LoraSettings], LoraLearner] = LoraLearner,
        clock: Clock | None = None,
        submission: SubmissionFile | None = None,
        shared: PredictionSet | None = None,
        announce: Callable[[str], None] = print,
    ):
        self.clock = clock or Clock()
        self.engine, self.executor = TimedEngine(engine, self.clock), executor
        self.plan, self.folder = plan, Path(folder)
        self.submission, self.announce = submission, announce
        self.base, self._open_learner, self.learner = base, open_learner, None
        self.predictions = RoundRows(self.folder / "predictions", shard)
        format_, sampling = prompt_format(plan.template, plan.encoding), plan.sampling.sampling()
        self.made = SampledSet(tasks, self.predictions, format_, sampling, plan.model, plan.adapter)
        self.lessons = Lessons(
            plan.lessons,
            replace(plan.hindsight, augment=plan.augment),
            plan.feedback,
            self.made,
            self.engine,
            executor,
            plan.seed,
            plan.rounds.num_train_epochs,
            plan.engine.max_length or engine.context,
        )
        hold_to_conditions(self.predictions, self._conditions())
        most = plan.budget.n_predictions or sys.maxsize
        record_rule(self.predictions, plan.rounds.stop_after, most, distinct=True)
        mine = shard_of(self.made, plan.prompts(0, shard), engine)
        self.tasks = {task.task_id: task for task in mine}
        self.groups = plan.groups(mine)
        end = f"shard{shard[0]:02d}-of-{shard[1]:02d}"
        self.journal = StepJournal(self.folder / f"steps-{end}.jsonl")
        self.adapters = AdapterFolder(self.folder / "adapters", shard, plan.rounds.adapter_gb)
        self.current: dict[int, Path | None] = dict.fromkeys(range(len(self.groups)))
        self.states = {task_id: TaskState() for task_id in self.tasks}
        self.report = SearchReport(tasks=len(self.tasks))
        self._unsubmitted: set[str] = set(self.tasks)
        self._shared = shared

    def run(self) -> SearchReport:
        """Do all that is left to do. What was made is on disk when this returns or raises."""
        with self.clock.stopping_on_interrupt(), self.journal.alone():
            drop_other_divisions(self.folder, self.predictions.shard[1])
            self._take_rows()
            return self._run()

    def _run(self) -> SearchReport:
        started = time.monotonic()
        round_ = 0
        try:
            while not self.clock.is_up:
                going = [group for group in range(len(self.groups)) if self._active_tasks(group)]
                if not going or not self._predict_round(round_, going):
                    break
                if self.base is not None:
                    self._learn_round(round_, going)
                round_ += 1
        finally:
            self._refresh_submission()
            if self.learner is not None:
                self.learner.close()
            self.report.rounds, self.report.out_of_time = round_, self.clock.is_up
            self.report.solved_train = sum(bool(state.solving) for state in self.states.values())
            self.report.by_round = self.journal.seconds_by_round()
            self.report.seconds = time.monotonic() - started
        return self.report

    # ----------------------------------------------------------------- predict

    def _active_tasks(self, group: int) -> list[Task]:
        """The tasks of a group that go on: not solved, within budget, with prompts that fit."""
        budget, enough = self.plan.budget, self.plan.rounds.stop_after
        return [task for task in self.groups[group] if self.states[task.task_id].goes_on(budget, enough)]

    def _predict_round(self, round_: int, going: Sequence[int]) -> bool:
        """Sample the round for all groups; False when the time was up before its end."""
        todo = [group for group in going if not self._finished("predict", round_, group)]
        for groups in self._calls(todo):
            if not self._predict(round_, groups):
                return False
        for group in going:
            line = self.journal.find("predict", round_, group)
            for task in self._active_tasks(group):
                self.states[task.task_id].end_round(round_, line["seconds_per_task"])
                self._end_without_prompts(task, round_)
        return True

    def _finished(self, step: str, round_: int, group: int) -> dict | None:
        """The journal line of a finished step, or None.

        A step is finished only if its round holds every completion that the current budget allows. After a
        budget was raised, an early round is topped up with its own adapter, and learned from again.
        """
        line = self.journal.find(step, round_, group)
        return line if line and line["completions"] >= self._asked(round_) else None

    def _asked(self, round_: int) -> int:
        """Completions of a task up to the end of a round."""
        return self.plan.prompts(round_).n_predictions

    def _end_without_prompts(self, task: Task, round_: int) -> None:
        """End a task of which no prompt of the round fitted, if none of the next MOST_AHEAD does, either.

        Prompts show one test input each, so a task with one that is too long may have others that fit. A task
        without any goes on for a while at most, and one that goes on will have completions.
        """
        state = self.states[task.task_id]
        if state.rows(round_):
            return
        prompts = self.plan.prompts(round_ + MOST_AHEAD)  # a round has at least one prompt
        first = self.plan.prompts(round_).n_rounds
        numbers = range(first, min(prompts.n_rounds, first + MOST_AHEAD))
        shown = [self.made.prompt_format.prompt(prompts.view(task, number).apply(task)) for number in numbers]
        room = self.engine.context - self.made.sampling.max_tokens
        state.ended = all(length > room for length in count_tokens(self.engine.tokenizer, shown))

    def _calls(self, groups: Sequence[int]) -> list[list[int]]:
        """Groups that are sampled in one call, for full batches: with one adapter, with none, as all in the
        first round, or with any adapters where the engine mixes them."""
        mixing = getattr(self.engine, "adapters_at_once", 1) > 1
        kind = {group: self.current[group] is not None if mixing else self.current[group] for group in groups}
        return [list(some) for _, some in groupby(sorted(groups, key=lambda g: str(kind[g])), key=kind.get)]

    def _predict(self, round_: int, groups: list[int]) -> bool:
        since, before = time.monotonic(), self.report.times()
        self.engine.adapters.clear()
        tasks = []
        for group in groups:
            adapter = self.current[group]
            if adapter is not None and not adapter.is_dir():
                raise ArcnbError(f"adapter {adapter} of group {group} is gone, so the search cannot go on")
            self.engine.use_adapter(adapter)
            for task in self._active_tasks(group):
                tasks.append(task)
                self.predictions.made_with[task.task_id] = adapter.name if adapter else self.made.adapter
                if adapter is not None and len(groups) > 1:
                    self.engine.adapters[task.task_id] = adapter
        self._unsubmitted.update(task.task_id for task in tasks)
        switched = time.monotonic()
        made = replace(self.made, tasks=tasks)
        inference = predict(made, self.engine, self.executor, self.plan.prompts(round_))
        seconds = time.monotonic() - switched
        self.report.add_sampling(inference, seconds, switched - since)
        self._file(self.predictions.take_fresh())
        if self.clock.is_up:
            return False
        spent = self.report.times_since(before, len(groups))
        for group in groups:
            # Of a round that was taken over, or that a smaller budget cut: it has seconds already.
            before_it = self._taken_over(round_, group) or self.journal.find("predict", round_, group)
            each = seconds / len(tasks) + (before_it["seconds_per_task"] if before_it else 0.0)
            facts = {"seconds_per_task": each, "completions": self._asked(round_)}
            self.journal.add("predict", round_, group, **facts, **spent)
        self._refresh_submission()
        if len(self.predictions.parts()) > MANY_PARTS * self.predictions.shard[1]:
            self.predictions.pack(*self.predictions.shard)
        return True

    def _refresh_submission(self) -> None:
        if self.submission is not None and self._unsubmitted:
            self.submission.refresh(sorted(self._unsubmitted))
            self._unsubmitted.clear()

    # ------------------------------------------------------------------- learn

    def _learn_round(self, round_: int, going: Sequence[int]) -> None:
        """Learn for the groups that still go on and have predictions of this round."""
        trained = False
        for group in going:
            ids = [task.task_id for task in self.groups[group]]
            if not (self._active_tasks(group) and any(self.states[id_].rows(round_) for id_ in ids)):
                continue
            if self.clock.is_up:
                return
            line = self._finished("learn", round_, group)
            trained |= line is None
            line = line or self._learn(round_, group)
            if line is None:
                return
            if line["adapter"]:
                self.current[group] = self.adapters.folder / line["adapter"]
            for task in self._active_tasks(group):
                self.states[task.task_id].spent.seconds += line["seconds"] / len(ids)
        if trained:  # rounds that are only read again, when resuming, are older than the newest adapters
            newest = [path for path in self.current.values() if path]
            self.report.adapters_deleted += len(self.adapters.tidy(newest))

    def _learn(self, round_: int, group: int) -> dict | None:
        """The journal's line of the step; None when the time was up. An error keeps the adapter before."""
        since, opening, before = time.monotonic(), self.report.opening_seconds, self.report.times()
        try:
            facts = self._trained(round_, group)
        except Exception as error:
            if self.clock.is_up:  # an interrupt that a library swallowed shows up as any error
                return None
            kept = self.current[group]
            with_what = f"with adapter {kept.name}" if kept else "without a learned adapter"
            sentence = f"round {round_}, group {group}: learning failed ({error}); it goes on {with_what}"
            self.announce(sentence)
            self.report.failures.append(sentence)
            facts = {"adapter": None, "error": f"{type(error).__name__}: {error}"}
        if facts is None:
            return None
        seconds = time.monotonic() - since - (self.report.opening_seconds - opening)
        spent = self.report.times_since(before)
        facts |= {"seconds": seconds, "completions": self._asked(round_)}
        return self.journal.add("learn", round_, group, **facts, **spent)

    def _trained(self, round_: int, group: int) -> dict | None:
        """Relabel, train, and show the engine the adapter; facts for the journal, None when time was up."""
        if self.learner is None:
            self.learner = self._open_learner(self.base, self.plan.lora)
            self.report.opening_seconds += self.learner.seconds
        start = self.current[group] if self.plan.rounds.keep_adapter else None
        seed = derive_seed(self.plan.seed, "adapter", self.groups[group][0].task_id)
        trial = TeacherTrial(self.learner, start, seed)
        since = time.monotonic()
        learned = self._lesson(round_, group, trial)
        self.report.relabelling_seconds += time.monotonic() - since - trial.seconds
        self.report.learning_seconds += trial.seconds
        self.report.add_lessons(learned)
        tried = {"teacher_gain": trial.gain} if trial.made else {}
        if trial.reason is not None:
            note = f"round {round_}, group {group}: the teacher is left out, since {trial.reason}"
            self.announce(note)
            self.report.notes.append(note)
            if not learned.rows:
                return {"adapter": None, "error": None, "rows": 0, "steps": 0, **tried}
        folder = self.adapters.path(round_, group)
        report = self.learner.learn(learned.rows, start, folder, seed, lambda: self.clock.is_up)
        if report is None:
            return None
        switching = time.monotonic()
        self.engine.use_adapter(report.adapter)  # whether the engine takes it, while there is a way back
        self.report.add_learning(report, report.save_seconds + time.monotonic() - switching)
        for note in report.notes:
            self.announce(f"round {round_}, group {group}: {note}")
        names = ("rows", "steps", "tokens", "loss_first", "loss_last")
        values = {name: getattr(report, name) for name in names}
        return {"adapter": report.adapter.name, "error": None, **values, **tried}

    def _lesson(self, round_: int, group: int, trial: TeacherTrial) -> Learned:
        """What the group learns from; the new hindsight tasks are saved on the way."""
        tasks, rounds = self.groups[group], range(round_ + 1)
        histories = [(task, [self.states[task.task_id].rows(n) for n in rounds]) for task in tasks]
        order = rng(self.plan.seed, "deal", round_, tasks[0].task_id).permutation(len(tasks))
        if self.plan.lessons == "demonstrations":
            self.engine.adapters.clear()
            self.engine.use_adapter(self.current[group])
        learned = self.lessons.learned(histories, round_, order, trial)
        if learned.new_tasks:
            path = self.folder / "hindsight" / f"{self.adapters.path(round_, group).name}.parquet"
            if self.journal.find("learn", round_, group):  # of a round that a smaller budget cut
                path.unlink(missing_ok=True)
            if not path.exists():  # else it is from before a kill
                write_tasks(learned.new_tasks, path)
        return learned

    # -------------------------------------------------------------------- state

    def _conditions(self) -> dict:
        """What a search that was begun has to be resumed with; budgets and disk may grow."""
        learn = self.base is not None
        names = ("first_round", "per_round", "group_size", "stop_after", "keep_adapter", "num_train_epochs")
        settings = {"learn": learn, "max_length": self.plan.engine.max_length}
        settings |= {name: getattr(self.plan.rounds, name) for name in names}
        if learn:
            settings |= {f"hindsight_{name}": value for name, value in vars(self.lessons.hindsight).items()}
            settings |= {f"lora_{name}": value for name, value in self.plan.lora.decisive().items()}
            settings["lessons"] = self.plan.lessons
            if self.plan.lessons in ("feedback", "both"):
                settings |= {f"feedback_{name}": value for name, value in vars(self.plan.feedback).items()}
                settings["refine_template_sha256"] = template_digest(self.made.prompt_format.refine_template)
        wanted = conditions(self.made, self.plan.prompts(0))
        return {**wanted, "settings": wanted["settings"] | settings}

    def _take_rows(self) -> None:
        """What is on disk from before, and what the first round of `shared` has beyond it."""
        self._file(self.predictions.iter_predictions(list(self.tasks)))
        if self._shared is None:
            return
        there = {row.key for state in self.states.values() for row in state.rows(0)}
        rows = self._shared.iter_predictions(list(self.tasks))
        new = [row for row in rows if self.plan.round_of(row.round) == 0 and row.key not in there]
        self.predictions.write_part(new, 0)
        self._file(self.predictions.take_fresh())

    def _taken_over(self, round_: int, group: int) -> dict | None:
        """The line of the search that made the shared rows of this round; None where it has none."""
        if self._shared is None or round_:
            return None
        return StepJournal(self._shared.folder.parent / self.journal.path.name).find("predict", 0, group)

    def _file(self, rows: Iterable[Prediction]) -> None:
        for row in rows:
            self.states[row.task_id].add(self.plan.round_of(row.round), row)
