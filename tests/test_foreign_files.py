"""Valid files changed at random: every reader reads them, or says in one sentence why it does not."""

import builtins
import copy
import errno
import gzip
import io
import json
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import load_tasks, write_tasks
from arcnb.errors import ArcnbError
from arcnb.problems.prompt_text import problem_format
from arcnb.problems.sets.files import load_problems, write_problems
from arcnb.search.comparing.arms import parse_arms
from arcnb.search.comparing.searches import submission_score
from arcnb.search.comparing.sets import open_sets
from arcnb.synth.barc_tasks import barc_tasks

N_CHANGES = 60  # of each form of each kind of file
PAIR = {"input": [[1, 2]], "output": [[2, 1]]}
TASK = Task.from_dict("t", {"train": [PAIR, PAIR], "test": [PAIR]})
ROW = {
    "task_id": "t",
    **TASK.to_dict(),
    "source": "x",
    "program": "def transform(g): return g",
    "meta": {"a": 1},
}
OWN = {
    "problem_id": "add", "language": "python", "entry_point": "add", "description": "Add.", "difficulty": "1",
    "tests": [{"input": [1, 2], "expected": 3}], "solution": "def add(a, b): return a + b", "preamble": "",
}  # fmt: skip
SCRIPT = OWN | {"problem_id": "s", "entry_point": "", "tests": [{"input": "1", "expected": "2"}]}
HUMAN_EVAL = {
    "task_id": "HumanEval/0", "prompt": "def f(x):\n    '''Double.'''\n", "entry_point": "f",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert abs(candidate(2) - 4) < 1e-6\n",
}  # fmt: skip
MBPP = {
    "task_id": 3, "text": "Double.", "code": "def f(x):\n    return 2 * x", "test_setup_code": "a = 1",
    "test_list": ["assert f(a) == 2", "assert set(f(2)) == set([4])"],
}  # fmt: skip
BARC = {
    "examples": [[[[n, 1]], [[1, n]]] for n in range(4)], "source": "def main(g):\n    return g\n",
    "messages": [{"role": "assistant", "content": "```python\ndef transform(g):\n    return g\n```"}],
}  # fmt: skip
ATTEMPTS = {"t": [{"attempt_1": [[2, 1]], "attempt_2": [[0]]}]}


def deep(n: int) -> list:
    value = []
    for _ in range(n):
        value = [value]
    return value


HOSTILE = [
    None, True, -1, 3.5, 10**400, float("nan"), float("-inf"), "", " ", "x" * 5000, "\ud83d", "\0", "[",
    "[[1]]", "two\nlines",
    "../../etc/passwd", "assert f(1) == 2", "len", "1+" * 3000 + "1", "-" * 5000 + "1", "(" * 300,
    [], [None], [[]], [[1], [2, 3]], [[11]], [[1] * 40], {}, {"input": [[[1]]], "output": [[[2]]]},
    {"input": 1, "expected": 2}, {"role": 1}, [{}], ["a", 1], deep(30), deep(70), deep(150), {"a": {"b": []}},
]  # fmt: skip
INSERTED = [b"\n", b"\xff", b"\\ud800", b"[", b'"', b"{}", b"null", b"\n\n{}\n"]


