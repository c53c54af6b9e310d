"""Early stop: the same rows whatever comes first, and nothing asked for that is not needed."""

import hashlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.stop_rules import record_rule
from arcnb.errors import ArcnbError
from arcnb.models.prompts.format import prompt_format
from arcnb.models.sampling.backends import Sampling
from arcnb.search import comparing
from arcnb.search.comparing import evaluation
from arcnb.search.sampling.early_stop import EarlyStop
from arcnb.search.sampling.predict import predict
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.search.sampling.sampled_set import SampledSet
from tests.search.canned_engine import CannedEngine
from tests.search.sampling.test_predict import done_keys

PLAN = RoundPlan(n_predictions=40, per_prompt=4, seed=1, stop_after=2)
SAMPLING = Sampling(max_tokens=64)


def rows(task_id, round_, *solving):
    return [Prediction(task_id, "", round_, i, train_is_correct=s) for i, s in enumerate(solving)]


def test_rounds_count_in_their_order_whatever_comes_first():
    stop = EarlyStop(2)
    assert stop.keep("t", 2, rows("t", 2, 1, 1)) == []
    assert stop.keep("t", 1, rows("t", 1, 1, 1)) == []
    assert [row.round for row in stop.keep("t", 0, rows("t", 0, 0, 1))] == [0, 0, 1, 1]
    assert stop.stopped == {"t"}
    assert stop.dropped == 2
    assert stop.keep("t", 3, rows("t", 3, 1)) == []


def test_rounds_on_disk_and_rounds_without_a_prompt_count_as_known():
    stop = EarlyStop(3)
    stop.found("t", 0, 1)
    stop.found("t", 2, 1)
    assert [row.round for row in stop.keep("t", 3, rows("t", 3, 1))] == []
    assert [row.round for row in stop.keep("t", 1, [])] == [3]
    assert stop.stopped == {"t"}
    stop.found("u", 0, 3)
    assert stop.stopped == {"t", "u"}


def lookup_program(task, right):
    """A program that knows the train outputs by heart, or one that is always wrong."""
    pairs = [(pair.input.tolist(), pair.output.tolist()) for pair in task.train]
    table = pairs if right else [(given, [[0]]) for given, _ in pairs]
    body = f"    return next((o for i, o in {table!r} if i == grid.tolist()), [[0]])"
    return f"def transform(grid):\n{body}\n```"


def solves(key, index):
    """Whether that completion is right: one in six, tossed anew for every task, round and index."""
    return hashlib.sha256(repr((key, index)).encode()).digest()[0] < 43


def engine(tokenizer, tasks, **settings):
    return CannedEngine(tokenizer, lambda key, i: lookup_program(tasks[key[0]], solves(key, i)), **settings)


def run(backend, tasks, predictions, executor, plan=PLAN, **settings):
    made = SampledSet(tasks, predictions, prompt_format(), SAMPLING, **settings)
    return predict(made, backend, executor, replace(plan, augment="none"))


def expected_keys(tasks, k):
    keys = set()
    for task in tasks:
        n_solving = 0
        for round_ in range(PLAN.n_rounds):
            if k and n_solving >= k:
                break
            made = range(PLAN.completions_in(round_))
            keys |= {(task.task_id, round_, index, 0) for index in made}
            n_solving += sum(solves((task.task_id, round_), index) for index in made)
    return keys


@pytest.mark.parametrize("order", [0, 1])
def test_the_rows_are_the_same_in_whatever_order_completions_come(
    tmp_path, tokenizer, executor, tasks, order
):
    predictions = PredictionSet(tmp_path / "p")
    backend = engine(tokenizer, tasks, order=order, room=16)
    report = run(backend, tasks, predictions, executor)
    assert done_keys(predictions) == expected_keys(tasks, 2) < expected_keys(tasks, 0)
    assert report.stopped == len(tasks)
    n_solving = Counter(row.task_id for row in predictions.iter_predictions() if row.train_is_correct)
    assert all(n_solving[task.task_id] >= 2 for task in tasks)
    again = engine(tokenizer, tasks)
    assert run(again, tasks, predictions, executor).made == 0
    assert again.asked == []


def test_a_task_that_has_ended_is_not_asked_for_any_more(tmp_path, tokenizer, executor, tasks):
    backend = engine(tokenizer, tasks, room=8, pace=0.02)
    plan = replace(PLAN, n_predictions=400)
    report = run(backend, tasks[:1], PredictionSet(tmp_path / "p"), executor, plan)
    assert len(backend.asked) < plan.n_rounds
    assert report.stopped == 1
    assert str(report).count("1 tasks ended early")


class Broken(Exception):
    pass


@pytest.mark.parametrize("after", [1, 30, 60])
def test_a_stage_that_breaks_off_goes_on_to_the_same_rows(tmp_path, tokenizer, executor, tasks, after):
    predictions = PredictionSet(tmp_path / "p")
    breaking = engine(tokenizer, tasks, room=16)
    generate = breaking.generate

    def broken(requests, sampling):
        for n, completion in enumerate(generate(requests, sampling)):
            if n == after:
                raise Broken
            yield completion

    breaking.generate = broken
    with pytest.raises(Broken):
        run(breaking, tasks, predictions, executor, part_rows=4)
    left = done_keys(predictions)
    assert left < expected_keys(tasks, 2)
    run(engine(tokenizer, tasks, order=5), tasks, predictions, executor)
    assert done_keys(predictions) == expected_keys(tasks, 2)


