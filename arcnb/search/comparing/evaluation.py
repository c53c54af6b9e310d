"""Prediction sets side by side: means with intervals, paired tests, pass@k curves, who solved what."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from arcnb.arc.predictions.prediction_set import PredictionSet, slices
from arcnb.arc.predictions.stop_rules import early_stops as early_stops  # what `stopped` is below
from arcnb.arc.scores.attempts import RULES
from arcnb.arc.scores.intervals import interval, percent, range_text
from arcnb.arc.scores.pass_rates import paired_difference, pass_at_k_curve
from arcnb.arc.scores.submission import Submission, create_submission
from arcnb.arc.scores.tables import LOOSE_COLUMN, TABLE_COLUMNS, aggregate, error_types, mean_row
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Pair
from arcnb.arc.tasks.task_set import TaskSet, load_tasks
from arcnb.errors import ArcnbError, nearest
from arcnb.search.comparing.changes import Change, changes
from arcnb.search.sampling.conditions import tasks_asked
from arcnb.search.turns.budget import with_stage
from arcnb.values import listed

if TYPE_CHECKING:
    import pandas as pd

# What tables and curves need. Programs and outputs are left on disk: they are most of a set.
TABLE_READ = [
    "task_id", "round", "index", "turn", "adapter", "status", "error_type", "fingerprint", "finish_reason",
    "n_prompt_tokens", "n_tokens",
    "train_pixel_score", "train_correct_grids", "train_is_correct",
    "test_pixel_score", "test_correct_grids", "test_is_correct",
]  # fmt: skip
# Means over a task's predictions that are too high where sampling stopped at those that were right.
STOPPED_TOO_HIGH = tuple(
    f"{part}_{score}" for part in ("train", "test") for score in ("pixel_score", "correct_grids", "pass_rate")
)
SCORE_READ = [*TABLE_READ, "program", "outputs"]
RESAMPLES = 2000


def open_sets(folders: str, names: str = "") -> dict[str, PredictionSet]:
    """{name: prediction set} of folders, and names, separated by commas.

    A folder that is no set but has some in it (of adapters that were compared, say) stands for all of them.
    Names default to the folders' names: for RUN/predictions the name of the run folder. ArcnbError for a
    folder that does not exist, or names that do not fit.
    """
    paths = [path for folder in listed(folders) for path in _sets_in(Path(folder))]
    given = listed(names)
    if not paths:
        raise ArcnbError("no prediction set is named: predictions takes folders, separated by commas")
    if given and len(given) != len(paths):
        raise ArcnbError(f"{len(paths)} prediction sets but {len(given)} names")
    sets: dict[str, PredictionSet] = {}
    for path, name in zip(paths, given or [_name_of(path) for path in paths], strict=True):
        if not path.is_dir():
            comma = "; a path with a comma stands in double quotes" if "," in folders else ""
            raise ArcnbError(f"prediction set {path} does not exist{comma}")
        if name in sets:
            raise ArcnbError(f"two prediction sets are called {name!r}; give names")
        sets[name] = PredictionSet(path)
    return sets


def _sets_in(folder: Path) -> list[Path]:
    """The folder itself, or the sets in its subfolders where it is none."""

    def is_set(path: Path) -> bool:
        return any(path.glob("round*.parquet"))

    inner = sorted(path for path in folder.glob("*/") if is_set(path))
    return inner if inner and not is_set(folder) else [folder]


def _name_of(path: Path) -> str:
    """The run for RUN/predictions, run and adapter for RUN/predictions/ADAPTER, else the folder's name."""
    path = path.resolve()
    if path.name == "predictions":
        return path.parent.name
    return f"{path.parent.parent.name}/{path.name}" if path.parent.name == "predictions" else path.name


def table_frame(predictions: PredictionSet, task_ids: Sequence[str] | None = None) -> pd.DataFrame:
    """What tables and curves need of a set, or of some of its tasks, with `stage` (see `with_stage`)."""
    return with_stage(predictions.read(columns=TABLE_READ, task_ids=task_ids), predictions)


