"""Submissions: chosen as the reference does by its rule, better by ours, and complete, always."""

import json

import pytest

from arcnb.arc.grids import as_grid
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.tables import to_frame, to_table
from arcnb.arc.scores.attempts import RULES, Candidate, count_votes
from arcnb.arc.scores.submission import (
    SUBMISSION_COLUMNS,
    choose_attempts,
    create_submission,
    score_submission,
    validate_submission,
    write_submission,
)
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.errors import ArcnbError
from tests.arc.golden_grids import cases

GOLDEN = "arc25_submission.json"


def frame_of(predictions):
    return to_frame(to_table(predictions))


def candidates(records: list[dict], metric: str | None = None) -> list[Candidate]:
    return [
        Candidate(r["code"], tuple(map(as_grid, r["test_output_grids"])), r[metric or "train_correct_grids"])
        for r in records
        if "test_output_grids" in r
    ]


def task(task_id: str, n_test: int = 1, outputs: list | None = None) -> Task:
    tests = (
        [{"input": [[0]]}] * n_test if outputs is None else [{"input": [[0]], "output": o} for o in outputs]
    )
    return Task.from_dict(task_id, {"train": [{"input": [[0]], "output": [[0]]}], "test": tests})


def golden_tasks(case: dict) -> list[Task]:
    args = case["args"]
    if "solutions" in args:
        return [task(task_id, outputs=grids) for task_id, grids in args["solutions"].items()]
    return [task(task_id, len(content["test"])) for task_id, content in args["dataset"].items()]


def golden_submission(case: dict, rule: str) -> dict:
    args = case["args"]
    return {
        task_id: choose_attempts(
            candidates(args["results"].get(task_id, []), args.get("sorting_metric")),
            len(content["test"]),
            RULES[rule],
        )[0]
        for task_id, content in args["dataset"].items()
    }


def prediction(
    task_id: str, index: int, outputs: list, program: str = "p", train: float = 1.0, **fields
) -> Prediction:
    return Prediction(
        task_id=task_id, task_fingerprint="f", round=0, index=index, program=program, status="ok",
        outputs=[None if g is None else as_grid(g) for g in outputs], train_correct_grids=train, **fields,
    )  # fmt: skip


def attempts(entries: list[dict]) -> list[tuple]:
    return [(entry["attempt_1"], entry["attempt_2"]) for entry in entries]


# ---------------------------------------------------------------- golden vectors


@pytest.mark.parametrize("case", cases(GOLDEN, "sort_predictions"), ids=lambda case: case["id"])
def test_votes_agree_with_the_reference(case):
    for test_index, expected in enumerate(case["expect"]["value"]):
        votes = count_votes(candidates(case["args"]["results"]), test_index)
        votes.sort(key=lambda vote: (-len(vote.voters), vote.mean_code_length))
        assert [
            {
                "pred": vote.grid.tolist(),
                "votes": len(vote.voters),
                "code_lengths": [len(voter.program) for voter in vote.voters],
                "mean_code_length": vote.mean_code_length,
            }
            for vote in votes
        ] == expected


ALL_CREATED = cases(GOLDEN, "create_submission") + cases(GOLDEN, "create_submission", quirk=True)


@pytest.mark.parametrize("case", ALL_CREATED, ids=lambda case: case["id"])
def test_the_legacy_rule_agrees_with_the_reference_quirks_included(case):
    assert golden_submission(case, "legacy") == case["expect"]["value"]


@pytest.mark.parametrize("rule", ["train-score", "majority"])
@pytest.mark.parametrize("case", ALL_CREATED, ids=lambda case: case["id"])
def test_our_rules_never_spend_both_attempts_on_one_grid(case, rule):
    for task_id, entries in golden_submission(case, rule).items():
        found = candidates(case["args"]["results"].get(task_id, []))
        for test_index, (first, second) in enumerate(attempts(entries)):
            proposed = {json.dumps(c.test_outputs[test_index].tolist()) for c in found}
            if len(proposed) >= 2:
                assert first != second
                assert {json.dumps(first), json.dumps(second)} <= proposed
            else:
                assert [first, second] == [*map(json.loads, proposed), [[0]], [[0]]][:2]


@pytest.mark.parametrize("case", cases(GOLDEN, "evaluate_submission"), ids=lambda case: case["id"])
def test_scores_agree_with_the_reference(case):
    if "raises" in case["expect"]:
        with pytest.raises(ArcnbError, match="task unknown of the submission is not in the task set"):
            score_submission(case["args"]["submission"], golden_tasks(case))
    else:
        assert (
            score_submission(case["args"]["submission"], golden_tasks(case)).per_task
            == case["expect"]["value"]
        )