def places(value: object, path: tuple = ()) -> list[tuple]:
    """The paths to all parts of a JSON value but itself."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, part in parts for one in [(*path, key), *places(part, (*path, key))]]


def changed(value: object, draw: random.Random) -> object:
    """A copy in which one to three parts are replaced, removed, doubled or renamed."""
    value = copy.deepcopy(value)
    for _ in range(draw.randint(1, 3)):
        if not (found := places(value)):
            break
        *above, last = draw.choice(found)
        inside = value
        for key in above:
            inside = inside[key]
        what = draw.randrange(6)
        if what == 0:
            del inside[last]
        elif what == 1 and isinstance(inside, list):
            inside.insert(last, copy.deepcopy(inside[last]))
        elif what == 1:
            inside[draw.choice(["task_id", "train", "problem_id", "cases", "\ud800", ""])] = inside.pop(last)
        elif what == 2:
            inside[last] = json.dumps(inside[last]) if draw.random() < 0.7 else str(inside[last])[:60]
        else:
            inside[last] = copy.deepcopy(draw.choice(HOSTILE))
    return value


def broken(data: bytes, draw: random.Random) -> bytes:
    """The same bytes but for one to four that are cut, replaced, doubled or put in."""
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) or 1)
        data = draw.choice([
            data[:at],
            data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :],
            data[:at] + data[at : at + 9] + data[at:],
            data[:at] + draw.choice(INSERTED) + data[at:],
        ])  # fmt: skip
    return data


def json_lines(rows: list) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


def parquet(rows: list) -> bytes:
    try:
        pq.write_table(pa.Table.from_pylist(rows), sink := pa.BufferOutputStream())
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, RecursionError):
        return b""  # what a table cannot hold is in no file
    return sink.getvalue().to_pybytes()


FORMS = {".json": lambda rows: json.dumps(rows).encode(), ".jsonl": json_lines, ".parquet": parquet}


def each_form(rows: list, read) -> dict:
    return {suffix: (rows, write, read) for suffix, write in FORMS.items()}


def read_tasks(path: Path) -> None:
    tasks = load_tasks(path)
    write_tasks(tasks, path.parent / "again.parquet")
    (path.parent / "again.parquet").unlink()
    assert all(len(task.fingerprint) == 64 and repr(task) for task in tasks)


def read_problems(path: Path) -> None:
    problems = load_problems(path)
    write_problems(problems, path.parent / "again.jsonl")
    (path.parent / "again.jsonl").unlink()
    assert all(len(one.fingerprint) == 64 and problem_format("plain", 2).prompt(one) for one in problems)
    assert isinstance(problems.described(), str)


def read_submission(path: Path) -> None:
    score = submission_score(path, [TASK])
    assert score.task_mean in (0, 1)


def read_predictions(path: Path) -> None:
    predictions = PredictionSet(path.parent)
    assert len(list(predictions.iter_predictions())) == len(predictions.read())


KINDS = {
    "tasks": each_form([ROW, ROW | {"task_id": "u"}], read_tasks),
    "challenges": {".json": ({"t": TASK.to_dict(), "u": TASK.to_dict()}, FORMS[".json"], read_tasks)},
    "problems": each_form([OWN, OWN | {"problem_id": "b"}], read_problems),
    "scripts": {".jsonl": ([SCRIPT], json_lines, read_problems)},
    "HumanEval": each_form([HUMAN_EVAL, HUMAN_EVAL | {"task_id": "HumanEval/1"}], read_problems),
    "MBPP": each_form([MBPP, MBPP | {"task_id": 4}], read_problems),
    "BARC": each_form(
        [BARC, BARC | {"examples": BARC["examples"][::-1]}], lambda path: list(barc_tasks(path))
    ),
    "submission": {".json": (ATTEMPTS, FORMS[".json"], read_submission)},
}


def try_all(name: str, forms: dict, folder: Path, n_changes: int = N_CHANGES) -> int:
    """Read each form of a file, whole and then changed; how many of the changed ones were read."""
    read = 0
    for suffix, (content, write, reader) in forms.items():
        whole, path = write(content), folder / f"x{suffix}"
        path.write_bytes(whole)
        assert was_read(reader, path)
        for number in range(n_changes):
            draw = random.Random(f"{name}{suffix}{number}")
            data = write(changed(content, draw)) if number % 2 else broken(whole, draw)
            path.write_bytes(gzip.compress(data) if number % 10 == 0 else data)
            read += was_read(reader, path)
    return read


def was_read(reader, path: Path) -> bool:
    """Whether the file is read; where it is refused, a sentence names it."""
    try:
        reader(path)
    except ArcnbError as error:
        if path.name in str(error) and "\n" not in str(error):
            return False
        raise AssertionError(f"not one sentence that names the file: {error}") from error
    except BaseException as error:
        raise AssertionError(f"{path.name}: {path.read_bytes()[:1500]!r}") from error
    return True


@pytest.mark.parametrize("name", KINDS)
def test_a_changed_file_is_read_or_refused_in_one_sentence(name, tmp_path):
    assert try_all(name, KINDS[name], tmp_path) < N_CHANGES * len(KINDS[name])


def test_a_changed_part_of_a_prediction_set_is_read_or_refused_in_one_sentence(tmp_path):
    rows = [
        Prediction(
            "t", "f", 0, i, program="p", completion="apc", outputs=[TASK.train[0].input, None], status="ok"
        )
        for i in range(3)
    ]
    part = PredictionSet(tmp_path / "whole").write_part(rows, round=0)
    path = tmp_path / "changed" / part.name
    path.parent.mkdir()
    content = pq.read_table(part).to_pylist()
    for number in range(2 * N_CHANGES):
        draw = random.Random(f"predictions{number}")
        path.write_bytes(parquet(changed(content, draw)) if number % 2 else broken(part.read_bytes(), draw))
        was_read(read_predictions, path)


@pytest.fixture
def forbidden(monkeypatch):
    """forbidden(path): what is there or below it cannot be read (root may read all, whatever its mode)."""

    def forbid(path: Path, below_only: bool = False) -> None:
        def refusing(function):
            def refused(asked, *given, **options):
                one = Path(asked) if isinstance(asked, str | os.PathLike) else Path()
                if path in one.parents or (one == path and not below_only):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(asked))
                return function(asked, *given, **options)

            return refused

        for module, name in (
            (builtins, "open"),
            (io, "open"),
            (os, "listdir"),
            (os, "scandir"),
            (pa, "OSFile"),
        ):
            monkeypatch.setattr(module, name, refusing(getattr(module, name)))
        monkeypatch.setattr(Path, "stat", refusing(Path.stat)) if below_only else None

    return forbid


UNREADABLE = {
    "tasks.json": load_tasks,
    "tasks.parquet": load_tasks,
    "folder": load_tasks,
    "set": lambda path: PredictionSet(path).read(),
    "set/round00000-shard00-of-01-part00000.parquet": lambda path: PredictionSet(path.parent).read(),
}


@pytest.fixture
def there(tmp_path):
    write_tasks([TASK], tmp_path / "folder" / "t.json")
    for name in ("tasks.json", "tasks.parquet"):
        write_tasks([TASK], tmp_path / name)
    PredictionSet(tmp_path / "set").write_part([Prediction("t", "f", 0, 0, status="ok")], 0)
    return tmp_path


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_may_not_be_read_is_said_so(name, there, forbidden):
    UNREADABLE[name](there / name)
    forbidden(there / name)
    with pytest.raises(ArcnbError, match=f"^{there / name}: cannot be read: permission denied$"):
        UNREADABLE[name](there / name)


@pytest.mark.parametrize("read", [load_tasks, open_sets, lambda path: parse_arms(f"a = {path}; b = {path}")])
def test_what_is_in_a_folder_that_may_not_be_entered_is_said_so(read, there, forbidden):
    forbidden(there, below_only=True)
    with pytest.raises(ArcnbError, match=f"^{there / 'set'}: cannot be read: permission denied$"):
        read(f"{there / 'set'}")
