"""ARC JSON, the form in which tasks are published: read every variant of it, write two.

X_challenges.json        {task_id: {"train": [{"input", "output"}], "test": [{"input"}]}}
X_solutions.json         {task_id: [output of test 0, output of test 1, ...]}, beside the challenges
any other name           the same with the test outputs inside, or one task {"train", "test"}, or rows as in
                         Parquet: {"task_id", "train", "test"}, as a list or one a line
a folder                 of one-task files, or with one challenges file in it
.json.gz                 the same, compressed

Beside "train" and "test" a task may have "program" (the text of a `transform(grid)` that solves it), "source"
(text) and "meta" (an object); other fields are left alone. Of these three nothing is written: Parquet keeps
them.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from arcnb.arc.grids import as_grid
from arcnb.arc.tasks.task import Pair, Task, unique_ids
from arcnb.errors import ArcnbError
from arcnb.machine.files import is_temporary, new_file
from arcnb.machine.reading import read_object, read_rows, shown

_SUFFIX = re.compile(r"\.json(\.gz)?$")


def is_arc_json(path: Path) -> bool:
    """Whether the name ends in .json or .json.gz and the file is a finished one."""
    return bool(_SUFFIX.search(path.name)) and not is_temporary(path)


def read_arc_json(path: Path) -> list[Task]:
    """The tasks of a file, with the outputs of its solutions file where there is one.

    Raises `ArcnbError` naming file, task and pair: missing, truncated or malformed files, bad grids, a task
    id that occurs twice, solutions that lack a task or a grid.
    """
    rows = list(read_rows(path))
    if len(rows) != 1 or isinstance(rows[0][1].get("task_id"), str):
        tasks = [Task.from_row(row, place) for place, row in rows]
    else:
        ((place, content),) = rows
        if isinstance(content.get("train"), list):
            return [Task.from_dict(_SUFFIX.sub("", path.name), content, where=place)]
        tasks = [Task.from_dict(task_id, mapping, where=place) for task_id, mapping in content.items()]
    solutions = solutions_path(path)
    if solutions is None or not solutions.exists():
        return tasks
    outputs = read_object(solutions)
    return [_with_outputs(task, outputs, solutions) for task in tasks]


def read_arc_folder(folder: Path) -> list[Task]:
    """The tasks of a folder: one file a task, or one challenges file with its solutions."""
    files = arc_files(folder)
    if len(files) == 1:
        return read_arc_json(files[0])
    tasks = []
    for file in files:
        one = read_arc_json(file)
        if [task.task_id for task in one] != [_SUFFIX.sub("", file.name)]:
            raise ArcnbError(f"{folder}: {file.name} is not a single task; name one file to load instead")
        tasks += one
    return tasks


def arc_files(folder: Path) -> list[Path]:
    """The files that `read_arc_folder` reads, by name; solutions are left to their challenges."""
    files = sorted(filter(is_arc_json, folder.iterdir()))
    challenges = [file for file in files if solutions_path(file) is not None]
    if len(challenges) > 1:
        names = ", ".join(file.name for file in challenges)
        raise ArcnbError(f"{folder}: holds several challenges files ({names}); name the one to load")
    return challenges or files


def solutions_path(challenges: Path) -> Path | None:
    """Where the solutions of a challenges file are, or else would be; None for a file of another name.

    Only one of the two may be compressed.
    """
    expected = _new_solutions_path(challenges)
    if expected is None or expected.exists():
        return expected
    plain = expected.name.removesuffix(".gz")
    other = expected.with_name(plain if plain != expected.name else f"{plain}.gz")
    return other if other.exists() else expected


def _new_solutions_path(challenges: Path) -> Path | None:
    """Where solutions are written: compressed as their challenges are."""
    name = re.sub(r"challenges(\.json(?:\.gz)?)$", r"solutions\1", challenges.name)
    return None if name == challenges.name else challenges.with_name(name)


def write_arc_json(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks as compact ARC JSON, gzip if the name says so.

    A name that ends in `challenges.json` (or .gz) gets no test outputs, and a solutions file beside it if
    every task has them. Under any other name the test outputs are inside.
    """
    tasks = list(unique_ids(tasks, str(path)))
    solutions = _new_solutions_path(path)
    if solutions is None:
        _dump({task.task_id: task.to_dict() for task in tasks}, path)
        return
    hidden = (Task(t.task_id, t.train, tuple(Pair(pair.input) for pair in t.test)) for t in tasks)
    _dump({task.task_id: task.to_dict() for task in hidden}, path)
    if all(task.has_test_outputs for task in tasks):
        _dump({task.task_id: [pair.output.tolist() for pair in task.test] for task in tasks}, solutions)


def _with_outputs(task: Task, outputs: dict, solutions: Path) -> Task:
    name = f"{solutions}: task {shown(task.task_id)}"
    grids = outputs.get(task.task_id)
    if not isinstance(grids, list):
        raise ArcnbError(f"{name} {'is missing' if grids is None else 'holds no list of grids'}")
    if len(grids) != len(task.test):
        raise ArcnbError(f"{name} has {len(grids)} test outputs for {len(task.test)} test inputs")
    known = [as_grid(grid, f"{name}, test pair {i} output") for i, grid in enumerate(grids)]
    pairs = tuple(Pair(pair.input, output) for pair, output in zip(task.test, known, strict=True))
    return replace(task, test=pairs)


def _dump(content: dict, path: Path) -> None:
    data = json.dumps(content, separators=(",", ":")).encode()
    with new_file(path, same_is_fine=True) as file:
        file.write(gzip.compress(data, mtime=0) if path.name.endswith(".gz") else data)
