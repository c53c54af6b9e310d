"""Tasks: what is read is checked, what is wrong is named."""

import pickle

import numpy as np
import pytest

from arcnb.arc.tasks.task import Pair, Task
from arcnb.errors import ArcnbError

GOOD = {
    "train": [{"input": [[1, 2]], "output": [[2, 1]]}, {"input": [[3]], "output": [[4]]}],
    "test": [{"input": [[5, 6, 7]], "output": [[8]]}, {"input": [[9]], "output": [[0]]}],
}


def changed(part: str, index: int, **fields) -> dict:
    """GOOD with other fields in one pair; a field set to ... is taken out."""
    task = {name: [dict(pair) for pair in pairs] for name, pairs in GOOD.items()}
    for key, value in fields.items():
        task[part][index][key] = value
        if value is ...:
            del task[part][index][key]
    return task


def test_to_dict_gives_back_what_was_read():
    assert Task.from_dict("t", GOOD).to_dict() == GOOD
    hidden = changed("test", 0, output=...)
    assert Task.from_dict("t", hidden).to_dict() == hidden


def test_inputs_are_train_then_test():
    assert [g.tolist() for g in Task.from_dict("t", GOOD).inputs] == [[[1, 2]], [[3]], [[5, 6, 7]], [[9]]]


def test_fingerprint_depends_on_the_grids_and_nothing_else():
    task = Task.from_dict("t", GOOD)
    assert (
        task.fingerprint == Task.from_dict("other", GOOD, source="x", program="y", meta={"z": 1}).fingerprint
    )
    others = [
        changed("train", 0, input=[[1], [2]]),
        changed("train", 0, input=[[1, 3]]),
        changed("test", 1, output=[[1]]),
        changed("test", 1, output=...),
        {"train": GOOD["train"][::-1], "test": GOOD["test"]},
        {"train": GOOD["train"][:1], "test": [GOOD["train"][1], *GOOD["test"]]},
    ]
    fingerprints = {Task.from_dict("t", other).fingerprint for other in others}
    assert len(fingerprints) == len(others)
    assert task.fingerprint not in fingerprints


def test_equality_and_hash_look_at_the_grids():
    a, b = Task.from_dict("t", GOOD), Task.from_dict("t", GOOD)
    assert a == b
    assert hash(a) == hash(b)
    assert a != Task.from_dict("t", changed("test", 0, output=[[7]]))
    assert a != Task.from_dict("u", GOOD)


def test_tasks_travel_between_processes():
    task = Task.from_dict("t", GOOD, meta={"row": 3})
    assert pickle.loads(pickle.dumps(task)) == task


def test_shared_grids_cannot_be_changed_by_accident():
    task = Task.from_dict("t", GOOD)
    with pytest.raises(ValueError, match="read-only"):
        task.train[0].input[0, 0] = 5


def test_whether_test_outputs_are_known():
    assert Task.from_dict("t", GOOD).has_test_outputs
    assert not Task.from_dict("t", changed("test", 1, output=...)).has_test_outputs
    assert not Task.from_dict("t", changed("test", 1, output=None)).has_test_outputs


def test_a_pair_takes_lists_and_checks_them():
    assert Pair([[1]], [[2]]) == Pair(np.array([[1]]), np.array([[2]], np.uint8))
    with pytest.raises(ValueError, match="input: "):
        Pair([[10]])


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (changed("train", 1, input=[[1, 2], [3]]), "file.json: task t, train pair 1 input: ragged"),
        (changed("train", 0, output=[[0] * 31]), "file.json: task t, train pair 0 output: 1x31"),
        (changed("test", 1, input=[]), "file.json: task t, test pair 1 input: empty"),
        (
            changed("test", 0, output=[[11]]),
            "file.json: task t, test pair 0 output: row 0, column 0 holds 11",
        ),
        (changed("test", 0, output=[[1.5]]), "file.json: task t, test pair 0 output: row 0, column 0 is 1.5"),
        (changed("train", 0, output=...), 'file.json: task t, train pair 0: has no "output"'),
        (changed("test", 0, input=...), 'file.json: task t, test pair 0: has no "input"'),
        ({"train": GOOD["train"]}, 'file.json: task t: "test" is missing'),
        ({"test": GOOD["test"]}, 'file.json: task t: "train" is missing'),
        ({"train": [], "test": GOOD["test"]}, "file.json: task t: no train pairs"),
        ({"train": GOOD["train"], "test": []}, "file.json: task t: no test pairs"),
        ({"train": {}, "test": []}, 'file.json: task t: "train" is not a list'),
        ({"train": [[[1]]], "test": []}, 'file.json: task t, train pair 0: has no "input"'),
        ([1], "file.json: task t: list instead of an object"),
    ],
)
def test_what_is_wrong_is_named_with_file_task_and_pair(mapping, message):
    with pytest.raises(ArcnbError) as caught:
        Task.from_dict("t", mapping, where="file.json")
    assert str(caught.value).startswith(message)


def test_a_task_introduces_itself():
    task = Task.from_dict("t", changed("test", 0, output=...), source="here")
    assert repr(task) == "<Task t from here: 2 train, 2 test, test outputs unknown>"
    assert "<svg" in task._repr_html_()
