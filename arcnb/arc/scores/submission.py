"""Kaggle submissions: two attempts for every test input of every task, made, checked, scored and written.

The form is `{task_id: [{"attempt_1": grid, "attempt_2": grid}, ...]}`, one entry a test input, in order.
Kaggle refuses a file in which a task or an attempt is missing, so a task without any valid output is padded
with [[0]] and reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.grids import as_grid
from arcnb.arc.scores.attempts import N_ATTEMPTS, Candidate, Rule, rule_of
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.machine.files import make_folder, write_whole
from arcnb.machine.reading import read_object, shown

if TYPE_CHECKING:
    import pandas as pd

SUBMISSION_COLUMNS = ("task_id", "program", "status", "outputs", "train_correct_grids")
_KEYS = tuple(f"attempt_{i + 1}" for i in range(N_ATTEMPTS))
PADDING = [[0]]


class Submission(dict):
    """The submission as a plain mapping, ready for JSON, that knows where it was padded.

    padded: {task_id: number of attempts that are only [[0]] because nothing else was there}.
    """

    def __init__(self, entries: Mapping, padded: Mapping[str, int]):
        super().__init__(entries)
        self.padded = dict(padded)

    def __repr__(self) -> str:
        n_outputs = sum(map(len, self.values()))
        return f"<Submission: {len(self)} tasks, {n_outputs} test outputs, {self.padding_report()}>"

    def padding_report(self) -> str:
        """One sentence for a person: how many tasks had too few outputs, and the first of them."""
        if not self.padded:
            return "no task padded"
        names = ", ".join(list(self.padded)[:5]) + (", ..." if len(self.padded) > 5 else "")
        attempts = sum(self.padded.values())
        return f"{len(self.padded)} tasks padded with [[0]] in {attempts} attempts ({names})"


@dataclass(frozen=True)
class SubmissionScore:
    """per_task: {task_id: fraction of its test outputs that an attempt gets right}.

    task_mean: the mean over tasks; output_mean: the fraction of all test outputs, which is Kaggle's score.
    missing: tasks that the submission lacks, which count 0.
    """

    per_task: dict[str, float]
    task_mean: float
    output_mean: float
    n_outputs: int
    missing: tuple[str, ...]

    def __str__(self) -> str:
        missing = f", {len(self.missing)} tasks missing" if self.missing else ""
        return (
            f"{self.task_mean:.2%} of {len(self.per_task)} tasks (mean over tasks), "
            f"{self.output_mean:.2%} of {self.n_outputs} test outputs{missing}"
        )


def create_submission(frame: pd.DataFrame, tasks: Iterable[Task], rule: str = "train-score") -> Submission:
    """Two attempts for every test input of every task, chosen by a rule of `attempts.RULES`.

    frame: predictions with `SUBMISSION_COLUMNS`. The attempts differ wherever there are two different outputs
    to choose from (the legacy rule aside). Predictions of other tasks are ignored. Raises `ArcnbError`
    for an unknown rule and for outputs that do not fit the task.
    """
    choose = rule_of(rule)
    valid = frame[frame["status"] == "ok"]
    rows = dict(list(valid.groupby(valid["task_id"].astype(object), sort=False)))
    entries, padded = {}, {}
    for task in tasks:
        candidates = task_candidates(rows.get(task.task_id), task)
        entries[task.task_id], n_missing = choose_attempts(candidates, len(task.test), choose)
        if n_missing:
            padded[task.task_id] = n_missing
    return Submission(entries, padded)


def choose_attempts(candidates: Sequence[Candidate], n_test: int, rule: Rule) -> tuple[list[dict], int]:
    """The entries of one task, and how many of their attempts are padding."""
    entries, n_missing = [], 0
    for test_index in range(n_test):
        grids = [grid.tolist() for grid in rule(candidates, test_index)[:N_ATTEMPTS]]
        missing = N_ATTEMPTS - len(grids)
        n_missing += missing
        entries.append(dict(zip(_KEYS, grids + [PADDING] * missing, strict=True)))
    return entries, n_missing


def validate_submission(submission: Mapping, tasks: Iterable[Task]) -> None:
    """Raise `ArcnbError`, a sentence that names the problem, unless Kaggle would take the submission."""
    tasks = list(tasks)
    _check_entries(submission, tasks)
    if missing := [task.task_id for task in tasks if task.task_id not in submission]:
        raise ArcnbError(f"task {missing[0]} is missing from the submission")


def score_submission(submission: Mapping, tasks: Iterable[Task]) -> SubmissionScore:
    """Score against the known test outputs. A task that the submission lacks counts 0.

    Raises `ArcnbError` for a task that is not in `tasks` or whose test outputs are unknown, and for entries
    that Kaggle would refuse.
    """
    tasks = list(tasks)
    _check_entries(submission, tasks)
    per_task, n_right, n_outputs = {}, 0, 0
    for task in tasks:
        if not task.has_test_outputs:
            raise ArcnbError(f"task {task.task_id}: its test outputs are unknown, so it cannot be scored")
        entries = submission.get(task.task_id, [{}] * len(task.test))
        pairs = zip(entries, task.test, strict=True)
        right = sum(pair.output.tolist() in entry.values() for entry, pair in pairs)
        per_task[task.task_id] = right / len(task.test)
        n_right, n_outputs = n_right + right, n_outputs + len(task.test)
    return SubmissionScore(
        per_task=per_task,
        task_mean=sum(per_task.values()) / len(per_task) if per_task else 0.0,
        output_mean=n_right / n_outputs if n_outputs else 0.0,
        n_outputs=n_outputs,
        missing=tuple(task_id for task_id in per_task if task_id not in submission),
    )


def write_submission(submission: Mapping, path: str | Path) -> Path:
    """Write the submission as JSON, whole, in the place of one that is there. Validate it first."""
    path = Path(path)
    make_folder(path.parent)
    write_whole(path, json.dumps(submission, separators=(",", ":")))
    return path


def is_submission(path: str | Path) -> bool:
    """Whether a file is a submission, of whatever tasks: one of another kind is not to be written over."""
    try:
        tasks = read_object(path).values()
    except ArcnbError:
        return False
    entries = [entry for found in tasks for entry in (found if isinstance(found, list) else [found])]
    return all(isinstance(entry, dict) and set(entry) == set(_KEYS) for entry in entries)


def task_candidates(rows: pd.DataFrame | None, task: Task) -> list[Candidate]:
    """The candidates among a task's valid predictions, with `SUBMISSION_COLUMNS`."""
    if rows is None:
        return []
    n_train, n_test = len(task.train), len(task.test)
    candidates = []
    for program, outputs, train_score in zip(
        rows["program"], rows["outputs"], rows["train_correct_grids"].fillna(0), strict=True
    ):
        if len(outputs) != n_train + n_test:
            expected = f"{n_train} train and {n_test} test inputs"
            raise ArcnbError(f"task {task.task_id}: a prediction has {len(outputs)} outputs for {expected}")
        candidates.append(Candidate(program, tuple(outputs[n_train:]), float(train_score)))
    return candidates


