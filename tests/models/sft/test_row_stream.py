"""Rows made while a random model trains."""

import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import pytest

from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.machine.beats import beating
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer
from arcnb.models.sft.plan import SftPlan
from arcnb.models.sft.row_stream import ENOUGH, RowPlan, RowStream, _write_blocks, read_rows, row_stream
from arcnb.models.sft.rows import IGNORED, RowBuilder
from arcnb.models.sft.training import train_sft
from arcnb.synth.endless import TaskStream
from arcnb.synth.sources import SourceSettings
from arcnb.synth.splits import LeftOut
from tests.arc_tasks import PROGRAM, taught_tasks
from tests.lab.watching import wait_for
from tests.models.sft.rounds import Rounds, hold_a_stream
from tests.models.sft.test_training import losses
from tests.rl.stop_at import StopAt

PLAN = RowPlan(n_rows=32, max_length=1000, block_rows=16, batch=4)
ENDLESS = replace(PLAN, n_rows=10**9, workers=2)


@pytest.fixture(scope="module")
def tasks():
    return taught_tasks().tasks


@pytest.fixture(scope="module")
def least():
    """A task of which thousands of rows are soon made."""
    pair = {"input": [[1, 2]], "output": [[2, 1]]}
    return replace(Task.from_dict("least", {"train": [pair, pair], "test": [pair]}), program=PROGRAM)


@pytest.fixture(scope="module")
def stream(small_model):
    """stream(tasks, folder, plan): rows of these tasks for the small model, for a `with`."""
    builder = RowBuilder(small_model, prompt_format(), seed=0)
    return lambda tasks, folder, plan, **breaks: row_stream(Rounds(tasks, **breaks), builder, folder, plan)


@pytest.fixture(scope="module")
def folder(tasks, stream, tmp_path_factory):
    """A folder with all rows of PLAN, made by one process."""
    folder = tmp_path_factory.mktemp("rows")
    with stream(tasks, folder, PLAN) as made:
        n = len(list(read_rows(str(folder))))
        assert made.counts()["rows"] == n == 32
    return folder


@pytest.fixture
def earlier(folder, tmp_path):
    """A folder in which an earlier try has made these rows."""
    return shutil.copytree(folder, tmp_path / "earlier")


@pytest.fixture(scope="module")
def made_by_two(tasks, stream, tmp_path_factory):
    """(the first 32 rows that two processes made, the pid of the maker that would go on for ever, the files
    that these processes had mapped)"""
    folder = tmp_path_factory.mktemp("two")
    with stream(tasks, folder, ENDLESS):
        rows = list(islice(read_rows(str(folder)), 32))
        maker = maker_of(folder)

        def maps():
            return [Path(f"/proc/{pid}/maps").read_text() for pid in members(maker)]

        # The quicker of the two may make all 32 before the other has loaded anything.
        wait_for(lambda: sum("tokenizers" in files for files in maps()) == 3)
        mapped = maps()
    return rows, maker, mapped


def texts(rows):
    return [tuple(row["input_ids"]) for row in rows]


def lengths(folder):
    return [len(row["input_ids"]) for row in read_rows(str(folder))]


def test_the_rows_are_the_same_however_many_processes_make_them(folder, made_by_two):
    made = texts(read_rows(str(folder)))
    assert made == texts(made_by_two[0])
    assert len(set(made)) > 6  # the same task is seen in other views


def test_processes_that_only_make_rows_load_no_torch(made_by_two):
    mapped = made_by_two[2]
    assert sum("tokenizers" in files for files in mapped) == 3
    assert not any("libtorch" in files for files in mapped)


def test_the_maker_ends_with_the_context(made_by_two):
    wait_for_the_end(made_by_two[1])


def test_the_end_of_an_earlier_try_is_not_the_end_of_a_longer_one(tasks, stream, earlier):
    before = texts(read_rows(str(earlier)))
    written = [path.stat().st_mtime_ns for path in sorted(earlier.glob("0*.parquet"))]
    with stream(tasks, earlier, replace(PLAN, n_rows=48)):
        rows = texts(read_rows(str(earlier)))
    assert len(rows) == 48
    assert rows[:32] == before
    blocks = sorted(earlier.glob("0*.parquet"))
    assert [path.stat().st_mtime_ns for path in blocks][:2] == written, "they are taken over"


def test_damaged_rows_of_an_earlier_try_are_made_again(tasks, stream, earlier):
    before = texts(read_rows(str(earlier)))
    first, second = (earlier / f"0000{number}.parquet" for number in (0, 1))
    first.write_bytes(first.read_bytes()[:-100])
    second.write_bytes(b"")
    with pytest.raises(ArcnbError, match=f"^{first}: damaged or cut short"):
        next(read_rows(str(earlier)))
    with stream(tasks, earlier, PLAN):
        assert texts(read_rows(str(earlier))) == before