def read_sets(sets: Mapping[str, PredictionSet]) -> dict[str, pd.DataFrame]:
    """{name: its table_frame}; ArcnbError for a set without predictions."""
    frames = {name: table_frame(one) for name, one in sets.items()}
    for name, frame in frames.items():
        if frame.empty:
            raise ArcnbError(f"prediction set {sets[name].folder} holds no predictions")
    return frames


def tasks_to_count(
    sets: Mapping[str, PredictionSet], tasks: TaskSet, only_predicted: bool = True
) -> tuple[TaskSet, str]:
    """(the tasks that tables are over: those that some set has predictions of or was to have, or all; a
    sentence that says how many of the task set were predicted).

    A set's conditions name the tasks that it was to have, also those whose prompts did not fit; notebook 03
    counts these as unsolved, too. ArcnbError for predictions of another version of a task, see
    `check_versions`.
    """
    answered = check_versions(sets.values(), tasks)
    said = f"{len(answered & set(tasks.ids))} of {len(tasks)} tasks of the set were predicted"
    asked = answered.union(*(tasks_asked(one) for one in sets.values()))
    return tasks.subset([id_ for id_ in tasks.ids if id_ in asked]) if only_predicted else tasks, said


def predicted_shares(frames: Mapping[str, pd.DataFrame], tasks: TaskSet) -> pd.Series:
    """name -> "16 of 400": the tasks of the task set that each set has predictions of."""
    import pandas as pd

    found = {name: set(tasks.ids) & set(frame["task_id"]) for name, frame in frames.items()}
    return pd.Series({name: f"{len(ids)} of {len(tasks)}" for name, ids in found.items()})


def check_versions(sets: Iterable[PredictionSet], tasks: TaskSet) -> set[str]:
    """The ids of all tasks that the sets have predictions of.

    ArcnbError for predictions of another version of a task; one whose test outputs were hidden is the
    same.
    """
    hidden = {
        task.task_id: replace(task, test=tuple(Pair(pair.input) for pair in task.test)) for task in tasks
    }
    versions = {task.task_id: (task.fingerprint, hidden[task.task_id].fingerprint) for task in tasks}
    answered = set()
    for one in sets:
        frame = one.read(columns=["task_id", "task_fingerprint"]).drop_duplicates()
        for task_id, fingerprint in frame.itertuples(index=False):
            answered.add(task_id)
            if fingerprint not in versions.get(task_id, (fingerprint,)):
                raise ArcnbError(
                    f"{one.folder} answers another version of task {task_id}: the fingerprints differ"
                )
    return answered


def set_to_submit(sets: Mapping[str, PredictionSet], name: str, rule: str) -> PredictionSet:
    """The set of that name, "" for the first. ArcnbError where there is none, or no such rule."""
    if rule not in RULES:
        raise ArcnbError(f"submission_rule {rule!r} does not exist; there are {', '.join(RULES)}")
    if name and name not in sets:
        raise ArcnbError(f"submission_set {name!r} is none of the sets{nearest(name, sets)}")
    return sets[name] if name else next(iter(sets.values()))


def comparison_table(
    frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str], seed: int = 0, stopped: Container[str] = ()
) -> pd.DataFrame:
    """One row a set, the columns of the aggregate table; "38% (18 to 61%)", 95% by bootstrap over tasks.

    stopped: names of sets whose tasks ended early, as `early_stops` finds them; "-" stands for their scores
    and pass rates.
    """
    import pandas as pd

    rows = {}
    for name, frame in frames.items():
        table = aggregate(frame, task_ids)
        rows[name] = {
            column: "-"
            if name in stopped and column in STOPPED_TOO_HIGH
            else _interval(column, table[column].to_numpy(float), seed)
            for column in (*TABLE_COLUMNS, LOOSE_COLUMN)
        }
    return pd.DataFrame(rows).T