@pytest.mark.parametrize(
    "case", cases(GOLDEN, "evaluate_submission", quirk=True), ids=lambda case: case["id"]
)
def test_a_missing_task_counts_zero_where_the_reference_leaves_it_out(case):
    result = score_submission(case["args"]["submission"], golden_tasks(case))
    missing = set(case["args"]["solutions"]) - set(case["args"]["submission"])
    assert set(result.missing) == missing
    assert result.per_task == case["expect"]["value"] | dict.fromkeys(missing, 0.0)


@pytest.mark.parametrize("case", cases(GOLDEN, "validate_submission"), ids=lambda case: case["id"])
def test_validation_agrees_with_the_reference(case):
    if "raises" in case["expect"]:
        with pytest.raises(ArcnbError):
            validate_submission(case["args"]["submission"], golden_tasks(case))
    else:
        validate_submission(case["args"]["submission"], golden_tasks(case))


@pytest.mark.parametrize(
    "case", cases(GOLDEN, "validate_submission", quirk=True), ids=lambda case: case["id"]
)
def test_grids_that_are_none_are_refused_where_the_reference_lets_them_pass(case):
    with pytest.raises(ArcnbError, match=r"^task t\d, test \d, attempt_\d: "):
        validate_submission(case["args"]["submission"], golden_tasks(case))


# ---------------------------------------------------------------- choosing


def test_train_score_comes_first_then_distinct_programs_then_length():
    one, two, three, four = ([[i]] for i in range(1, 5))
    rows = [
        prediction("t", 0, [[[0]], one], "a" * 9, train=0.5),
        prediction("t", 1, [[[0]], one], "b" * 9, train=0.5),
        prediction("t", 2, [[[0]], two], "c" * 9, train=1.0),
    ]
    assert attempts(create_submission(frame_of(rows), [task("t")])["t"]) == [(two, one)]
    # One program sampled five times is one vote; two programs outvote it.
    rows = [prediction("t", i, [[[0]], one], "same") for i in range(5)]
    rows += [prediction("t", 5, [[[0]], two], "longer one"), prediction("t", 6, [[[0]], two], "longer two")]
    assert attempts(create_submission(frame_of(rows), [task("t")])["t"]) == [(two, one)]
    # A vote of a program that does worse on train does not count beside one that does better.
    rows = [
        prediction("t", 0, [[[0]], three], "aaaa"),
        prediction("t", 1, [[[0]], four], "bbb"),
        prediction("t", 2, [[[0]], three], "c", train=0.5),
    ]
    assert attempts(create_submission(frame_of(rows), [task("t")])["t"]) == [(four, three)]


def test_the_majority_rule_looks_at_votes_first():
    rows = [prediction("t", i, [[[0]], [[1]]], f"p{i}", train=0.0) for i in range(3)]
    rows.append(prediction("t", 3, [[[0]], [[2]]], "q", train=1.0))
    frame = frame_of(rows)
    assert attempts(create_submission(frame, [task("t")], rule="majority")["t"]) == [([[1]], [[2]])]
    assert attempts(create_submission(frame, [task("t")])["t"]) == [([[2]], [[1]])]


def test_attempts_of_different_test_inputs_may_come_from_different_programs():
    rows = [
        prediction("t", 0, [[[0]], [[1]], None], "a"),
        prediction("t", 1, [[[0]], None, [[2]]], "b"),
    ]
    submission = create_submission(frame_of(rows), [task("t", 2)])
    assert attempts(submission["t"]) == [([[1]], [[0]]), ([[2]], [[0]])]
    assert submission.padded == {"t": 2}


def test_every_task_of_the_set_is_there_and_padding_is_reported():
    rows = [prediction("a", 0, [[[0]], [[1]]]), prediction("stranger", 0, [[[0]], [[1]]])]
    rows.append(Prediction("b", "f", 0, 0, status="timeout"))
    tasks = [task("a"), task("b", 3), task("c")]
    submission = create_submission(frame_of(rows), tasks)
    validate_submission(submission, tasks)
    assert list(submission) == ["a", "b", "c"]
    assert submission.padded == {"a": 1, "b": 6, "c": 2}
    assert submission.padding_report() == "3 tasks padded with [[0]] in 9 attempts (a, b, c)"
    assert "5 test outputs" in repr(submission)


def test_no_predictions_make_a_valid_submission_all_the_same():
    tasks = load_tasks("arc-agi-2/evaluation")
    submission = create_submission(frame_of([]), tasks)
    validate_submission(submission, tasks)
    assert score_submission(submission, tasks).output_mean == 0


