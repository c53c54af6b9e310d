"""What may go wrong around sampling: afterwards the stage is started again and ends with exactly its rows."""

import itertools
import random
import resource
import signal
import time
import tracemalloc
from dataclasses import replace

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.models.sampling.backends import Sampling
from arcnb.programs.executor.executor import Executor
from arcnb.search.sampling.predict import predict
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.search.sampling.sampled_set import SampledSet
from tests.arc_tasks import short_tasks
from tests.lab.watching import wait_for
from tests.search.canned_engine import CannedEngine
from tests.search.sampling.test_predict import done_keys, expected_keys, raw_keys

PLAN = RoundPlan(n_predictions=30, per_prompt=3)


def answer(key, index):
    return f"def transform(grid):\n    return grid * 0 + {index % 10}\n```"


def run(engine, tasks, predictions, executor, plan=PLAN, **settings):
    made = SampledSet(tasks, predictions, prompt_format(), Sampling(), **settings)
    return predict(made, engine, executor, plan)


def shard(model, folder, number, hang_after=-1):
    """A shard in a process of its own, whose engine hangs after so many completions."""
    made = itertools.count()

    def answer_or_hang(key, index):
        if next(made) == hang_after:
            time.sleep(600)
        return answer(key, index)

    plan = replace(PLAN, shard=number, n_shards=2)
    engine = CannedEngine(load_tokenizer(resolve_model(model)), answer_or_hang)
    with Executor(1) as executor:
        run(engine, short_tasks(), PredictionSet(folder), executor, plan, part_rows=6)


def test_shards_run_together_and_one_that_was_killed_is_run_again_alone(tmp_path, small_model, tasks, forked):
    predictions = PredictionSet(tmp_path / "p")
    shards = [(shard, small_model.path, predictions.folder, number) for number in range(2)]
    other, victim = forked(*shards[0]), forked(*shards[1], 40)
    wait_for(lambda: any("shard01" in part.name for part in predictions.parts()) or not victim.is_alive())
    time.sleep(random.uniform(0, 0.2))
    victim.kill()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL, "it was done before the kill"
    other.join(120)
    assert other.exitcode == 0
    incomplete, others = done_keys(predictions), {p for p in predictions.parts() if "shard01" not in p.name}
    assert incomplete < expected_keys(tasks, PLAN)
    again = forked(*shards[1])
    again.join(120)
    assert again.exitcode == 0
    assert sorted(raw_keys(predictions)) == sorted(expected_keys(tasks, PLAN))
    assert {p for p in predictions.parts() if "shard01" not in p.name} == others, "another shard was touched"


def test_a_disk_that_fills_up_ends_the_stage_in_one_sentence_and_it_goes_on_later(
    tmp_path, tokenizer, executor, tasks
):
    predictions = PredictionSet(tmp_path / "p")
    limits, asked = resource.getrlimit(resource.RLIMIT_FSIZE), []

    def fill_the_disk(key, index):
        asked.append(key)
        if len(asked) == 60:  # of 120; no file may grow from here on: refused as on a full disk
            wait_for(predictions.parts)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        return answer(key, index)

    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    engine = CannedEngine(tokenizer, fill_the_disk)
    try:
        with pytest.raises(ArcnbError, match=r"^cannot write .*: File too large; files already"):
            run(engine, tasks, predictions, executor, part_rows=6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert 0 < len(predictions) < len(expected_keys(tasks, PLAN))
    run(CannedEngine(tokenizer, answer), tasks, predictions, executor)
    assert done_keys(predictions) == expected_keys(tasks, PLAN)


def test_an_engine_that_fails_for_good_leaves_what_it_made(tmp_path, tokenizer, executor, tasks):
    predictions = PredictionSet(tmp_path / "p")

    class Failing(CannedEngine):
        def generate(self, requests, sampling):
            for n, completion in enumerate(super().generate(requests, sampling)):
                if n == 70:
                    raise ArcnbError("the vllm engine died twice: out of memory")
                yield completion

    with pytest.raises(ArcnbError, match="died twice: out of memory"):
        run(Failing(tokenizer, answer), tasks, predictions, executor)
    assert 30 < len(predictions) <= 70
    run(CannedEngine(tokenizer, answer), tasks, predictions, executor)
    assert done_keys(predictions) == expected_keys(tasks, PLAN)


BROKEN_TEXTS = ["\ud83d", "a\udc80b\x00c", "\ud83d\ude00", "def transform(grid):\n    return '\ud83d'\n```"]


def test_completions_that_are_no_valid_text_are_kept(tmp_path, tokenizer, executor, tasks):
    predictions = PredictionSet(tmp_path / "p")
    engine = CannedEngine(tokenizer, lambda key, index: BROKEN_TEXTS[index])
    run(engine, tasks[:1], predictions, executor, RoundPlan(n_predictions=4, per_prompt=4))
    texts = [row.completion for row in predictions.iter_predictions()]
    kept = ["\ufffd", "a\ufffdb\x00c", "\U0001f600", "def transform(grid):\n    return '\ufffd'\n```"]
    assert texts == kept
    assert all(row.status != "ok" for row in predictions.iter_predictions())


def test_slow_programs_do_not_hold_up_the_engine(tmp_path, tokenizer, executor, tasks):
    predictions = PredictionSet(tmp_path / "p")
    slow = "import time\ndef transform(grid):\n    time.sleep(0.01)\n    return grid\n```"
    written = []

    class Watching(CannedEngine):
        def generate(self, requests, sampling):
            yield from super().generate(requests, sampling)
            written.append(len(predictions))

    report = run(Watching(tokenizer, lambda key, index: slow), tasks, predictions, executor, part_rows=1)
    assert written[0] < len(expected_keys(tasks, PLAN)), "the engine had to wait for the programs"
    n_grids = sum(len(task.train) + len(task.test) for task in tasks)
    assert report.program_seconds > 0.01 * n_grids, "it ran once for every task"
    assert done_keys(predictions) == expected_keys(tasks, PLAN)


BYTES_A_ROW = 1000  # the peak goes up by 300 to 550 and levels off; rows that are kept add 2,000 and more


def peak_memory(tokenizer, executor, tasks, folder, n_rounds):
    """Bytes that Python held at most during a stage of so many rounds."""
    plan = RoundPlan(n_predictions=4 * n_rounds, per_prompt=4)
    tracemalloc.start()
    run(CannedEngine(tokenizer, answer), tasks, PredictionSet(folder), executor, plan, part_rows=32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_number_of_rounds(tmp_path, tokenizer, executor, tasks, monkeypatch):
    # What is bounded by design, made small enough to be full soon.
    monkeypatch.setattr("arcnb.search.sampling.scoring.WAITING_ROWS", 32)
    monkeypatch.setattr("arcnb.programs.executor.service.REMEMBERED", 16)
    monkeypatch.setattr("arcnb.search.sampling.stage.PROMPTS_AHEAD", 2)
    monkeypatch.setattr("arcnb.search.sampling.stage.PROMPTS_TOGETHER", 1)
    peak_memory(tokenizer, executor, tasks, tmp_path / "first", 4)  # imports and caches
    few = peak_memory(tokenizer, executor, tasks, tmp_path / "few", 12)
    bounded = few + 36 * 4 * len(tasks) * BYTES_A_ROW
    for attempt in range(3):  # a busy machine makes more wait at times; what grows grows each time
        many = peak_memory(tokenizer, executor, tasks, tmp_path / f"many {attempt}", 48)
        if many < bounded:
            break
    assert many < bounded