def _interval(column: str, values: np.ndarray, seed: int) -> str:
    values = values[~np.isnan(values)]
    if not len(values):
        return "unknown"
    number = column == "n_preds"
    mean = f"{values.mean():.3g}" if number else percent(values.mean())
    if np.all(values == values[0]):
        return mean
    draws = rng(seed, "table interval").integers(len(values), size=(RESAMPLES, len(values)))
    low, high = interval(values[draws].mean(axis=1))
    return f"{mean} ({f'{low:.3g} to {high:.3g}' if number else range_text(low, high)})"


def means_table(
    frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str], stopped: Container[str] = ()
) -> pd.DataFrame:
    """One column a set: the means of the aggregate table, and how many tasks they are over. stopped: as in
    `comparison_table`."""
    import pandas as pd

    columns = {name: mean_row(aggregate(frame, task_ids)) for name, frame in frames.items()}
    for name in columns:
        if name in stopped:
            columns[name] = columns[name].astype(object)
            columns[name][list(STOPPED_TOO_HIGH)] = "-"
    return pd.DataFrame(columns)


def headlines(frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str]) -> list[str]:
    """What came out of each set, in one plain sentence."""
    sentences = []
    for name, frame in frames.items():
        table, n = aggregate(frame, task_ids), len(frame)
        solved, known = (int(column.sum()) for column in (table["is_correct"], table["is_correct"].notna()))
        without, unknown = int((table["n_preds"] == 0).sum()), len(table) - known
        counted = f"; {without} without predictions count as unsolved" if without else ""
        counted += f"; test outputs of {unknown} more are unknown" if unknown else ""
        distinct = frame.groupby("task_id", observed=True)["fingerprint"].nunique().sum() / max(1, n)
        held, ran = ((frame["status"] != "no_code").mean(), (frame["status"] == "ok").mean())
        sentences.append(
            f"{name}: {solved or 'none'} of {known} tasks solved (train and test by one program{counted}); "
            f"of {n:,} completions {percent(held)} hold a program, {percent(ran)} ran with valid outputs, "
            f"{percent(distinct)} gave different outputs"
        )
    return sentences


def changed_by_training(
    frames: Mapping[str, pd.DataFrame], tasks: TaskSet, trained: str, seed: int = 0
) -> list[Change]:
    """What made the second of two sets another than the first (`arcnb.search.comparing.changes`). trained: a
    task set.

    ArcnbError for another number of sets.
    """
    if len(frames) != 2:
        raise ArcnbError(f"trained compares two sets, before and after, but there are {len(frames)}")
    before, after = frames.values()
    return changes(before, after, list(tasks), load_tasks(trained).ids, seed)


def failures(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """How predictions ended and their errors, most frequent first: a column a set, shares of its
    predictions."""
    import pandas as pd

    columns = {}
    for name, frame in frames.items():
        ends = frame["status"].replace("ok", "ran, valid outputs").value_counts()
        kinds = error_types(frame, top=5).rename(lambda kind: f"error: {kind}")
        cut = pd.Series({"completion cut off": int((frame["finish_reason"] == "length").sum())})
        shares = pd.concat([ends, kinds, cut]) / max(1, len(frame))
        columns[f"{name} ({len(frame):,})"] = shares[shares > 0]
    table = pd.DataFrame(columns)
    order = table.fillna(0).max(axis=1).sort_values(ascending=False, kind="stable").index
    return table.loc[order].map(lambda share: "" if share != share else percent(share))


def pass_rates(
    frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str], seed: int = 0, stopped: Container[str] = ()
) -> pd.DataFrame:
    """pass@1 and pass@k of the most predictions k, with intervals; a row a set that `curves` draws."""
    import pandas as pd

    rows = {}
    for name, frame in frames.items():
        for curve in curves({name: frame}, task_ids, seed, stopped).values():
            some = [curve.iloc[0], curve.iloc[-1]] if len(curve) else []
            rows[name] = {
                f"pass@{row.k:g}": f"{percent(row['mean'])} ({range_text(row.low, row.high)})" for row in some
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def paired_table(frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str], seed: int = 0) -> list[str]:
    """Each set against the one before it, in one sentence; empty for a single set."""
    sentences = []
    for (name_a, frame_a), (name_b, frame_b) in pairwise(frames.items()):
        difference = paired_difference(frame_a, frame_b, "is_correct", seed, task_ids)
        sentences.append(f"{name_a} -> {name_b}: {difference}")
    return sentences