def _check_entries(submission: Mapping, tasks: Iterable[Task]) -> None:
    """ArcnbError for a task that is not one of `tasks`, and for entries of another form."""
    if not isinstance(submission, Mapping):
        raise ArcnbError(f"a submission is an object of tasks, not {type(submission).__name__}")
    n_tests = {task.task_id: len(task.test) for task in tasks}
    for task_id, entries in submission.items():
        if task_id not in n_tests:
            raise ArcnbError(f"task {shown(task_id)} of the submission is not in the task set")
        if not isinstance(entries, list) or len(entries) != n_tests[task_id]:
            n = len(entries) if isinstance(entries, list) else "no list of"
            raise ArcnbError(f"task {shown(task_id)}: {n} entries for {n_tests[task_id]} test inputs")
        for i, entry in enumerate(entries):
            _check_entry(entry, f"task {shown(task_id)}, test {i}")


def _check_entry(entry: object, name: str) -> None:
    if not isinstance(entry, dict) or set(entry) != set(_KEYS):
        raise ArcnbError(f"{name}: the entry does not have exactly the keys {' and '.join(_KEYS)}")
    for key, grid in entry.items():
        as_grid(grid, f"{name}, {key}")
        plain = isinstance(grid, list) and all(isinstance(row, list) for row in grid)
        if not plain or any(type(cell) is not int for row in grid for cell in row):
            raise ArcnbError(f"{name}, {key}: not lists of plain integers, which is all that JSON can hold")