def test_right_answers_score_full_marks():
    tasks = load_tasks("arc-agi-2/evaluation")
    rows = [prediction(t.task_id, 0, [p.output.tolist() for p in (*t.train, *t.test)]) for t in tasks]
    frame = frame_of(rows)[list(SUBMISSION_COLUMNS)]
    submission = create_submission(frame, tasks)
    validate_submission(submission, tasks)
    result = score_submission(submission, tasks)
    assert (result.task_mean, result.output_mean) == (1, 1)
    assert result.n_outputs == sum(len(t.test) for t in tasks)


def test_both_ways_of_averaging():
    tasks = [task("a", outputs=[[[1]], [[2]], [[3]]]), task("b", outputs=[[[4]]])]
    pad = {"attempt_1": [[0]], "attempt_2": [[0]]}
    submission = {
        "a": [{"attempt_1": [[9]], "attempt_2": [[1]]}, pad, pad],
        "b": [{**pad, "attempt_1": [[4]]}],
    }
    result = score_submission(submission, tasks)
    assert result.task_mean == pytest.approx(2 / 3)
    assert result.output_mean == 0.5
    assert str(result) == "66.67% of 2 tasks (mean over tasks), 50.00% of 4 test outputs"


def test_defects_are_refused_by_name():
    with pytest.raises(
        ArcnbError, match="submission_rule 'best' does not exist; there are train-score, majority, legacy"
    ):
        create_submission(frame_of([]), [], rule="best")
    with pytest.raises(ArcnbError, match="task t: a prediction has 1 outputs for 1 train and 1 test inputs"):
        create_submission(frame_of([prediction("t", 0, [[[0]]])]), [task("t")])
    with pytest.raises(ArcnbError, match="task t: its test outputs are unknown"):
        score_submission({}, [task("t")])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (None, "task t is missing from the submission"),
        ([], "task t: 0 entries for 1 test inputs"),
        ("x", "task t: no list of entries for 1 test inputs"),
        ([{"attempt_1": [[0]]}], "task t, test 0: the entry does not have exactly the keys"),
        (
            [{"attempt_1": [[0]], "attempt_2": [[0]], "x": 1}],
            "task t, test 0: the entry does not have exactly",
        ),
        ([{"attempt_1": [[0]], "attempt_2": [[True]]}], "task t, test 0, attempt_2: row 0, column 0 is True"),
        ([{"attempt_1": [[0]], "attempt_2": None}], "task t, test 0, attempt_2: None is not a list of rows"),
        ([{"attempt_1": [[0]], "attempt_2": [[0.0]]}], "attempt_2: row 0, column 0 is 0.0, not an integer"),
        ([{"attempt_1": [[0]]}, {"attempt_2": [[0]]}], "task t: 2 entries for 1 test inputs"),
        ([[[0]]], "task t, test 0: the entry does not have exactly the keys"),
        ({"attempt_1": [[0]], "attempt_2": [[0]]}, "task t: no list of entries for 1 test inputs"),
        ([{"attempt_1": [[0]], "attempt_2": as_grid([[0]])}], "attempt_2: not lists of plain integers"),
        (
            [{"attempt_1": [[as_grid([[1]])[0, 0]]], "attempt_2": [[0]]}],
            "attempt_1: not lists of plain integers",
        ),
    ],
)
def test_validation_names_the_problem(entries, message):
    submission = {} if entries is None else {"t": entries}
    for check in (validate_submission, score_submission):
        if (check, entries) == (score_submission, None):  # what is missing counts 0
            continue
        with pytest.raises(ArcnbError) as caught:
            check(submission, [task("t", outputs=[[[0]]])])
        assert message in str(caught.value)


def test_a_stranger_in_the_submission_is_refused():
    entry = [{"attempt_1": [[0]], "attempt_2": [[0]]}]
    with pytest.raises(ArcnbError, match="task u of the submission is not in the task set"):
        validate_submission({"t": entry, "u": entry}, [task("t")])
    with pytest.raises(ArcnbError, match="a submission is an object of tasks, not list"):
        score_submission([entry], [task("t")])


def test_the_file_is_plain_json_and_takes_the_place_of_the_one_before(tmp_path):
    submission = create_submission(frame_of([prediction("t", 0, [[[0]], [[1, 2]]])]), [task("t")])
    path = write_submission(submission, tmp_path / "run" / "submission.json")
    assert json.loads(path.read_text()) == {"t": [{"attempt_1": [[1, 2]], "attempt_2": [[0]]}]}
    write_submission({}, path)
    assert path.read_text() == "{}"
    assert [p.name for p in path.parent.iterdir()] == ["submission.json"]