def curves(
    frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str], seed: int = 0, stopped: Container[str] = ()
) -> dict[str, pd.DataFrame]:
    """{name: pass@k curve} over the same tasks, of first turns by one model alone, which the name then says.

    pass@k draws k of a task's predictions as if they were alike. A refinement was made because of what came
    before it, and what learns from its predictions is another model after each round, so such sets are
    compared at equal budgets instead (`arcnb.search.comparing.fair_comparison`, notebook 07). A first turn
    that stands in for a refinement is left out: only tasks with nothing to refine have such turns. A set
    without first turns of its own has no curve, nor has a set in `stopped` (see `early_stops`).
    """
    drawn = {}
    for name, frame in frames.items():
        if name in stopped:
            continue
        first = _first_turns(frame)
        unlearned = first[_by_first_adapter(first)]
        if len(unlearned):
            name += "" if len(first) == len(frame) else ", first turns"
            name += "" if len(unlearned) == len(first) else ", before learning"
            drawn[name] = pass_at_k_curve(unlearned, seed=seed, task_ids=task_ids)
    return drawn


def _first_turns(frame: pd.DataFrame) -> pd.DataFrame:
    """The first turns of a set that are no stand-ins, as far as the frame tells.

    Without `stage` it tells of a set that refines another's first turns: its own begin after these.
    """
    first = frame[(frame["turn"] == 0) & (frame["stage"] == 0 if "stage" in frame else True)]
    return first if (first["round"] == 0).any() else first.iloc[:0]


def _by_first_adapter(frame: pd.DataFrame) -> pd.Series:
    """Of every row, whether its task's earliest prediction has the same adapter (or none, too)."""
    adapters = frame.assign(adapter=frame["adapter"].astype(object).fillna(""))
    earliest = (
        adapters.sort_values(["round", "index"]).drop_duplicates("task_id").set_index("task_id")["adapter"]
    )
    return adapters["adapter"] == adapters["task_id"].astype(object).map(earliest)


def solve_rates(frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str]) -> pd.DataFrame:
    """Index task_id, one column a set: the share (0..1) of a task's predictions that solve train and test.

    NaN where the test outputs are unknown, and for a task without predictions.
    """
    import pandas as pd

    rates = {}
    for name, frame in frames.items():
        solving = frame["train_is_correct"].astype(float) * frame["test_is_correct"].astype(float)
        mean = solving.fillna(0).groupby(frame["task_id"].astype(object)).mean()
        known = aggregate(frame, task_ids)["is_correct"].notna()
        rates[name] = mean.reindex(known.index).where(known)
    return pd.DataFrame(rates)


def solved_by(frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str]) -> pd.DataFrame:
    """Index task_id, one column a set: whether one of its programs solves train and test."""
    return solve_rates(frames, task_ids) > 0


def set_submission(predictions: PredictionSet, tasks: TaskSet, rule: str = "train-score") -> Submission:
    """`create_submission` from a set of any size: a slice of the tasks is in memory at a time."""
    entries, padded = {}, {}
    for some in slices(tasks):
        part = create_submission(predictions.read(columns=SCORE_READ, task_ids=some.ids), some, rule)
        entries |= part
        padded |= part.padded
    return Submission(entries, padded)