def test_rows_of_an_earlier_try_are_taken_over_by_another_number_of_processes(small_model, tmp_path):
    builder = RowBuilder(small_model, prompt_format(), seed=0)
    plan = RowPlan(8, max_length=1000, block_rows=8)
    written = []
    for n in (1, 2):
        tasks = TaskStream("ladder/lines*3", SourceSettings(workers=n), workers=n)
        with row_stream(tasks, builder, tmp_path, replace(plan, workers=n)):
            written.append((tmp_path / "00000.parquet").stat().st_mtime_ns)
    assert written[0] == written[1]


def test_rows_of_an_earlier_try_are_not_taken_for_those_of_other_settings(tasks, stream, earlier):
    assert max(lengths(earlier)) > 500
    with stream(tasks, earlier, replace(PLAN, n_rows=8, max_length=500)):
        assert max(lengths(earlier)) <= 500


def test_rows_of_an_earlier_try_are_not_taken_for_those_of_edited_files(tasks, small_model, tmp_path):
    template, file = tmp_path / "mine.jinja", tmp_path / "tasks.jsonl"

    def first(said, task):
        template.write_text(f"{{% block user %}}{said} {{{{ test_input }}}}{{% endblock %}}")
        file.write_text(json.dumps({"task_id": "mine", "program": PROGRAM, **task.to_dict()}))
        builder = RowBuilder(small_model, prompt_format(str(template)), seed=0)
        with row_stream(
            TaskStream(str(file), left_out=LeftOut(True)), builder, tmp_path / "rows", PLAN
        ) as stream:
            return tuple(next(read_rows(str(stream.folder)))["input_ids"])

    rows = [first("Mirror", tasks[0]), first("Turn", tasks[0]), first("Turn", tasks[1])]
    assert len(set(rows)) == 3


def test_rows_are_put_beside_others_of_their_length(folder):
    first = lengths(folder)[:16]
    runs = [set(first[i : i + 4]) for i in range(0, 16, 4)]
    assert all(max(a) <= min(b) or max(b) <= min(a) for a in runs for b in runs if a is not b)


def test_rows_are_packed_block_by_block(tasks, stream, folder, tmp_path):
    with stream(tasks, tmp_path, replace(PLAN, n_rows=1, packing=True)):
        packed = list(read_rows(str(tmp_path)))
    assert all(len(row["input_ids"]) == sum(row["seq_lengths"]) <= 1000 for row in packed)
    assert sorted(n for row in packed for n in row["seq_lengths"]) == sorted(lengths(folder)[:16])


def test_only_the_program_counts(folder, small_model):
    row = next(read_rows(str(folder)))
    answer = [label for label in row["labels"] if label != IGNORED]
    tokenizer = load_tokenizer(small_model)
    assert tokenizer.decode(answer) == PROGRAM + "```" + tokenizer.eos_token


def plan_of(model, **changes):
    return SftPlan.of({"model": model.path, "lora_r": 4} | changes)


def test_rows_of_an_earlier_try_are_counted_before_the_maker_is_there_again(
    tasks, small_model, folder, earlier
):
    builder = RowBuilder(small_model, prompt_format(), seed=0)
    with pytest.raises(ValueError, match="task 7"):  # a training that is soon done ends its maker as early
        _write_blocks(Rounds(tasks, breaks_at=PLAN.block_rows), builder, earlier, PLAN)
    assert RowStream(earlier).counts() == RowStream(folder).counts()


@pytest.mark.long("it trains while rows are made, twice")
def test_a_resumed_training_reads_the_rows_an_unbroken_one_would_have_read(
    tasks, stream, folder, small_model, tmp_path
):
    plan = plan_of(small_model, max_steps=4, learning_rate=1e-2)
    whole = train_sft(plan, RowStream(folder), tmp_path / "whole")
    rows, output = tmp_path / "rows", tmp_path / "broken"
    with stream(tasks, rows, PLAN) as coming:
        assert train_sft(plan, coming, output, callbacks=[StopAt(1)]).status == "preempted"
    with stream(tasks, rows, PLAN) as coming:
        resumed = train_sft(plan, coming, output)
    assert (whole.status, resumed.status) == ("done", "done")
    assert len(losses(whole)) == 4
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-4)
    assert train_sft(plan, RowStream(rows), output).steps == 4, "what is done is not trained a step more"


