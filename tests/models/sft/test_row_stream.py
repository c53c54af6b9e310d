"""Rows made while a random model trains."""

import os
import time
from dataclasses import dataclass, replace
from multiprocessing import get_context

import pytest

from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.errors import ArcnbError
from arcnb.models.prompts.format import prompt_format
from arcnb.models.sft.plan import SftPlan
from arcnb.models.sft.row_stream import ENOUGH, RowPlan, RowStream, read_rows, row_stream
from arcnb.models.sft.rows import IGNORED, RowBuilder
from arcnb.models.sft.training import train_sft
from tests.rl.stop_at import StopAt

PROGRAM = "def transform(grid):\n    return grid[::-1]\n"


@dataclass(frozen=True)
class Rounds:
    """Tasks that come round for ever, or break off."""

    tasks: tuple[Task, ...]
    breaks_at: int = 10**9
    dies_at: int = 10**9

    def __iter__(self):
        for i in range(10**9):
            if i == self.breaks_at:
                raise ValueError("task 7 of file x has no grid")
            if i == self.dies_at:
                os._exit(1)
            yield self.tasks[i % len(self.tasks)], i // len(self.tasks)


@pytest.fixture(scope="module")
def tasks():
    everything = load_tasks("arc-agi-1/training")
    small = [t for t in everything if sum(p.input.size + p.output.size for p in t.train) < 250]
    return tuple(replace(task, program=PROGRAM) for task in small[:6])


def builder(model):
    return RowBuilder(model, prompt_format(), seed=0)


PLAN = RowPlan(n_rows=24, max_length=1000, block_rows=8)


def texts(rows):
    return [tuple(row["input_ids"]) for row in rows]


@pytest.mark.long("processes that import torch train twice, and are compared")
def test_the_rows_are_the_same_however_many_processes_make_them(tasks, small_model, tmp_path):
    made = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        with row_stream(
            Rounds(tasks), builder(small_model), folder, replace(PLAN, workers=workers)
        ) as stream:
            made.append(texts(read_rows(str(folder))))
            assert stream.counts()["rows"] == len(made[-1]) == 24
    assert made[0] == made[1]
    assert len(set(made[0])) > 6  # the same task is seen in other views


@pytest.mark.long("processes that import torch train twice, and are compared")
def test_the_end_of_an_earlier_try_is_not_the_end_of_a_longer_one(tasks, small_model, tmp_path):
    for n_rows in (8, 24):
        with row_stream(Rounds(tasks), builder(small_model), tmp_path, replace(PLAN, n_rows=n_rows)):
            assert len(list(read_rows(str(tmp_path)))) == n_rows


@pytest.mark.long("processes that import torch train twice, and are compared")
def test_rows_are_packed_and_put_beside_others_of_their_length(tasks, small_model, tmp_path):
    plan = replace(PLAN, n_rows=8, block_rows=16, batch=4)
    with row_stream(Rounds(tasks), builder(small_model), tmp_path / "a", plan):
        lengths = [len(row["input_ids"]) for row in read_rows(str(tmp_path / "a"))]
    runs = [set(lengths[i : i + 4]) for i in range(0, 16, 4)]
    assert all(max(a) <= min(b) or max(b) <= min(a) for a in runs for b in runs if a is not b)
    plan = replace(plan, n_rows=1, packing=True)
    with row_stream(Rounds(tasks), builder(small_model), tmp_path / "b", plan):
        packed = list(read_rows(str(tmp_path / "b")))
    assert all(len(row["input_ids"]) == sum(row["seq_lengths"]) <= 1000 for row in packed)
    assert sorted(n for row in packed for n in row["seq_lengths"]) == sorted(lengths)


def eight_rows(tasks, model, output):
    return row_stream(Rounds(tasks), builder(model), output / "rows", replace(PLAN, n_rows=8))


def plan_of(model, **changes):
    return SftPlan.of({"model": model.path, "lora_r": 4} | changes)


@pytest.mark.long("processes that import torch train twice, and are compared")
def test_a_resumed_training_reads_the_rows_an_unbroken_one_would_have_read(tasks, small_model, tmp_path):
    plan = plan_of(small_model, max_steps=4, learning_rate=1e-2)
    curves = []
    for stops in ([None], [1, None]):
        output = tmp_path / str(len(stops))
        for stop in stops:
            stopping = [] if stop is None else [StopAt(stop)]
            with row_stream(
                Rounds(tasks), builder(small_model), output / "rows", replace(PLAN, n_rows=8)
            ) as rows:
                report = train_sft(plan, rows, output, callbacks=stopping)
            assert report.status == ("done" if stop is None else "preempted")
        curves.append([row["loss"] for row in report.history if "loss" in row])
    assert len(curves[0]) == 4
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    with eight_rows(tasks, small_model, output) as rows:
        assert train_sft(plan, rows, output).steps == 4, "what is done is not trained a step more"


