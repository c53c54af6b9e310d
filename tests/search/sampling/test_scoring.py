"""Programs are judged while others still run: no prompt waits for another, and no order changes the rows."""

import random
import time
from concurrent.futures import Future
from dataclasses import replace

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.models.prompts.format import prompt_format
from arcnb.models.sampling.backends import Sampling
from arcnb.programs.executor.executor import Executor
from arcnb.search.sampling.predict import predict
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.search.sampling.sampled_set import SampledSet
from arcnb.search.sampling.scoring import ScoringThread
from tests.search.canned_engine import CannedEngine
from tests.search.sampling.test_predict import done_keys, expected_keys

PLAN = RoundPlan(n_predictions=12, per_prompt=3)
HELD = "held back"
PROGRAMS = (
    "def transform(grid):\n    return grid\n```",
    "def transform(grid):\n    return grid[5:0]\n```",
    "def transform(grid):\n    return nothing\n```",
    "no program",
)


class HoldingExecutor(Executor):
    """Keeps the verdicts on programs that say so until they are let go, in an order of its own."""

    def __init__(self, is_held, order=0):
        super().__init__(1)
        self.is_held, self.order, self.held = is_held, random.Random(order), []

    def submit(self, job):
        if not self.is_held(job):
            return super().submit(job)
        verdict = Future()
        self.held.append((verdict, super().submit(job)))
        return verdict

    def let_go(self):
        self.order.shuffle(self.held)
        for verdict, made in self.held:
            verdict.set_result(made.result())


class LettingGo(CannedEngine):
    """Waits after its last completion for `moment`, then lets the executor's verdicts go."""

    def __init__(self, tokenizer, answer, executor, moment):
        super().__init__(tokenizer, answer)
        self.executor, self.moment, self.came = executor, moment, False

    def generate(self, requests, sampling):
        yield from super().generate(requests, sampling)
        deadline = time.monotonic() + 60
        while not (self.came or time.monotonic() > deadline):
            time.sleep(0.01)
            self.came = self.moment()
        self.executor.let_go()


def run(engine, tasks, predictions, executor):
    made = SampledSet(tasks, predictions, prompt_format(), Sampling(), part_rows=PLAN.per_prompt)
    return predict(made, engine, executor, PLAN)


def test_a_slow_program_holds_up_its_own_prompt_and_no_other(tmp_path, tokenizer, tasks):
    predictions, slow = PredictionSet(tmp_path / "p"), (tasks[0].task_id, 0)

    def answer(key, index):
        return f"# {HELD}\n{PROGRAMS[0]}" if (key, index) == (slow, 1) else PROGRAMS[index]

    others = {key for key in expected_keys(tasks, PLAN) if key[:2] != slow}
    with HoldingExecutor(lambda job: HELD in (job.program or "")) as executor:
        engine = LettingGo(tokenizer, answer, executor, lambda: done_keys(predictions) == others)
        report = run(engine, tasks, predictions, executor)
    assert engine.came, "other prompts waited for the slow program"
    assert report.made == len(done_keys(predictions)) == len(others) + PLAN.per_prompt
    assert 0 < report.tail_seconds < report.seconds


class WaitingAtTheEnd(CannedEngine):
    """Keeps the last completion back until `moment`, so that its prompt is not whole before."""

    def __init__(self, tokenizer, answer, moment):
        super().__init__(tokenizer, answer)
        self.moment, self.came = moment, False

    def generate(self, requests, sampling):
        *others, last = super().generate(requests, sampling)
        yield from others
        deadline = time.monotonic() + 60
        while not (self.came or time.monotonic() > deadline):
            time.sleep(0.01)
            self.came = self.moment()
        yield last


def test_a_program_runs_before_its_prompt_is_whole(tmp_path, tokenizer, tasks):
    predictions, n_run = PredictionSet(tmp_path / "p"), []
    n_rows = len(expected_keys(tasks, PLAN))

    def count(job):
        n_run.append(job)
        return False

    with HoldingExecutor(count) as executor:
        engine = WaitingAtTheEnd(
            tokenizer, lambda key, index: PROGRAMS[index], lambda: len(n_run) == n_rows - 1
        )
        run(engine, tasks, predictions, executor)
    assert engine.came, "programs waited for the rest of their prompt"
    assert done_keys(predictions) == expected_keys(tasks, PLAN)


def test_what_is_dropped_makes_room_and_is_not_written(tmp_path, tasks, monkeypatch):
    monkeypatch.setattr("arcnb.search.sampling.scoring.WAITING_ROWS", 2)
    predictions, task = PredictionSet(tmp_path / "p"), tasks[0]
    with Executor(1) as executor:
        made = SampledSet([task], predictions, prompt_format(), Sampling(), part_rows=2)
        scoring = ScoringThread(made, executor, (0, 1), None)

        def put(slot, index):
            row = Prediction(task.task_id, task.fingerprint, slot, index, completion=PROGRAMS[index])
            scoring.put((task.task_id, slot), 2, row)

        with scoring:
            for slot in range(5):
                put(slot, 1)
                scoring.drop((task.task_id, slot))
            put(5, 1)
            put(5, 0)
            put(6, 0)  # never whole
    assert done_keys(predictions) == {(task.task_id, 5, 0, 0), (task.task_id, 5, 1, 0)}


def test_rows_are_the_same_in_whatever_order_the_verdicts_come(tmp_path, tokenizer, tasks):
    def answer(key, index):
        return PROGRAMS[(key[1] + index) % len(PROGRAMS)]

    found, n_rows = [], len(expected_keys(tasks, PLAN))
    for order in range(3):
        predictions = PredictionSet(tmp_path / str(order))
        with HoldingExecutor(lambda job: True, order) as executor:
            held = executor.held
            engine = LettingGo(tokenizer, answer, executor, lambda held=held: len(held) == n_rows)
            run(engine, tasks, predictions, executor)
        assert engine.came
        rows = list(predictions.iter_predictions())
        found.append([(replace(row, seconds=None, cpu_seconds=None), row.fingerprint) for row in rows])
    assert {row.status for row, _ in found[0]} == {"ok", "invalid_output", "error", "syntax"}
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == n_rows