def set_of(folder, task, rounds, plan=PLAN):
    """A set begun by that plan; each round has a right answer (1) or a wrong one (0) for each entry."""
    predictions = PredictionSet(folder)
    record_rule(predictions, plan.stop_after, plan.n_predictions)
    for round_, solving in enumerate(rounds):
        made = [
            replace(
                row, task_fingerprint=task.fingerprint, status="ok", test_is_correct=row.train_is_correct,
                train_pixel_score=row.train_is_correct, test_pixel_score=row.train_is_correct,
                train_correct_grids=row.train_is_correct, test_correct_grids=row.train_is_correct,
            )
            for row in rows(task.task_id, round_, *solving)
        ]  # fmt: skip
        predictions.write_part(made, round_)
    return predictions


def test_pass_at_k_of_a_set_that_was_stopped_is_left_out_and_the_rule_is_said(tmp_path, tasks):
    """On average over what might have come out, the share of a stopped task is above its chance."""
    chance, shares = 0.25, []
    for seed in range(2000):
        draws = np.random.default_rng(seed).random(40) < chance
        n = next((n for n in range(4, 41, 4) if draws[:n].sum() >= 2), 40)
        shares.append(draws[:n].mean())
    assert np.mean(shares) > chance + 0.03

    sets = {
        "stopped": set_of(tmp_path / "stopped", tasks[0], [(0, 0, 1, 0), (1, 0, 0, 0)]),
        "whole": set_of(tmp_path / "whole", tasks[0], [(1, 1, 0, 0)] * 2, replace(PLAN, stop_after=0)),
    }
    stopped = evaluation.early_stops(sets)
    assert list(stopped) == ["stopped"]
    assert stopped["stopped"].startswith("stopped: 1 of 1 tasks were stopped by stop_after=2, with the round")
    assert "so pass@k and every other mean over predictions of this set is too high" in stopped["stopped"]

    frames, ids = comparing.sets.read_sets(sets), [tasks[0].task_id]
    assert list(evaluation.curves(frames, ids, 0, stopped)) == ["whole"]
    for table in (
        evaluation.comparison_table(frames, ids, 0, stopped).T,
        evaluation.means_table(frames, ids, stopped),
    ):
        assert (table["stopped"][list(evaluation.STOPPED_TOO_HIGH)] == "-").all()
        assert not (table["whole"] == "-").any()
        assert table["stopped"]["is_correct"] in (1, "100%")
        assert table["whole"]["train_pass_rate"] in (0.5, "50%")


def test_tasks_that_did_not_end_early_leave_a_set_as_it_is(tmp_path, tasks):
    short = replace(PLAN, n_predictions=8)
    sets = {
        "none solved": set_of(tmp_path / "a", tasks[0], [(0, 0, 1, 0)]),
        "to the end": set_of(tmp_path / "b", tasks[0], [(0, 0, 1, 0), (1, 1, 0, 0)], short),
        "filled up": set_of(tmp_path / "c", tasks[0], [(1, 1, 0, 0), (0, 0, 0, 0)], short),
    }
    assert evaluation.early_stops(sets) == {}
    record_rule(sets["to the end"], 3, 40)  # gone on with by another rule
    record_rule(sets["to the end"], 3, 40)  # by its second shard
    assert "stopped by stop_after=3, with" in evaluation.early_stops(sets)["to the end"]


@pytest.mark.parametrize(
    "content", ["{", "[1, 2]", '{"early_stop": 2}', '{"early_stop": {}, "n_predictions": 8}']
)
def test_a_damaged_rule_is_one_sentence(tmp_path, tasks, content):
    predictions = set_of(tmp_path / "p", tasks[0], [(1, 1, 0, 0)])
    (rule,) = predictions.folder.glob("_early_stop-*.json")
    rule.write_text(content)
    with pytest.raises(ArcnbError, match=f"{rule.name} is damaged"):
        evaluation.early_stops({"p": predictions})


def test_a_stage_keeps_its_rule_with_the_set(tmp_path, tokenizer, executor, tasks):
    predictions = PredictionSet(tmp_path / "p")
    run(engine(tokenizer, tasks), tasks, predictions, executor)
    assert (
        f"{len(tasks)} of {len(tasks)} tasks were stopped" in evaluation.early_stops({"p": predictions})["p"]
    )
    other = PredictionSet(tmp_path / "other")
    run(engine(tokenizer, tasks), tasks, other, executor, replace(PLAN, stop_after=0))
    assert evaluation.early_stops({"other": other}) == {}
    run(engine(tokenizer, tasks), tasks, predictions, executor, replace(PLAN, stop_after=0))
    assert evaluation.early_stops({"p": predictions}) == {}, "every task has all its predictions by now"
