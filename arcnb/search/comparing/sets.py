"""The prediction sets that are compared: found by their folders, read, held against a task set, handed in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction import KEY_COLUMNS, SCORE_COLUMNS
from arcnb.arc.predictions.prediction_set import PredictionSet, check_set, slices
from arcnb.arc.scores.attempts import rule_of
from arcnb.arc.scores.similarity import score
from arcnb.arc.scores.submission import Submission, create_submission
from arcnb.arc.scores.tables import Counted, ids_of
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.errors import ArcnbError, nearest, number_of
from arcnb.machine.reading import named_errors
from arcnb.plans import refusals
from arcnb.search.sampling.conditions import tasks_asked
from arcnb.search.turns.budget import with_stage
from arcnb.values import listed

if TYPE_CHECKING:
    import pandas as pd

# What tables and curves need. Programs and outputs are left on disk: they are most of a set.
TABLE_READ = [
    *KEY_COLUMNS, "task_fingerprint", "adapter", "status", "error_type", "fingerprint", "finish_reason",
    "n_prompt_tokens", "n_tokens",
    "train_pixel_score", "train_correct_grids", "train_is_correct",
    "test_pixel_score", "test_correct_grids", "test_is_correct",
]  # fmt: skip
SCORE_READ = [*TABLE_READ, "program", "outputs"]
NAMING = (
    "`predictions` takes folders, on the command line also names of runs of notebook 03, separated by commas"
)


def open_sets(folders: str, names: str = "", trained: str = "") -> dict[str, PredictionSet]:
    """{name: prediction set} of folders, and names, separated by commas.

    A folder that is no set but has some in it (of adapters that were compared, say) stands for all of them.
    Names default to the folders' names: for RUN/predictions that of the run, with its time where two runs
    are called alike. ArcnbError for what is no folder, for names that do not fit, and for a folder of several
    with `names` or `trained` (see `changed_by_training`): both mean the order of sets, and it has none.
    """
    paths, given = folders_of(folders), listed(names)
    for folder in listed(folders) if names or trained else ():
        if len(several := _sets_in(Path(folder))) > 1:
            raise ArcnbError(
                f"{'names' if names else 'trained'} goes by the order of prediction sets, and {folder} holds "
                f"{len(several)}; name them in their order instead: {', '.join(map(str, several))}"
            )
    if given and len(given) != len(paths):
        raise ArcnbError(f"{len(paths)} prediction sets but {len(given)} names")
    sets: dict[str, PredictionSet] = {}
    for path, name in zip(paths, given or _names_of(paths), strict=True):
        if name in sets:
            raise ArcnbError(f"two prediction sets are called {name!r}; give names")
        sets[name] = PredictionSet(path)
    pooled(sets)
    return sets


def folders_of(folders: str) -> list[Path]:
    """The sets' own folders. ArcnbError for none, and for what is no folder."""
    paths = [path for folder in listed(folders) for path in _sets_in(Path(folder))]
    if not paths:
        raise ArcnbError(f"no prediction set is named: {NAMING}")
    for sentence in (said for path in paths for said in refusals(check_set, path)):
        if sentence.endswith("does not exist"):
            comma = "; a path with a comma stands in double quotes" if "," in folders else ""
            sentence += f"{comma}; {NAMING}"
        raise ArcnbError(sentence)
    return paths


def pooled(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """{name: sets it is of}: the sets, and every two of them as "a + b". ArcnbError where two are called
    alike."""
    alone = {name: (name,) for name in names}
    ways = dict(alone)
    for two in combinations(alone, 2):
        if (name := " + ".join(two)) in ways:
            raise ArcnbError(f"two prediction sets pooled are called {name!r}, and so is another; give names")
        ways[name] = two
    return ways


def _sets_in(folder: Path) -> list[Path]:
    """The folder itself, or the sets in its subfolders where it is none."""

    def is_set(path: Path) -> bool:
        return any(path.glob("round*.parquet"))

    with named_errors(folder):
        inner = sorted(path for path in folder.glob("*/") if is_set(path))
    return inner if inner and not is_set(folder) else [folder]


def _names_of(paths: Sequence[Path]) -> list[str]:
    """The names of sets, without the time that run folders begin with where they differ without it, too."""
    whole = [_name_of(path) for path in paths]
    short = [re.sub(r"^\d{8}-\d{6}-(?=.)", "", name) for name in whole]
    return [one if short.count(one) == 1 else name for one, name in zip(short, whole, strict=True)]


def _name_of(path: Path) -> str:
    """The run for RUN/predictions, run and adapter for RUN/predictions/ADAPTER, else the folder's name."""
    path = path.resolve()
    if path.name == "predictions":
        return path.parent.name
    return f"{path.parent.parent.name}/{path.name}" if path.parent.name == "predictions" else path.name


def table_frame(predictions: PredictionSet, tasks: Counted | None = None) -> pd.DataFrame:
    """What tables and curves need of a set, or of some of its tasks (ids, or tasks, see `_scored`), with
    `stage` (see `with_stage`)."""
    ids = None if tasks is None else ids_of(tasks)
    frame = with_stage(predictions.read(columns=TABLE_READ, task_ids=ids), predictions)
    return _scored(frame, predictions, [one for one in tasks or () if isinstance(one, Task)])


def read_sets(sets: Mapping[str, PredictionSet], tasks: Iterable[Task] = ()) -> dict[str, pd.DataFrame]:
    """{name: its table_frame, with all of its tasks}; ArcnbError for a set without predictions. tasks: see
    `_scored`."""
    frames = {name: _scored(table_frame(one), one, tasks) for name, one in sets.items()}
    for name, frame in frames.items():
        if frame.empty:
            raise ArcnbError(f"prediction set {sets[name].folder} holds no predictions")
    return frames


def _scored(frame: pd.DataFrame, predictions: PredictionSet, tasks: Iterable[Task]) -> pd.DataFrame:
    """The frame, with the test scores of what was sampled while the test outputs of these tasks were hidden.

    Such predictions are of the same version of a task (see `check_versions`), and would count as wrong.
    """
    known = {task.task_id: task for task in tasks if task.has_test_outputs}
    late = frame["task_id"].isin(known) & frame["test_is_correct"].isna()
    names, found = SCORE_COLUMNS[len(SCORE_COLUMNS) // 2 :], {}
    for some in slices(frame.loc[late, "task_id"].unique()):
        rows = predictions.read([*KEY_COLUMNS, "outputs"], some)
        for *key, outputs in rows.itertuples(index=False, name=None):
            scores = score(outputs, known[key[0]])
            found[tuple(key)] = [scores[name] for name in names]
    if found:
        keys = frame.loc[late, list(KEY_COLUMNS)].itertuples(index=False, name=None)
        frame.loc[late, list(names)] = [found[key] for key in keys]
    return frame


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
    said = f"{len(answered & set(tasks.ids))} of {number_of(len(tasks), 'task')} of the set were predicted"
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
    versions = {task.task_id: task.fingerprints for task in tasks}
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
    rule_of(rule)
    if name and name not in sets:
        raise ArcnbError(f"submission_set {name!r} is none of the sets{nearest(name, sets)}")
    return sets[name] if name else next(iter(sets.values()))


def set_submission(predictions: PredictionSet, tasks: TaskSet, rule: str = "train-score") -> Submission:
    """`create_submission` from a set of any size: a slice of the tasks is in memory at a time."""
    entries, padded = {}, {}
    for some in slices(tasks):
        part = create_submission(predictions.read(columns=SCORE_READ, task_ids=some.ids), some, rule)
        entries |= part
        padded |= part.padded
    return Submission(entries, padded)