def test_a_stream_has_no_end_of_its_own(folder, small_model, tmp_path):
    with pytest.raises(ArcnbError, match="max_steps says how long"):
        train_sft(plan_of(small_model, max_steps=-1), RowStream(folder), tmp_path)


@pytest.mark.parametrize(
    ("program", "breaks", "max_length", "sentence"),
    [
        (
            None,
            {},
            1000,
            r"^tasks: none of 2,001 in a row .* 1 different ones have no program .* 0 are reserved",
        ),
        (PROGRAM, {}, 100, r"rows in a row exceed max_length=100; the shortest has \d"),
        (PROGRAM, {"breaks_at": 3}, 1000, "ValueError: task 7 of file x has no grid"),
        (PROGRAM, {"dies_at": 3}, 1000, "the process that makes the rows in .* has died"),
    ],
)
def test_what_goes_wrong_in_the_maker_is_said(least, stream, tmp_path, program, breaks, max_length, sentence):
    plan = replace(PLAN, max_length=max_length)
    with (
        pytest.raises(ArcnbError, match=sentence),
        stream((replace(least, program=program),), tmp_path, plan, **breaks),
    ):
        list(read_rows(str(tmp_path)))


def test_reserved_tasks_are_counted_and_refused_where_nothing_else_comes(tasks, stream, tmp_path):
    with stream((None, *tasks[:2], None), tmp_path / "some", replace(PLAN, n_rows=4)) as made:
        assert len(list(read_rows(str(made.folder)))) >= 4
    assert made.counts()["n_reserved"] == 2
    sentence = r"0 different ones have no program .*, 1 are reserved \(train_on_held_out=True takes them\)"
    with pytest.raises(ArcnbError, match=sentence), stream((None,), tmp_path / "none", PLAN):
        pass


def test_blocks_that_rows_fill_exactly_are_not_taken_for_fruitless(least, stream, tmp_path):
    plan = replace(PLAN, n_rows=ENOUGH + 200, block_rows=64)
    with stream((least,), tmp_path, plan) as made:
        assert sum(1 for _ in read_rows(str(tmp_path))) >= plan.n_rows
    assert made.counts()["too_long"] == {}


def test_the_maker_ends_when_the_process_that_wants_the_rows_is_killed(tasks, small_model, tmp_path):
    builder = RowBuilder(small_model, prompt_format(), seed=0)
    given = (Rounds(tasks), builder, tmp_path, ENDLESS)
    holder = get_context("spawn").Process(target=hold_a_stream, args=given)
    holder.start()
    try:
        wait_for(lambda: all((tmp_path / name).exists() for name in ("00000.parquet", "maker.pid")), 300)
        maker = maker_of(tmp_path)
    finally:
        holder.kill()
        holder.join()
    wait_for_the_end(maker)


@pytest.fixture
def elsewhere(monkeypatch):
    """Readers are on another machine, and not patient."""
    monkeypatch.setitem(read_rows.__globals__, "pid_place", lambda: "another machine")
    monkeypatch.setitem(read_rows.__globals__, "LOST_SECONDS", 2.0)


@pytest.mark.parametrize("pid", [os.getpid(), 2**30], ids=["of somebody else", "of nobody"])
def test_a_reader_on_another_machine_waits_for_a_maker_that_lives(folder, tmp_path, elsewhere, pid):
    (tmp_path / "maker.pid").write_text(f"{pid} the first machine")

    def slowly():
        with beating(tmp_path / "maker.alive", seconds=0.1):
            time.sleep(4)
            for name in ("00000.parquet", "00001.parquet", "end"):
                shutil.copy(folder / name, tmp_path)

    maker = threading.Thread(target=slowly)
    maker.start()
    rows = texts(read_rows(str(tmp_path)))
    maker.join()
    assert rows == texts(read_rows(str(folder)))


def test_a_reader_on_another_machine_hears_that_the_maker_died(tasks, stream, tmp_path, request):
    with stream(tasks, tmp_path, ENDLESS):
        request.getfixturevalue("elsewhere")
        sign = (tmp_path / "maker.alive").read_text()
        wait_for(lambda: (tmp_path / "maker.alive").read_text() != sign)
        os.killpg(maker_of(tmp_path), signal.SIGKILL)
        with pytest.raises(ArcnbError, match=r"makes the rows in .* is lost: no sign of it for 2 s"):
            for _ in read_rows(str(tmp_path)):
                pass


def maker_of(folder):
    return int((folder / "maker.pid").read_text().split()[0])


def wait_for_the_end(group):
    """Of all processes of a group."""
    wait_for(lambda: not members(group))


def members(group: int) -> list[int]:
    """The processes of a group."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getpgid(int(pid)) == group:
                found.append(int(pid))
        except ProcessLookupError:
            continue
    return found