@pytest.mark.long("processes that import torch train twice, and are compared")
def test_rows_of_an_earlier_try_are_not_taken_for_those_of_other_settings(tasks, small_model, tmp_path):
    shown = []
    for tokens in (1000, 500, 500):
        plan = replace(PLAN, n_rows=8, max_length=tokens)
        with row_stream(Rounds(tasks), builder(small_model), tmp_path, plan):
            shown.append([len(row["input_ids"]) for row in read_rows(str(tmp_path))])
    assert max(shown[0]) > 500 >= max(shown[1])
    assert shown[1] == shown[2]


@pytest.mark.long("processes that import torch train twice, and are compared")
def test_two_processes_share_the_rows(tasks, small_model, tmp_path):
    settings = {"max_steps": 2, "learning_rate": 1.0, "lr_scheduler_type": "constant", "optim": "sgd"}
    curves = []
    for processes, batch in ((1, 4), (2, 2)):
        output = tmp_path / str(processes)
        shape = {"per_device_train_batch_size": batch, "num_processes": processes}
        with row_stream(
            Rounds(tasks), builder(small_model), output / "rows", replace(PLAN, n_rows=8)
        ) as rows:
            report = train_sft(plan_of(small_model, **settings, **shape), rows, output)
        curves.append([row["loss"] for row in report.history if "loss" in row])
    assert len(curves[0]) == 2
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


def test_only_the_program_counts(tasks, small_model, tmp_path):
    from arcnb.models.registry import load_tokenizer

    with row_stream(Rounds(tasks), builder(small_model), tmp_path, replace(PLAN, n_rows=1)):
        row = next(read_rows(str(tmp_path)))
    answer = [label for label in row["labels"] if label != IGNORED]
    tokenizer = load_tokenizer(small_model)
    assert tokenizer.decode(answer) == PROGRAM + "```" + tokenizer.eos_token


@pytest.mark.parametrize(
    ("programs", "breaks", "max_length", "sentence"),
    [
        (False, {}, PLAN.max_length, r"^tasks: none of 2,001 in a row has a program .*\(6 different"),
        (True, {}, 170, r"rows in a row exceed max_length=170; the shortest has \d"),
        (True, {"breaks_at": 3}, PLAN.max_length, "ValueError: task 7 of file x has no grid"),
        (True, {"dies_at": 3}, PLAN.max_length, "the process that makes the rows in .* has died"),
    ],
)
def test_what_goes_wrong_in_the_maker_is_said(
    tasks, small_model, tmp_path, programs, breaks, max_length, sentence
):
    given = tasks if programs else tuple(replace(task, program=None) for task in tasks)
    plan = replace(PLAN, max_length=max_length)
    with (
        pytest.raises(ArcnbError, match=sentence),
        row_stream(Rounds(given, **breaks), builder(small_model), tmp_path, plan),
    ):
        list(read_rows(str(tmp_path)))


@pytest.mark.long("thousands of rows are made")
def test_blocks_that_rows_fill_exactly_are_not_taken_for_fruitless(tasks, small_model, tmp_path):
    plan = replace(PLAN, n_rows=ENOUGH + 200, block_rows=64)
    with row_stream(Rounds(tasks), builder(small_model), tmp_path, plan) as stream:
        assert sum(1 for _ in read_rows(str(tmp_path))) >= plan.n_rows
    assert stream.counts()["too_long"] == {}


def test_a_stream_has_no_end_of_its_own(small_model, tmp_path):
    rows = RowStream(tmp_path / "rows")
    with pytest.raises(ArcnbError, match="max_steps says how long"):
        train_sft(plan_of(small_model, max_steps=-1), rows, tmp_path)


def test_the_maker_ends_with_the_context(tasks, small_model, tmp_path):
    plan = replace(PLAN, n_rows=10**9, workers=2)
    with row_stream(Rounds(tasks), builder(small_model), tmp_path, plan):
        maker = int((tmp_path / "maker.pid").read_text())
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _group_members(maker):
        time.sleep(0.1)
    assert not _group_members(maker)


def hold_a_stream(tasks, model, folder):
    """In a process of its own, until it is killed."""
    with row_stream(Rounds(tasks), builder(model), folder, replace(PLAN, n_rows=10**9, workers=2)):
        time.sleep(300)


@pytest.mark.long("two processes import torch, one after the other")
def test_the_maker_ends_when_the_process_that_wants_the_rows_is_killed(tasks, small_model, tmp_path):
    holder = get_context("spawn").Process(target=hold_a_stream, args=(tasks, small_model, tmp_path))
    holder.start()
    deadline = time.monotonic() + 300
    while not (tmp_path / "00000.parquet").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    maker = int((tmp_path / "maker.pid").read_text())
    holder.kill()
    holder.join()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _group_members(maker):
        time.sleep(0.1)
    assert not _group_members(maker)


def _group_members(group: int) -> list[int]:
    members = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getpgid(int(pid)) == group:
                members.append(int(pid))
        except ProcessLookupError:
            continue
    return members
