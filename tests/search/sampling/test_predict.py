"""Sampling rounds: exactly the planned rows, also when killed and started again."""

import random
import time
from dataclasses import replace

import pandas as pd
import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.models.prompts.chat import prompt_ids
from arcnb.models.prompts.format import prompt_format
from arcnb.models.sampling.backends import EngineOptions, Sampling, open_backend
from arcnb.programs.executor.executor import Executor
from arcnb.search.sampling.predict import predict
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.search.sampling.sampled_set import SampledSet
from tests.arc_tasks import short_tasks
from tests.lab.watching import wait_for

SAMPLING = Sampling(max_tokens=8)
PLAN = RoundPlan(n_predictions=5, per_prompt=2, seed=3)
LONG_PLAN = replace(PLAN, n_predictions=61)


def sampled(tasks, predictions, **more):
    return SampledSet(tasks, predictions, prompt_format(), SAMPLING, **more)


def sample(model, folder):
    """A stage to be killed."""
    with (
        open_backend("transformers", model, None, EngineOptions(max_model_len=2048)) as engine,
        Executor(1) as executor,
    ):
        predict(sampled(short_tasks(), PredictionSet(folder), part_rows=4), engine, executor, LONG_PLAN)


def expected_keys(tasks, plan=PLAN):
    keys = [(n // plan.per_prompt, n % plan.per_prompt) for n in range(plan.n_predictions)]
    return {(task.task_id, r, i, 0) for task in tasks for r, i in keys}


def done_keys(predictions):
    """What a restarted stage leaves out."""
    return {one.key for one in predictions.iter_predictions()}


def raw_keys(predictions):
    """What any reader finds: nothing stands there twice."""
    raw = pd.read_parquet(predictions.folder)
    return list(zip(raw["task_id"], raw["round"], raw["index"], raw["turn"], strict=True))


def test_the_rows_are_the_planned_ones_and_a_second_call_adds_nothing(tmp_path, engine, executor):
    tasks, predictions = short_tasks(), PredictionSet(tmp_path / "p")
    first = predict(sampled(tasks, predictions), engine, executor, PLAN)
    assert (first.asked, first.made, first.found) == (20, 20, 0)
    assert done_keys(predictions) == expected_keys(tasks)
    again = predict(sampled(tasks, predictions), engine, executor, PLAN)
    assert (again.made, again.found) == (0, 20)
    assert all(row.completion and row.status for row in predictions.iter_predictions())


@pytest.mark.parametrize("stop_after", [0, 50])
def test_a_set_that_is_to_grow_gets_the_missing_rows_only(tmp_path, engine, executor, stop_after):
    tasks, predictions = short_tasks(), PredictionSet(tmp_path / "p")
    for n_predictions in (5, 7):  # the last round of the first has one completion, and then two
        plan = replace(PLAN, n_predictions=n_predictions, stop_after=stop_after)
        predict(sampled(tasks, predictions), engine, executor, plan)
        assert sorted(raw_keys(predictions)) == sorted(expected_keys(tasks, plan))


def test_the_prompt_is_rebuilt_exactly_from_the_recorded_view(tmp_path, engine, executor):
    tasks, predictions = short_tasks(), PredictionSet(tmp_path / "p")
    asked = {}
    generate = engine.generate

    class Spy:
        def __getattr__(self, name):
            return getattr(engine, name)

        def generate(self, requests, sampling):
            def seen():
                for request in requests:
                    asked[request.key] = list(request.prompt_ids)
                    yield request

            return generate(seen(), sampling)

    predict(sampled(tasks, predictions), Spy(), executor, PLAN)
    for row in predictions.iter_predictions():
        rebuilt = prompt_format().prompt(row.view.apply(tasks[row.task_id]))
        assert prompt_ids(engine.tokenizer, rebuilt) == asked[row.task_id, row.round]


def test_rounds_show_different_views():
    tasks = short_tasks()
    views = {PLAN.view(tasks[0], round_) for round_ in range(8)}
    assert len(views) == 8
    assert PLAN.view(tasks[0], 3) == PLAN.view(tasks[0], 3)


def test_the_report_counts_what_was_made(tmp_path, engine, executor):
    tasks, predictions = short_tasks(), PredictionSet(tmp_path / "p")
    report = predict(sampled(tasks, predictions), engine, executor, PLAN)
    frame = predictions.read()
    assert report.completion_tokens == frame["n_tokens"].sum()
    assert report.prompt_tokens == frame.groupby(["task_id", "round"])["n_prompt_tokens"].first().sum()
    assert report.truncated == (frame["finish_reason"] == "length").sum() > 0
    rates = report.rates
    assert rates["prompt_tokens_per_second"] == pytest.approx(report.prompt_tokens / report.seconds)
    assert 0 < rates["engine_waiting_share"] < 1
    assert f"{rates['truncated_share']:.1%} of the completions truncated" in str(report)
    assert report.outcome()["inference_made"] == 20


def test_programs_whose_verdicts_are_known_keep_no_worker_busy(tmp_path, engine):
    with Executor(1) as executor:
        first, again = (
            predict(sampled(short_tasks(), PredictionSet(tmp_path / name)), engine, executor, PLAN)
            for name in ("first", "again")
        )
    assert first.made == again.made == 20
    assert first.program_seconds > 0 == again.program_seconds


def test_a_prompt_that_does_not_fit_is_skipped_counted_and_named(tmp_path, engine, executor):
    tasks = load_tasks("arc-agi-1/training")
    longest = max(tasks, key=lambda t: sum(p.input.size + p.output.size for p in t.train))
    chosen = tasks.subset([longest.task_id, short_tasks()[0].task_id])
    predictions = PredictionSet(tmp_path / "p")
    report = predict(sampled(chosen, predictions), engine, executor, PLAN)
    assert list(report.too_long) == [longest.task_id]
    assert report.prompts_skipped == 3
    assert longest.task_id in str(report)
    assert {row.task_id for row in predictions.iter_predictions()} == {chosen[1].task_id}


def test_killed_at_random_moments_it_ends_with_exactly_the_planned_rows(tmp_path, small_model, forked):
    tasks, predictions = short_tasks(), PredictionSet(tmp_path / "p")
    moments = random.Random(7)
    expected, left_incomplete = expected_keys(tasks, LONG_PLAN), 0
    for attempt in range(40):
        process = forked(sample, small_model.path, predictions.folder)
        before = len(done_keys(predictions))
        if attempt < 2:  # let it get to work, then kill it within the next few prompts
            wait_for(lambda: len(done_keys(predictions)) != before or process.exitcode is not None)  # noqa: B023
            time.sleep(moments.uniform(0, 0.2))
            process.kill()
            left_incomplete += 0 < len(done_keys(predictions)) < len(expected)
        process.join(120)
        if process.exitcode == 0:
            break
    assert sorted(raw_keys(predictions)) == sorted(expected)
    assert left_incomplete, "no kill came while predictions were being made"
