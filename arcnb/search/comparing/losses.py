"""Where points are lost: right outputs that nobody drew, and right outputs that were not among the attempts.

A row a test output whose right grid is known, for each prediction set and for every two of them pooled; all
tables are counts over these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.predictions.prediction_set import PredictionSet, slices
from arcnb.arc.scores.attempts import N_ATTEMPTS, Candidate, Rule, certainty, rule_of
from arcnb.arc.scores.intervals import percent, points, share_text
from arcnb.arc.scores.submission import SUBMISSION_COLUMNS, task_candidates
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.search.comparing.sets import pooled

if TYPE_CHECKING:
    import pandas as pd

HALVES = 20  # random halves of a task's valid predictions, as other seeds at half the budget would have them
SIDES, COLORS, LENGTHS = (5, 10, 20), (3, 5, 7), (100, 200, 400)  # upper ends of groups, the last one open
CERTAINTIES = (0.0, 0.499, 0.999)
RIGHT, LOST = "right", "a right output was there, but not selected"
CAUSES = (
    RIGHT,
    LOST,
    "the program solves all train pairs, not the test pair",
    "the best program gets some train pairs right",
    "no program gets a train pair right",
    "no program gave valid outputs",
)


@dataclass(frozen=True)
class Losses:
    """rows: columns set, task_id, test, covered (somebody drew it), selected (one of two attempts is right),
    draws (whether it is selected from each of the HALVES), certainty (of the rule's first choice, 0..1),
    cause (of CAUSES), side and colors (of the task), length (characters of the shortest program that is best
    on train; 0 for none).

    n_unknown: test outputs without a known right grid, which are left out. n_tasks: tasks that are counted.
    """

    rows: pd.DataFrame
    names: tuple[str, ...]
    n_tasks: int
    n_unknown: int

    def __str__(self) -> str:
        """Of the last set, in one sentence."""
        own = self.rows[self.rows["set"] == self.names[-1]]
        covered, selected = int(own["covered"].sum()), int(own["selected"].sum())
        if not len(own):
            return f"All {self.n_unknown} test outputs are unknown: nothing is scored."
        lost = f"{covered - selected} of them lost in selection" if covered > selected else "all selected"
        lost = f", {lost}" if covered else ""
        are = "is" if self.n_unknown == 1 else "are"
        some = f"; {self.n_unknown} more {are} unknown and not scored" if self.n_unknown else ""
        drawn = share_text(covered, len(own), "test outputs")
        by = f" by {self.names[-1]}" if len(self.names) > 1 else ""
        return f"A right output was drawn{by} for {drawn}{lost}{some}."

    def table(self) -> pd.DataFrame:
        """A row a set, and one for every two pooled."""
        import pandas as pd

        found = []
        for name, own in self.rows.groupby("set", sort=False):
            spread = np.mean(own["draws"].tolist(), axis=0)
            covered, selected = own["covered"].mean(), own["selected"].mean()
            found.append(
                {
                    "set": name,
                    "test outputs": len(own),
                    "a right one drawn": share_text(int(own["covered"].sum()), len(own)),
                    "selected (official score)": share_text(int(own["selected"].sum()), len(own)),
                    "lost in selection": f"{points(covered - selected)} points".lstrip("+"),
                    "random halves of the samples": f"{percent(spread.min())} to {percent(spread.max())}",
                }
            )
        return pd.DataFrame(found).set_index("set") if found else pd.DataFrame()

    def calibration(self) -> pd.DataFrame:
        """How sure the first choice was, and how often one of the attempts was right; a column a set."""
        labels = ["0%", "under 50%", "50% and more", "100%"]
        table = self._shares(_group(self.rows["certainty"], (-1.0, *CERTAINTIES), labels), "certainty")
        return table.rename_axis(columns="right, by certainty")

    def groups(self) -> pd.DataFrame:
        """Selected test outputs by size, colors and length of the program, if any; a column a set."""
        import pandas as pd

        ways = {
            "longest side": ("side", SIDES),
            "colors": ("colors", COLORS),
            "program, characters": ("length", LENGTHS),
        }
        tables = [
            self._shares(_group(self.rows[column], (0, *ends), _labels(ends)), title)
            for title, (column, ends) in ways.items()
        ]
        return pd.concat(tables).rename_axis(columns="right, by task") if len(self.rows) else pd.DataFrame()

    def causes(self) -> pd.DataFrame:
        """What became of the test outputs, as counts; a column a set."""
        import pandas as pd

        table = pd.crosstab(self.rows["cause"], self.rows["set"]).reindex(columns=self._sets())
        table = table.reindex([cause for cause in CAUSES if cause in table.index])
        return table.rename_axis(index=None, columns="test outputs")

    def _sets(self) -> list[str]:
        return list(dict.fromkeys(self.rows["set"]))

    def _shares(self, groups: pd.Series, title: str) -> pd.DataFrame:
        right = self.rows.assign(group=groups).groupby(["group", "set"], observed=True)["selected"]
        counts = right.agg(["sum", "size"])
        texts = [f"{right} of {of} ({percent(right / of)})" for right, of in counts.itertuples(index=False)]
        table = counts.assign(text=texts)["text"].unstack(fill_value="")
        table = table.reindex(columns=self._sets(), fill_value="")
        return table.rename_axis(None, axis=1).rename(f"{title} {{}}".format).rename_axis(None)


def losses(
    sets: Mapping[str, PredictionSet], tasks: TaskSet, rule: str = "train-score", seed: int = 0
) -> Losses:
    """Where the sets, and every two of them pooled, lose points on these tasks. rule: of `attempts.RULES`."""
    import pandas as pd

    choose = rule_of(rule)
    ways = pooled(sets)
    found = [
        row
        for task, candidates in _by_task(sets, tasks)
        for way, names in ways.items()
        for row in _rows(way, task, [one for name in names for one in candidates[name]], choose, seed)
    ]
    columns = [
        "set",
        "task_id",
        "test",
        "covered",
        "selected",
        "draws",
        "certainty",
        "cause",
        "side",
        "colors",
        "length",
    ]
    outputs = [pair.output for task in tasks for pair in task.test]
    rows = pd.DataFrame(found, columns=columns)
    order = {way: number for number, way in enumerate(ways)}
    rows = rows.sort_values("set", key=lambda names: names.map(order), kind="stable")
    return Losses(rows, tuple(sets), len(tasks), sum(output is None for output in outputs))


def _by_task(
    sets: Mapping[str, PredictionSet], tasks: TaskSet
) -> Iterator[tuple[Task, dict[str, list[Candidate]]]]:
    for some in slices(tasks):
        frames = {}
        for name, one in sets.items():
            frame = one.read(columns=list(SUBMISSION_COLUMNS), task_ids=some.ids)
            frame = frame[frame["status"] == "ok"]
            frames[name] = dict(list(frame.groupby(frame["task_id"].astype(object), sort=False)))
        for task in some:
            yield task, {name: task_candidates(rows.get(task.task_id), task) for name, rows in frames.items()}


def _rows(way: str, task: Task, candidates: Sequence[Candidate], rule: Rule, seed: int) -> Iterator[tuple]:
    best = max((one.train_score for one in candidates), default=0.0)
    length = min((len(one.program) for one in candidates if one.train_score == best), default=0)
    side = max(max(grid.shape) for grid in task.grids)
    colors = len({int(v) for grid in task.grids for v in grid.flat})
    halves = rng(seed, "halves", way, task.task_id).random((HALVES, len(candidates))) < 0.5
    for test, pair in enumerate(task.test):
        if pair.output is None:
            continue
        right = [np.array_equal(one.test_outputs[test], pair.output) for one in candidates]
        selected = _selected(rule, candidates, test, pair.output)
        # Only where a right output was drawn can a half hold it.
        draws = [
            any(right) and _selected(rule, [candidates[i] for i in np.flatnonzero(half)], test, pair.output)
            for half in halves
        ]
        failed = CAUSES[5 if not candidates else 2 if best == 1 else 3 if best > 0 else 4]
        cause = RIGHT if selected else LOST if any(right) else failed
        sure = certainty(candidates, test, rule)
        yield (way, task.task_id, test, any(right), selected, draws, sure, cause, side, colors, length)


def _selected(rule: Rule, candidates: Sequence[Candidate], test: int, wanted: np.ndarray) -> bool:
    return any(np.array_equal(grid, wanted) for grid in rule(candidates, test)[:N_ATTEMPTS])


def _labels(ends: Sequence[int]) -> list[str]:
    starts = (1, *(end + 1 for end in ends))
    return [f"{low} to {high}" for low, high in zip(starts, ends, strict=False)] + [
        f"{ends[-1] + 1} and more"
    ]


def _group(values: pd.Series, ends: Sequence[float], labels: Sequence[str]) -> pd.Series:
    import pandas as pd

    return pd.cut(values, [*ends, np.inf], labels=labels)
