"""Judging predictions."""

import itertools
import json
from dataclasses import fields

import numpy as np
import pytest

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.predictions.prediction import Prediction, output_fingerprint
from arcnb.arc.scores.similarity import score
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.programs.executor.executor import Executor
from arcnb.programs.judging import judge, run_program
from tests.paths import GOLDEN

GOLDEN = json.loads((GOLDEN / "arc25_code.json").read_text())
EXECUTE_CASES = {case["id"]: case for case in GOLDEN["cases"] if case["fn"] == "execute"}

FLIP = "def transform(grid):\n    return grid[:, ::-1]"


@pytest.fixture(scope="module")
def executor():
    with Executor(workers=2) as executor:
        yield executor


@pytest.fixture(scope="module")
def task():
    grids = [np.array([[1, 2, 3], [4, 5, 6]]), np.array([[7, 0]]), np.array([[0, 8], [9, 1]])]
    pairs = [{"input": grid.tolist(), "output": grid[:, ::-1].tolist()} for grid in grids]
    return Task.from_dict("flip", {"train": pairs[:2], "test": pairs[2:]})


def prediction(task, completion, index=0, augmentation=Augmentation(), **more):
    return Prediction(
        task.task_id,
        task.fingerprint,
        0,
        index,
        completion=completion,
        hflip=augmentation.hflip,
        n_rot90=augmentation.n_rot90,
        color_map=augmentation.color_map and list(augmentation.color_map),
        **more,
    )


def judge_one(task, executor, completion, **more):
    (result,) = judge([prediction(task, completion, **more)], {task.task_id: task}, executor)
    return result


def fenced(program):
    return f"Plan.\n```python\n{program}\n```\nDone."


def test_a_right_program_is_solved_and_leaves_a_full_record(task, executor):
    result = judge_one(task, executor, fenced(FLIP), n_tokens=9, finish_reason="stop")
    assert result.program == FLIP
    assert (result.extraction, result.status, result.error_type) == ("fenced", "ok", None)
    assert (result.train_is_correct, result.test_is_correct, result.n_tokens) == (1, 1, 9)
    for output, grid in zip(result.outputs, task.inputs, strict=True):
        np.testing.assert_array_equal(output, grid[:, ::-1])
    assert result.fingerprint == output_fingerprint(result.outputs)
    assert result.seconds > 0
    assert (result.seconds, result.cpu_seconds) == (round(result.seconds, 4), round(result.cpu_seconds, 4))


@pytest.mark.parametrize("seed", range(6))
def test_programs_run_in_the_augmented_frame_and_are_scored_in_the_original(task, executor, seed):
    """A program that answers the augmented task is right; one for the original task is wrong there."""
    augmentation = Augmentation.sample(rng(seed, "judging"))
    answers = {
        augmentation.apply(pair.input).tobytes(): augmentation.apply(pair.output).tolist()
        for pair in (*task.train, *task.test)
    }
    program = f"import numpy as np\nanswers = {answers!r}\n"
    program += "def transform(grid):\n    return answers[grid.astype(np.uint8).tobytes()]"
    result = judge_one(task, executor, fenced(program), augmentation=augmentation)
    assert (result.train_is_correct, result.test_is_correct) == (1, 1)
    plain = judge_one(task, executor, fenced(FLIP))
    assert plain.fingerprint == result.fingerprint


BAD = {
    "nothing here": ("no_code", None),
    "```python\ndef transform(grid)\n    return grid\n```": ("syntax", "SyntaxError"),
    fenced("def solve(grid):\n    return grid"): ("error", "NameError"),
    fenced("def transform(grid):\n    return grid[99]"): ("error", "IndexError"),
    fenced("def transform(grid):\n    return grid * 0.5"): ("invalid_output", None),
    fenced("def transform(grid):\n    raise ValueError('\\ud800' * 9999)"): ("error", "ValueError"),
    "```python\n\0\n```": ("syntax", None),
}


@pytest.mark.parametrize(("completion", "verdict"), BAD.items(), ids=range(len(BAD)))
def test_a_row_keeps_its_completion_whatever_went_wrong(task, executor, completion, verdict):
    result = judge_one(task, executor, completion, logprob=-3.5)
    status, error_type = verdict
    assert result.status == status
    assert error_type is None or result.error_type == error_type
    assert (result.completion, result.logprob) == (completion, -3.5)
    assert (result.outputs, result.fingerprint) == (None, None)
    assert (result.train_pixel_score, result.test_is_correct) == (0, 0)
    assert len(result.error_message or "") <= 500
    (result.error_message or "").encode()


def test_judged_rows_of_every_outcome_can_be_stored(task, executor, tmp_path):
    from arcnb.arc.predictions.prediction_set import PredictionSet

    rows = [prediction(task, completion, index) for index, completion in enumerate(BAD)]
    PredictionSet(tmp_path).write_part(list(judge(rows, {"flip": task}, executor)), round=0)
    assert len(PredictionSet(tmp_path).read()) == len(rows)


