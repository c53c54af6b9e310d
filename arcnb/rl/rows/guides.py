"""Guided tasks: completions of a task that no sample solves begin with lines of a program that solves it.

The lines stand at the end of the prompt, hence outside of the loss, and the whole group continues them (POPE,
arXiv 2601.18779: prefixes of oracle solutions; Prefix Sampling, arXiv 2605.05112: of own successes). How many
follows from (seed, row, history): about as many as let half of the completions succeed, fewer as more of them
do, none in the end. Held-out and evaluation tasks are never guided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import View
from arcnb.errors import ArcnbError
from arcnb.rl.rows.history import Group, SignalHistory
from arcnb.synth.splits import is_held_out
from arcnb.values import listed

if TYPE_CHECKING:
    from arcnb.rl.plan.grpo import GrpoPlan

GOLD = "gold"  # in the place of a folder of predictions: the tasks' own programs


@dataclass(frozen=True)
class Guide:
    """lines: of a program that solves the task. view: the one in which it does; None: the task as stored, in
    any order of its pairs."""

    lines: tuple[str, ...]
    view: View | None = None


@dataclass(frozen=True)
class Guides:
    """by_task: task id -> Guide. after, free: see `arcnb.rl.plan.grpo.GuideOptions`. longest: tokens of the
    longest prompt with its lines."""

    by_task: Mapping[str, Guide]
    after: int = 1
    free: float = 0.25
    longest: int = 8192

    def lines(self, task_id: str, row: int, history: SignalHistory, seed: int) -> int:
        """Lines that the completions of this row begin with, 0 for none."""
        guide = self.by_task.get(task_id)
        if guide is None or rng(seed, "free", row).random() < self.free:
            return 0
        return level(history.before(row).get(task_id, ()), len(guide.lines), self.after)

    def guided(
        self, prompt: Callable, task: Task, row: int, history: SignalHistory, seed: int
    ) -> tuple[list[int], str, dict] | None:
        """What `prompt(task as shown, columns, beginning)` makes of a guided row; None for a free one."""
        lines = self.lines(task.task_id, row, history, seed)
        guide = self.by_task.get(task.task_id)
        while lines:
            view = guide.view or View.sample(task, seed, "row", row, augment="none")
            made = prompt(view.apply(task), view.columns() | {"lines": lines}, "\n".join(guide.lines[:lines]))
            if len(made[0]) <= self.longest:
                return made
            lines -= 1
        return None


def level(groups: Sequence[Group], total: int, after: int) -> int:
    """Lines that a task's next guided group gets, from its groups so far, of a program of `total` lines.

    None until `after` free groups in a row solve nothing. Then half of the program, and steps of a quarter
    that halve down to one line: fewer after a group of which more than half succeed, more after one of which
    fewer do. At 0 it is free; if it then falls silent again it begins anew with one line. A free group that
    solves lowers it by a step, one of which half do ends it. The last line is never shown.
    """
    lines, step, silent = 0, 0, 0
    for group in groups:
        if group.lines:
            lines = group.lines - step * ((group.share > 0.5) - (group.share < 0.5))
            step = max(1, step // 2)
        elif group.right:
            silent, lines = 0, 0 if group.share >= 0.5 else lines - step
        else:
            silent += 1
            if lines <= 0 and silent >= after:
                lines, step = (1, 1) if step else (max(1, total // 2), max(1, total // 4))
        lines = max(0, min(lines, total - 1))
        silent = 0 if lines else silent
    return lines


def guides_of(plan: GrpoPlan, tasks: Sequence[Task], longest: int) -> Guides | None:
    """The plan's guides for these tasks; None where it asks for none. ArcnbError for a task that must not be
    guided, and where no program is known for any."""
    asked = plan.guide
    if not asked.programs:
        return None
    if held := [task.task_id for task in tasks if is_held_out(task)]:
        raise ArcnbError(f"guide_programs shows solutions, and {held[0]} is reserved")
    found: dict[str, Guide] = {}
    for source in listed(asked.programs):
        if source != GOLD and not Path(source).is_dir():
            raise ArcnbError(f"guide_programs: {source} is no folder of predictions, and not {GOLD}")
        for task_id, guide in _gold(tasks) if source == GOLD else _solved(PredictionSet(source), tasks):
            if len(guide.lines) > 1 and task_id not in found:
                found[task_id] = guide
    if not found:
        raise ArcnbError(f"guide_programs={asked.programs!r} has no program for any of {len(tasks)} tasks")
    return Guides(found, asked.after, asked.free, longest)


def _gold(tasks: Sequence[Task]) -> Iterator[tuple[str, Guide]]:
    return ((task.task_id, _guide(task.program)) for task in tasks if task.program)


def _solved(predictions: PredictionSet, tasks: Sequence[Task]) -> Iterator[tuple[str, Guide]]:
    """Of each task the shortest program among the predictions that solve it."""
    versions = {task.task_id: task.fingerprint for task in tasks}
    right = [one for one in predictions.iter_predictions(task_ids=versions) if one.solved]
    for one in sorted(right, key=lambda one: (one.program.count("\n"), len(one.program), one.key)):
        if one.task_fingerprint != versions[one.task_id]:
            raise ArcnbError(f"{predictions.folder}: predictions of another version of {one.task_id}")
        yield one.task_id, _guide(one.program, one.view)


def _guide(program: str, view: View | None = None) -> Guide:
    return Guide(tuple(program.rstrip("\n").split("\n")), view)
