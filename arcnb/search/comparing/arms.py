"""Arms of a comparison: ways to spend the same budget, each with several seeds, out of prediction sets.

    arms = read_arms("independent = A0 | A1; refined = A0[:64] + R0 | A1[:64] + R1", task_ids)

Arms are separated by ";", seeds by "|", sets that make up one seed by "+"; FOLDER[:64] takes the first 64
first turns of each task. The rows of a seed stand in the order in which its budget was spent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.tables import prediction_ids
from arcnb.arc.scores.tables import Counted
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.errors import ArcnbError
from arcnb.machine.reading import named_errors
from arcnb.search.comparing.sets import check_versions, table_frame
from arcnb.values import bare, split_unquoted

if TYPE_CHECKING:
    import pandas as pd

Arms = dict[str, list["pd.DataFrame"]]  # name -> one frame a seed

_SOURCE = re.compile(r"(?P<folder>.+?)\s*(?:\[:(?P<first>[1-9]\d*)\])?")


def parse_arms(text: str) -> dict[str, list[list[tuple[Path, int]]]]:
    """{arm: [seed: [(folder, first turns to take, 0 for the whole set)]]}; ArcnbError otherwise."""
    arms: dict[str, list[list[tuple[Path, int]]]] = {}
    for entry in filter(None, map(str.strip, split_unquoted(text, ";"))):
        name, *seeds = split_unquoted(entry, "=", 1)
        name = bare(name)
        if not name or not seeds or not seeds[0].strip():
            raise ArcnbError(f"compare: {entry!r} is not of the form NAME = SET + SET | SET + SET")
        if name in arms:
            raise ArcnbError(f"compare: two arms are called {name!r}")
        arms[name] = [
            [_source(one, name) for one in split_unquoted(seed, "+")]
            for seed in split_unquoted(seeds[0], "|")
        ]
    counts = {name: len(seeds) for name, seeds in arms.items()}
    if len(arms) < 2:
        raise ArcnbError(f"compare: a comparison needs at least two arms, not {len(arms)}")
    if len(set(counts.values())) > 1:
        named = ", ".join(f"{name} {n}" for name, n in counts.items())
        raise ArcnbError(f"compare: each needs the same number of seeds, there are {named}")
    return arms


def _source(text: str, arm: str) -> tuple[Path, int]:
    found = _SOURCE.fullmatch(text.strip())
    if not found:
        raise ArcnbError(f"compare: a seed of {arm!r} names no folder")
    path = Path(bare(found["folder"]))
    with named_errors(path):
        is_folder = path.is_dir()
    if not is_folder:
        quoted = " (a path with any of , ; = | + stands in double quotes)"
        raise ArcnbError(f"compare: prediction set {path} of {arm!r} does not exist{quoted}")
    return path, int(found["first"] or 0)


def arm_folders(text: str) -> str:
    """The folders that the arms are made of, each once, separated by commas; "" without arms."""
    return ",".join(f'"{path}"' for path in _folders(text)) if text else ""


def arm_sets(text: str) -> dict[str, PredictionSet]:
    """{folder: prediction set} of the folders that the arms are made of."""
    return {str(path): PredictionSet(path) for path in _folders(text)}


def _folders(text: str) -> list[Path]:
    folders = [path for seeds in parse_arms(text).values() for seed in seeds for path, _ in seed]
    return list(dict.fromkeys(folders))


def check_arms(text: str, tasks: TaskSet) -> None:
    """ArcnbError for arms that cannot be read, or that answer another version of a task."""
    check_versions(map(PredictionSet, _folders(text)), tasks)


def read_arms(text: str, tasks: Counted) -> Arms:
    """The arms' rows on these tasks (as in `table_frame`), columns TABLE_READ, `stage` and `place`, a task's
    rows from 0."""
    return {
        name: [_read(seed, tasks, f"{name}, seed {number}") for number, seed in enumerate(seeds)]
        for name, seeds in parse_arms(text).items()
    }


def _read(sources: Sequence[tuple[Path, int]], tasks: Counted, name: str) -> pd.DataFrame:
    import pandas as pd

    parts = []
    for path, first in sources:
        one = PredictionSet(path)
        part = table_frame(one, tasks)
        part = part.sort_values(["task_id", "stage", "round", "index"], kind="stable")
        if first:
            part = part[part["stage"] == 0]  # a first turn that stands in for a refinement is none
            part = part[part.groupby("task_id").cumcount() < first]
        if part.empty:
            raise ArcnbError(f"compare: prediction set {path} of {name} holds no predictions of these tasks")
        parts.append(part)
    frame = pd.concat(parts, ignore_index=True)
    ids = prediction_ids(frame)
    if (twice := ids.duplicated()).any():
        raise ArcnbError(
            f"compare: {name} holds prediction {ids[twice].iloc[0]} twice; "
            "cut a set that is shared, as in FOLDER[:64]"
        )
    return frame.assign(place=frame.groupby("task_id").cumcount())