def test_unknown_test_outputs_stay_unknown(task, executor):
    mapping = task.to_dict()
    mapping["test"] = [{"input": pair["input"]} for pair in mapping["test"]]
    open_task = Task.from_dict("flip", mapping)
    result = judge_one(open_task, executor, fenced(FLIP))
    assert (result.train_is_correct, result.test_is_correct) == (1, None)
    assert judge_one(open_task, executor, "no code").test_pixel_score is None


def test_the_assistant_prefix_belongs_to_the_text(task, executor):
    result = judge_one(task, executor, FLIP + "\n```", completion_prefix="Sure:\n```python\n")
    assert (result.status, result.extraction) == ("ok", "fenced")
    result = judge_one(
        task, executor, "    return grid[:, ::-1]\n```", completion_prefix="```python\ndef transform(grid):\n"
    )
    assert result.train_is_correct == 1


def test_a_cut_completion_is_seen_as_cut(task, executor):
    result = judge_one(task, executor, "```python\ndef transform(grid):\n    x = (", finish_reason="length")
    assert result.status == "no_code"
    assert "cut off" in result.error_message


def test_results_stream_in_order_from_an_endless_source(task, executor):
    shifts = (f"def transform(grid):\n    return (grid + {i}) % 10" for i in itertools.count())
    endless = (prediction(task, fenced(program), index) for index, program in enumerate(shifts))
    results = list(itertools.islice(judge(endless, {"flip": task}, executor), 60))
    assert [result.index for result in results] == list(range(60))
    assert len({result.fingerprint for result in results}) == 10


def test_the_given_records_are_not_changed(task, executor):
    given = prediction(task, fenced(FLIP))
    list(judge([given], {"flip": task}, executor))
    assert given == prediction(task, fenced(FLIP))


def test_judging_again_sets_everything_anew(task, executor):
    (first,) = judge([prediction(task, fenced(FLIP))], {"flip": task}, executor)
    first.completion = "no code"
    (again,) = judge([first], {"flip": task}, executor)
    assert (again.program, again.status, again.fingerprint, again.outputs) == (None, "no_code", None, None)
    assert again.train_is_correct == 0


def test_a_prediction_of_an_unknown_task_is_named(task, executor):
    with pytest.raises(ArcnbError, match="prediction flip/0/0/0: task flip is not at hand"):
        list(judge([prediction(task, "x")], {}, executor))


def test_run_program(task, executor):
    execution = run_program(FLIP, task, executor)
    assert execution.status == "ok"
    assert score(list(execution.outputs), task)["test_is_correct"] == 1
    assert run_program(None, task, executor).status == "no_code"


# -- recorded behaviour of the reference --------------------------------------------------------------------

STATUS = {  # the reference's error classes, in our words
    "ParsingCodeFailed": ("no_code",),
    "TimeoutException": ("timeout",),
    "MemoryLimitExceeded": ("memory",),
    "SyntaxError": ("syntax",),
    "NonDeterministicCode": ("ok",),  # importing random is no crime; determinism is tested by running twice
    "ValueError": ("error", "invalid_output"),
}
BETTER = {  # where the reference errs: fences without tag, fewer outputs than inputs, fractions, sys.exit
    "code-0217": "ok",
    "code-0220": "error",
    "code-0221": "error",
    "code-0222": "invalid_output",
}


@pytest.fixture(scope="module")
def executed(executor):
    """All golden executions, judged in one go; the tasks have ids of their own."""
    tasks, rows = {}, []
    for case_id, case in EXECUTE_CASES.items():
        args = case["args"]
        tasks[case_id] = Task.from_dict(case_id, args["task"])
        params = args["params"] or {}
        colors = params.get("color_map")
        augmentation = Augmentation(
            params.get("hflip", False),
            params.get("n_rot90", 0),
            colors and tuple(colors[str(color)] for color in range(10)),
        )
        rows.append(prediction(tasks[case_id], args["response"], augmentation=augmentation))
    return {result.task_id: result for result in judge(rows, tasks, executor)}


@pytest.mark.parametrize("case_id", EXECUTE_CASES)
def test_golden_executions(executed, case_id):
    result, expected = executed[case_id], EXECUTE_CASES[case_id]["expect"]["value"]
    if case_id in BETTER:
        assert result.status == BETTER[case_id]
        return
    if not expected["ok"]:
        error = expected["error_type"]
        assert result.status in STATUS.get(error, ("error",))
        assert result.program == expected.get("code")
        if error not in STATUS:
            assert result.error_type == error
        return
    assert result.status == "ok"
    assert result.program == expected["code"]
    outputs = [output.tolist() for output in result.outputs]
    assert outputs[-len(expected["test_output_grids"]) :] == expected["test_output_grids"]
    scores = {field.name for field in fields(Prediction)} & set(expected)
    assert len(scores) >= 3
    for name in scores - {"fingerprint", "code"}:
        assert getattr(result, name) == pytest.approx(expected[name]), name
