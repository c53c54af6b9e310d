"""The service itself: one answer a job whatever dies, nothing left behind, usable from anywhere."""

# ruff: noqa: E501 (the programs' lines are theirs)

import asyncio
import contextlib
import itertools
import os
import pickle
import queue
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from arcnb.errors import ArcnbError
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.lanes import Ticket
from arcnb.programs.executor.limits import Job, Limits
from arcnb.programs.executor.pool import MAX_FAILED_STARTS, PATIENCE
from arcnb.programs.executor.service import MAX_LOSSES
from tests.lab.watching import wait_for
from tests.paths import ROOT

GRID = np.arange(12, dtype=np.uint8).reshape(3, 4) % 10
GRIDS = (GRID, GRID.T.copy())
SERVER = b"arcnb-programs"  # in a server's command line
ROOMY = Limits(seconds=30, seconds_per_input=20)


def program(number: int) -> str:
    """A program that answers with its number."""
    return f"def transform(grid):\n    return [[int(d) for d in '{number:06d}']]"


def answer(execution) -> int:
    assert execution.status == "ok", execution
    assert len(execution.outputs) == 2
    return int("".join(map(str, execution.outputs[0][0])))


def descendants(pid: int | None = None) -> set[int]:
    """Processes below ``pid`` (default: us), zombies included."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid or os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid or os.getpid()}


def servers() -> set[int]:
    """Our own children, not theirs, who come and go."""
    return {pid for pid in descendants() if SERVER in _command(pid) and _parent(pid) == os.getpid()}


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def executor():
    with Executor(workers=2, limits=ROOMY) as executor:
        yield executor


# ---------------------------------------------------------------- answers


def test_answers_come_in_the_order_of_the_jobs(executor):
    jobs = [Job(program(n), GRIDS, key=n) for n in range(200)]
    executions = list(executor.run(jobs))
    assert [execution.key for execution in executions] == list(range(200))
    assert [answer(execution) for execution in executions] == list(range(200))


def test_answers_come_as_they_are_ready_when_order_is_not_asked(executor):
    slow = "import time\ndef transform(grid):\n    time.sleep(2)\n    return [[0] * 6]"
    jobs = [Job(slow, GRIDS[:1], key=-1)] + [Job(program(n), GRIDS, key=n) for n in range(1000, 1040)]
    keys = [execution.key for execution in executor.run(jobs, ordered=False)]
    assert sorted(keys) == sorted(job.key for job in jobs)
    assert keys[0] != -1


def test_endless_streams_are_taken_only_as_far_as_they_are_consumed(executor):
    taken = 0

    def jobs():
        nonlocal taken
        for n in itertools.count():
            taken += 1
            yield Job(program(n % 50), GRIDS, key=n)

    stream = executor.run(jobs())
    assert [next(stream).key for _ in range(20)] == list(range(20))
    assert taken <= 4096 + 20
    stream.close()


def test_large_programs_are_taken_ahead_in_smaller_numbers(executor, monkeypatch):
    monkeypatch.setattr("arcnb.programs.executor.executor.WINDOW_SIZE", 2500)
    first = "import time\ntime.sleep(0.3)\n"  # so that no answer is there before others are asked for
    taken = []
    jobs = (
        taken.append(n) or Job((first if n == 0 else "") + program(n).ljust(1000), GRIDS) for n in range(9)
    )
    assert next((answer(execution), len(taken)) for execution in executor.run(jobs)) == (0, 3)


def test_a_verdict_that_is_remembered_holds_no_program():
    one, same, other = (
        Ticket(b"#" * 10**6, [b"\1\1" + cell], ROOMY, "numpy", []) for cell in (b"0", b"0", b"1")
    )
    assert one.identity == same.identity != other.identity
    assert len(pickle.dumps(one.identity)) < 1000


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_finished_is_given_before_more_is_taken(executor, ordered):
    given = []

    def jobs():
        for n in range(4):
            yield Job(program(40_000 + n), GRIDS)
            assert len(given) >= n, "it was finished before the last job was taken"
            executor.submit(Job(program(40_000 + n), GRIDS)).result()  # who asked first is told first

    for execution in executor.run(jobs(), ordered):
        given.append(execution)
    assert len(given) == 4


def test_what_a_source_raises_comes_behind_the_answers_to_its_jobs(executor):
    def jobs():
        yield from (Job(program(41_000 + n), GRIDS) for n in range(5))
        raise LookupError("no more")

    stream, answers = executor.run(jobs()), []
    with pytest.raises(LookupError, match="no more"):
        answers.extend(map(answer, stream))  # takes what there is first
    assert list(stream) == []
    assert answers == list(range(41_000, 41_005))


@pytest.mark.parametrize("how", ["break", "error", "close"])
def test_who_leaves_a_stream_early_leaves_no_programs_behind(how):
    """But those that a server has in hand; another who asked for one of them has its answer."""
    jobs = [Job(program(1), GRIDS), *(endless(n) for n in range(300)), Job(program(2), GRIDS)]
    with Executor(workers=1, limits=ROOMY) as executor:
        stream = executor.run(iter(jobs))
        assert answer(next(stream)) == 1
        wait_for(lambda: len(executor._service._flying) >= 300)
        other = executor.submit(Job(program(2), GRIDS))
        if how == "error":
            with pytest.raises(KeyboardInterrupt):
                stream.throw(KeyboardInterrupt)
        elif how == "break":
            del stream
        else:
            stream.close()
        assert answer(other.result()) == 2
        wait_for(lambda: len(executor._service._flying) <= 8 + 1, 30)  # of a minute each
        assert answer(executor.submit(Job(program(3), GRIDS)).result()) == 3


def test_no_program_is_a_verdict(executor):
    for nothing in (None, "", "  \n"):
        assert executor.submit(Job(nothing, GRIDS, key=5)).result().status == "no_code"


def test_identical_jobs_are_executed_once(executor):
    drawn = "import os\ndef transform(grid):\n    return [[b % 10 for b in os.urandom(20)]]"
    executions = list(executor.run(Job(drawn, GRIDS, key=n) for n in range(20)))
    assert [execution.key for execution in executions] == list(range(20))
    assert len({execution.outputs[0].tobytes() for execution in executions}) == 1
    other = executor.submit(Job(drawn, GRIDS, Limits(seconds=29))).result()
    assert other.outputs[0].tobytes() != executions[0].outputs[0].tobytes()


def test_the_time_of_programs_counts_every_run_and_no_known_verdict():
    slow = (
        "import time\ndef transform(grid):\n    end = time.process_time() + 0.1\n"
        "    while time.process_time() < end: pass\n    return grid"
    )
    with Executor(workers=2) as executor:
        assert executor.program_seconds == 0
        first = executor.submit(Job(slow, GRIDS)).result()
        spent = executor.program_seconds
        assert spent > first.seconds, "it is handed back as slow, and run again"
        assert [one.seconds for one in executor.run([Job(slow, GRIDS)] * 3)] == [first.seconds] * 3
        assert executor.program_seconds == spent


def test_what_was_measured_comes_back(executor):
    busy = "import time\nimport numpy as np\ndef transform(grid):\n    big = np.ones(10**7)\n    time.sleep(0.1)\n    return grid"
    execution = executor.submit(Job(busy, GRIDS)).result()
    assert execution.status == "ok"
    assert execution.seconds >= 0.2
    assert 0 < execution.cpu_seconds < execution.seconds
    assert 70 < execution.memory_mb < 200


def test_an_error_names_its_line(executor):
    source = "import numpy as np\ndef helper(g):\n    return g[100]\n\ndef transform(grid):\n    return helper(grid)"
    execution = executor.submit(Job(source, GRIDS)).result()
    assert (execution.status, execution.error_type, execution.error_line) == ("error", "IndexError", 3)
    assert "100" in execution.error_message


def test_a_syntax_error_names_its_line(executor):
    execution = executor.submit(Job("x = 1\ndef transform(grid)\n    return grid", GRIDS)).result()
    assert (execution.status, execution.error_type, execution.error_line) == ("syntax", "SyntaxError", 2)


def test_whole_floats_are_integers(executor):
    execution = executor.submit(Job("def transform(grid):\n    return (grid * 1.0).tolist()", GRIDS)).result()
    assert execution.outputs[0].tolist() == GRID.tolist()
    assert execution.outputs[0].dtype == np.uint8


# ---------------------------------------------------------------- limits

BUSY = 30  # seconds by the clock that a machine busy elsewhere may take for what takes a fraction of one


def late(what: str, limit: float) -> tuple[str, str]:
    """What is said of a program that is late: where it had a processor, and where others had them."""
    return f"{what} took longer than {limit:g} s", f"{what} took longer than {3 * limit:g} s by the clock"


def test_a_fraction_of_a_second_is_a_limit_for_one_input(executor):
    source = "def transform(grid):\n    while grid[0, 0] == 0: pass"
    execution = executor.submit(Job(source, GRIDS, Limits(seconds=60, seconds_per_input=0.25))).result()
    assert execution.status == "timeout"
    assert execution.seconds >= 0.25
    assert execution.cpu_seconds < 3.0
    assert execution.error_message in late("input 1 of 2", 0.25)


def test_milliseconds_are_a_limit_for_one_input():
    source = "def transform(grid):\n    s = 0\n    for i in range(2000000): s += i\n    return grid\n# "
    limits = Limits(seconds=5, seconds_per_input=0.002)
    with Executor(workers=1) as executor:
        jobs = [Job(source + str(n), GRIDS, limits) for n in range(20)]
        assert {execution.status for execution in executor.run(jobs)} == {"timeout"}


def test_a_fraction_of_a_second_is_a_limit_for_all_inputs(executor):
    source = "import time\ndef transform(grid):\n    end = time.process_time() + 0.05\n"
    source += "    while time.process_time() < end: pass\n    return grid"
    execution = executor.submit(Job(source, GRIDS * 20, Limits(seconds=0.7, seconds_per_input=0.6))).result()
    assert execution.status == "timeout"
    assert execution.seconds >= 0.7
    assert execution.cpu_seconds < 1.2
    assert execution.error_message in late("the program", 0.7)


@pytest.mark.parametrize(("seconds", "what"), [(5.0, "input 1 of 2"), (0.1, "the program")])
def test_a_program_that_sleeps_has_three_times_its_limit(executor, seconds, what):
    source = "import time\ndef transform(grid):\n    time.sleep(60)"
    execution = executor.submit(Job(source, GRIDS, Limits(seconds, 0.1))).result()
    assert (execution.status, execution.cpu_seconds < 0.1) == ("timeout", True)
    assert execution.error_message == f"{what} took longer than 0.3 s by the clock"


def test_what_took_too_long_by_the_clock_is_asked_again():
    """The machine may have been busy elsewhere, or asleep; too much processor time is the program's own."""
    naps = "import time\ndef transform(grid):\n    time.sleep(60)"
    busy = "def transform(grid):\n    while True: pass"
    with Executor(workers=1, limits=Limits(60, 0.05)) as executor:
        for source, again in ((naps, True), (busy, False)):
            first = executor.submit(Job(source, GRIDS)).result()
            assert first.status == "timeout"
            again = again or first.error_message.endswith("by the clock")
            spent = executor.program_seconds
            executor.submit(Job(source, GRIDS)).result()
            assert (executor.program_seconds > spent) == again


def endless(number: int) -> Job:
    """A program that goes on for a minute, or until its executor closes."""
    return Job(f"def transform(grid):\n    while True: {number}", GRIDS, Limits(60, 60))


def test_quick_programs_do_not_wait_for_endless_ones():
    with Executor(workers=2, limits=ROOMY) as executor:
        loops = [executor.submit(endless(n)) for n in range(4)]
        quick = [answer(e) for e in executor.run(Job(program(5000 + n), GRIDS) for n in range(100))]
        assert not any(loop.done() for loop in loops)
    assert quick == list(range(5000, 5100))


def test_quick_programs_do_not_wait_for_endless_ones_in_the_same_stream():
    jobs = [endless(n) if n % 10 == 0 else Job(program(7000 + n), GRIDS) for n in range(60)]
    with Executor(workers=2, limits=ROOMY) as executor:
        stream = executor.run(jobs, ordered=False)
        quick = [answer(execution) for execution in itertools.islice(stream, 54)]
    assert sorted(quick) == [7000 + n for n in range(60) if n % 10]


CLOSING = "import os, time\ndef transform(grid):\n    os.close(3)\n    {}\n# {}"


@pytest.mark.parametrize(
    "going_on", ["while True: pass", "time.sleep(60)", "open('/dev/null')\n    return grid"]
)
def test_a_program_that_closes_its_pipe_is_a_crash_within_its_own_limit(executor, going_on):
    limits = Limits(seconds=60, seconds_per_input=60)
    execution = executor.submit(Job(CLOSING.format(going_on, 0), GRIDS, limits)).result()
    assert execution.status == "crashed"
    assert execution.cpu_seconds < 1.2
    assert execution.seconds < BUSY


def test_programs_that_close_their_pipes_hold_up_no_honest_one():
    """What twenty of them cost is what twenty endless loops cost that are stopped when patience ends."""
    limits = Limits(seconds=200, seconds_per_input=200)
    with Executor(workers=1, limits=limits) as executor:
        answer(executor.submit(Job(program(1), GRIDS)).result())
        going_on = ["while True: pass", "time.sleep(60)"]
        jobs = [Job(CLOSING.format(going_on[n % 2], n), GRIDS, key="closing") for n in range(20)]
        jobs += [Job(program(100 + n), GRIDS, key="honest") for n in range(20)]
        start, keys = time.monotonic(), []
        for execution in executor.run(jobs, ordered=False):
            keys.append(execution.key)
            if execution.key == "honest":
                last = time.monotonic() - start
            else:
                assert (execution.status, execution.error_type) == ("crashed", "ClosedPipe")
    assert set(keys[20:]) == {"closing"}
    assert last < 20 * 5  # a fortieth of what their limits allow; patience ends after 0.05 s


def test_all_grids_together_may_take_as_long_as_one():
    assert Limits.by_grid(0.5, memory_mb=64) == Limits(5.0, 0.5, 64)
    assert Limits.by_grid(8.0) == Limits(8.0, 8.0)


@pytest.mark.parametrize("name", ["seconds", "seconds_per_input", "memory_mb", "output_mb"])
@pytest.mark.parametrize("value", [0, -1, True, "5", float("nan")])
def test_impossible_limits_are_refused_by_name(name, value):
    with pytest.raises(ArcnbError, match=name):
        Limits(**{name: value})


def test_more_output_than_a_message_can_say_is_refused():
    with pytest.raises(ArcnbError, match="output_mb must be a number above 0 and below 4,096"):
        Limits(output_mb=5000)


def test_a_forged_answer_hides_no_time():
    forged = (
        "import os, time\nfrom arcnb.programs import wire\ndef transform(grid):\n"
        "    end = time.process_time() + 0.3\n    while time.process_time() < end: pass\n"
        "    os.write(3, wire.encode_record(0, 'ok', [b'\\x01\\x01\\xff']))\n    os._exit(0)"
    )
    with Executor(1) as executor:
        (execution,) = executor.run([Job(forged, GRIDS[:1])])
    assert (execution.status, execution.error_type) == ("crashed", "BadMessage")
    assert execution.cpu_seconds >= 0.3
    assert execution.seconds >= 0.3


@pytest.mark.parametrize(
    "inputs",
    [
        (),
        (np.zeros((0, 3), int),),
        (np.zeros((31, 3), int),),
        (np.zeros(3, int),),
        (GRID + 0.0,),
        (GRID + 9,),
        ([[1, 2], [3]],),
        (None,),
        None,
        7,
    ],
)
def test_inputs_that_are_no_grids_are_refused(executor, inputs):
    with pytest.raises(ArcnbError, match="job 'k'"):
        executor.submit(Job("def transform(grid):\n    return grid", inputs, key="k"))


@pytest.mark.parametrize("source", [7, b"def transform(grid): return grid", ["a"]])
def test_a_program_that_is_no_text_is_refused(executor, source):
    with pytest.raises(ArcnbError, match=f"job 'k': the program must be text, got {type(source).__name__}"):
        executor.submit(Job(source, GRIDS, key="k"))


def test_jobs_and_executions_are_equal_to_themselves_alone(executor):
    one, same = Job(program(1), GRIDS), Job(program(1), GRIDS)
    answers = list(executor.run([one, same]))
    for pair in ([one, same], answers):
        assert len(set(pair)) == 2
        assert pair[0] == pair[0] != pair[1]


# Each leaves less free memory than it takes to say so.
BOMBS = {
    "a chain of tuples": "a = None\n    while True: a = (a,)",
    "small arrays": "kept = []\n    while True: kept.append(np.zeros(3))",
    "grids in a queue": (
        "from collections import deque\n    queue = deque([grid])\n    while queue:\n"
        "        first = queue.popleft()\n        queue.extend(first.copy() for _ in range(4))"
    ),
    "texts": "kept = []\n    while True: kept.append('x' * 50 + str(len(kept)))",
    "frames": "import sys\n    sys.setrecursionlimit(10**8)\n    def f(n): return f(n + 1) + 1\n    return f(0)",
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_program_that_uses_up_its_memory_in_small_pieces_is_out_of_memory(executor, what):
    source = f"import numpy as np\ndef transform(grid):\n    {BOMBS[what]}\n# "
    limits = Limits(60, 60, memory_mb=96)
    for n in range(4):
        execution = executor.submit(Job(source + str(n), GRIDS, limits)).result()
        assert execution.status == "memory", execution


# ---------------------------------------------------------------- anywhere


def test_an_executor_can_be_closed_in_a_callback(caplog):
    before = descendants()
    executor = Executor(workers=1, limits=ROOMY)
    first, waiting = executor.submit(Job(program(1), GRIDS)), executor.submit(endless(1))
    first.add_done_callback(lambda _: executor.close())
    with pytest.raises(CancelledError):
        waiting.result(timeout=50)
    assert answer(first.result()) == 1
    wait_for(lambda: descendants() == before)
    assert not caplog.records, "futures log what a callback raises"
    executor.close()


class _Failure(BaseException):
    pass


def test_a_callback_that_fails_costs_nobody_else_an_answer(executor, caplog):
    def fail(_: object) -> None:
        raise _Failure("on purpose")

    futures = [executor.submit(Job(CLOSING.format("time.sleep(0)", 7), GRIDS)) for _ in range(3)]
    futures[0].add_done_callback(fail)
    assert {future.result(timeout=60).status for future in futures} == {"crashed"}
    assert answer(executor.submit(Job(program(42_000), GRIDS)).result()) == 42_000
    assert "on purpose" in caplog.text


def test_many_threads_share_one_executor(executor):
    def ask(start: int) -> list[int]:
        return [answer(executor.submit(Job(program(start + n), GRIDS)).result()) for n in range(25)]

    with ThreadPoolExecutor(8) as threads:
        starts = range(10000, 10000 + 8 * 100, 100)
        for start, answers in zip(starts, threads.map(ask, starts), strict=True):
            assert answers == list(range(start, start + 25))


def test_it_works_inside_a_running_event_loop(executor):
    async def ask() -> list[int]:
        futures = [asyncio.wrap_future(executor.submit(Job(program(20000 + n), GRIDS))) for n in range(20)]
        return [answer(execution) for execution in await asyncio.gather(*futures)]

    assert asyncio.run(ask()) == list(range(20000, 20020))


def test_it_starts_in_a_thread_that_ends_and_goes_on():
    with Executor(workers=1, limits=ROOMY) as executor:
        first: list[int] = []
        thread = threading.Thread(
            target=lambda: first.append(answer(executor.submit(Job(program(1), GRIDS)).result()))
        )
        thread.start()
        thread.join()
        before = servers()
        time.sleep(0.3)
        assert answer(executor.submit(Job(program(2), GRIDS)).result()) == 2
        assert servers() == before, "the server died with the thread that started it"
        assert first == [1]


def test_a_fork_of_us_starts_servers_of_its_own(executor):
    assert answer(executor.submit(Job(program(3), GRIDS)).result()) == 3
    pid = os.fork()
    if pid == 0:
        right = False
        with contextlib.suppress(BaseException):
            right = answer(executor.submit(Job(program(30001), GRIDS)).result(30)) == 30001
            executor.close()
        os._exit(0 if right else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert answer(executor.submit(Job(program(30002), GRIDS)).result()) == 30002


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("shared", [False, True])
def test_no_result_is_lost_or_doubled_when_our_processes_are_killed(shared):
    rng, executions = random.Random(7), []
    total = 6000 if shared else 600
    with Executor(workers=2, limits=ROOMY, shared=shared) as executor:
        jobs = [Job(program(n), GRIDS, key=n) for n in range(total)]
        for execution in executor.run(jobs, ordered=False):
            if len(executions) % (total // 4) == total // 40:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(sorted(descendants())), signal.SIGKILL)
            executions.append(execution)
    assert sorted(execution.key for execution in executions) == list(range(total))
    assert all(answer(execution) == execution.key for execution in executions)


@pytest.fixture
def patient(monkeypatch):
    """No program is handed back as slow, however busy this machine is."""
    for lane in PATIENCE:
        monkeypatch.setitem(PATIENCE, lane, 0.0)


SENT = ["SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2"]


@pytest.mark.parametrize("name", SENT)
def test_a_killed_child_is_run_again(patient, name):
    """Not SIGINT by Python's own handler, nor what the sandbox ignores: the program asks for the plain one."""
    slow = f"import signal\nsignal.signal(signal.{name}, signal.SIG_DFL)\n" if name != "SIGKILL" else ""
    slow += "import time\ndef transform(grid):\n    time.sleep(0.5)\n    return [[0, 0, 0, 0, 4, 2]]"
    others = servers()
    with Executor(workers=1, limits=ROOMY) as executor:
        answer(executor.submit(Job(program(1), GRIDS)).result())
        (server,) = servers() - others
        future = executor.submit(Job(slow, GRIDS))
        (child,) = wait_for(lambda: {pid for pid in descendants(server) if _dies_of(pid, name)})
        os.kill(child, getattr(signal, name))
        assert answer(future.result()) == 42
        assert executor._service.pool.servers[0].process.pid == server


def _dies_of(pid: int, name: str) -> bool:
    """Whether this child's program has begun, so that it neither ignores nor handles the signal."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        masks = [int(line.split()[1], 16) for line in status.splitlines() if line[:6] in ("SigIgn", "SigCgt")]
        return not any(mask >> (getattr(signal, name) - 1) & 1 for mask in masks)
    return False


OWN_SIGNALS = {
    **{f"os.kill(os.getpid(), signal.{name})": "unsafe" for name in SENT},
    **{f"signal.raise_signal(signal.{name})": "unsafe" for name in SENT},
    "os.abort()": "crashed",
    "signal.setitimer(signal.ITIMER_REAL, 0.01)": "error",
    "signal.alarm(1); time.sleep(60)": "timeout",
}


@pytest.mark.parametrize("line", OWN_SIGNALS)
def test_no_program_passes_a_signal_of_its_own_off_as_a_kill_from_outside(executor, line):
    source = f"import os, signal, time\ndef transform(grid):\n    {line}\n    return [[7]]"
    execution = executor.submit(Job(source, GRIDS, Limits(60, 0.2))).result()
    assert execution.status == OWN_SIGNALS[line], execution
    assert "killed" not in (execution.error_message or "")


def test_a_child_that_is_killed_while_it_writes_is_run_again(patient):
    """By then its server has part of an answer."""
    half = (
        "import os, time\nfrom arcnb.programs import wire\ndef transform(grid):\n"
        "    os.write(3, wire.encode_record(0, 'ok', [b'\\x01\\x01\\x07'])[:-1])\n    time.sleep(60)"
    )
    others = servers()
    with Executor(workers=1, limits=ROOMY) as executor:
        answer(executor.submit(Job(program(1), GRIDS)).result())
        (server,) = servers() - others
        future = executor.submit(Job(half, GRIDS))

        def kill_again():
            for child in descendants(server):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            return future.done()

        wait_for(kill_again)
        assert future.result().error_type == "SIGKILL", "not a message that is no record"


def test_a_program_whose_process_is_always_killed_is_a_crash(patient):
    """So ends one on a machine that has less memory than it may take."""
    others = servers()
    with Executor(workers=1, limits=ROOMY) as executor:
        answer(executor.submit(Job(program(1), GRIDS)).result())
        (server,) = servers() - others
        future, killed = executor.submit(endless(1)), set()

        def kill_again():
            for child in descendants(server) - killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                killed.add(child)
            return future.done() or len(killed) > 2 * MAX_LOSSES

        wait_for(kill_again)
        assert future.done(), f"no verdict after {len(killed)} kills"
        execution = future.result()
        assert (execution.status, execution.error_type) == ("crashed", "SIGKILL")
        assert "killed 10 times, as where a machine runs out of memory" in execution.error_message
        assert len(killed) == MAX_LOSSES


# ---------------------------------------------------------------- programs of our own that share


def test_what_one_of_our_own_programs_does_to_its_process_costs_no_other_its_answer():
    """Endless ones, bombs and crashes leave the shared process; those after them go on in a new one."""
    ends = {
        "while True: pass": "timeout",
        "return [0] * 10**10": "memory",
        "os._exit(3)": "crashed",
        "raise ValueError": "error",
        "return None": "invalid_output",
    }
    limits = Limits(seconds=1, seconds_per_input=1)
    jobs = []
    for n, (line, _) in enumerate(list(ends.items()) * 2):
        jobs += [Job(program(100 * n + k), GRIDS, ROOMY, key=100 * n + k) for k in range(30)]
        jobs.append(Job(f"import os\ndef transform(grid):\n    {line}\n# {n}", GRIDS, limits, key=line))
    with Executor(workers=1, shared=True) as executor:
        for job, execution in zip(jobs, executor.run(jobs), strict=True):
            assert execution.key == job.key
            if isinstance(job.key, int):
                assert answer(execution) == job.key
            else:
                assert execution.status == ends[job.key], execution


# ---------------------------------------------------------------- nothing left


def test_close_ends_every_process_and_fails_what_waits():
    before = descendants()
    executor = Executor(workers=2, limits=ROOMY)
    futures = [
        executor.submit(Job(f"def transform(grid):\n    while True: pass\n# {n}", GRIDS)) for n in range(6)
    ]
    time.sleep(0.5)
    executor.close()
    assert descendants() == before
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(timeout=0)
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(Job(program(1), GRIDS))
    executor.close()


def test_a_job_that_comes_while_the_executor_closes_is_answered():
    executor = Executor(workers=1, limits=ROOMY)
    answer(executor.submit(Job(program(1), GRIDS)).result())
    closing = threading.Thread(target=executor.close)

    class Inbox(deque):
        def append(self, ticket):
            closing.start()
            closing.join(2)  # longer than closing takes, were it not held up
            super().append(ticket)

    executor._service._inbox = Inbox()
    late = executor.submit(Job(program(2), GRIDS))
    with contextlib.suppress(CancelledError):  # it may be taken just before
        assert answer(late.result(timeout=60)) == 2
    closing.join()


def test_an_executor_that_is_forgotten_ends_its_processes():
    before = descendants()
    executor = Executor(workers=1)
    answer(executor.submit(Job(program(1), GRIDS)).result())
    assert descendants() > before
    del executor
    assert descendants() == before


CALLER = """
import sys, time, os
import numpy as np
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job, Limits
from arcnb.programs.executor.pool import MAX_FAILED_STARTS
executor = Executor(workers=2, limits=Limits(seconds=60, seconds_per_input=60))
grid = np.ones((2, 2), dtype=np.uint8)
executor.submit(Job("def transform(grid):\\n    return grid", (grid,))).result()
for n in range(4):
    executor.submit(Job(f"def transform(grid):\\n    while True: pass\\n# {n}", (grid,)))
time.sleep(0.3)
if sys.argv[1] == "fork":
    if os.fork() == 0:
        time.sleep(8)  # holds a copy of every descriptor
        os._exit(0)
print("ready", flush=True)
if sys.argv[1] == "exit":
    sys.exit(0)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["kill", "exit", "fork"])
def test_no_process_survives_the_caller(tmp_path, how):
    script = tmp_path / "caller.py"
    script.write_text(CALLER)
    root = str(ROOT)
    caller = subprocess.Popen(
        [sys.executable, str(script), how],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert caller.stdout.readline() == "ready\n"
    ours = set()
    if how != "exit":

        def both():
            ours.update(pid for pid in descendants(caller.pid) if SERVER in _command(pid))
            return len(ours) >= 2

        wait_for(both)
        caller.send_signal(signal.SIGKILL)
    caller.wait(timeout=120)
    wait_for(lambda: not any(_command(pid) for pid in ours))


def _command(pid: int) -> bytes:
    """The command line of a process that is still alive."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def state_of(pids: set[int]) -> tuple[int, int]:
    """The most descriptors and resident KB of these servers, once their last children are gone."""
    wait_for(lambda: not any(descendants(pid) for pid in pids))
    time.sleep(0.1)
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    descriptors = max(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
    return descriptors, max(int(status.split("VmRSS:")[1].split()[0]) for status in statuses)


@pytest.mark.parametrize(
    "total",
    [
        1000,
        pytest.param(
            100_000,
            marks=[
                pytest.mark.repetition,
                pytest.mark.long("a hundred thousand programs"),
                pytest.mark.timeout(3600),
            ],
        ),
    ],
)
def test_many_programs_leak_neither_descriptors_nor_processes_nor_memory_nor_files(
    monkeypatch, tmp_path, total
):
    def held() -> tuple[int, int]:
        """Our descriptors, without those of the servers, and our resident memory in kB."""
        status = Path("/proc/self/status").read_text()
        descriptors = len(os.listdir("/proc/self/fd")) - 2 * len(servers())
        return descriptors, int(status.split("VmRSS:")[1].split()[0])

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = descendants()
    with Executor(workers=2, limits=ROOMY) as executor:
        warm = [Job(program(n), GRIDS) for n in range(200)]
        assert all(e.status == "ok" for e in executor.run(warm))
        (descriptors, memory), (ours, our_memory) = state_of(servers() - before), held()
        jobs = (Job(program(1000 + n), GRIDS) for n in range(total))
        assert sum(answer(e) for e in executor.run(jobs)) == sum(range(1000, 1000 + total))
        assert held()[0] == ours
        assert held()[1] < our_memory + 40_000, "more than the verdicts that are remembered"
        started = servers() - before
        assert descendants() - before == started
        assert len(started) <= 4, "two at work and one for each that had to wait as slow"
        descriptors_after, memory_after = state_of(started)
        assert descriptors_after == descriptors
        assert memory_after < memory + 3000
        assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- other surroundings


def run_script(source: str, prefix: list[str] = (), **environment: str) -> subprocess.CompletedProcess:
    root = str(ROOT)
    return subprocess.run(
        [*prefix, sys.executable, "-W", "always", "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env=os.environ | {"PYTHONPATH": root} | environment,
    )


def test_importing_the_executor_is_quick_and_loads_no_scipy():
    result = run_script(
        """
        import numpy, sys, time
        start = time.process_time()
        import arcnb.programs.executor.executor
        print(time.process_time() - start, "scipy" in sys.modules)
        """
    )
    seconds, scipy = result.stdout.split()
    assert scipy == "False"
    assert float(seconds) < 0.5  # of a processor; it takes 0.03


def test_an_ordinary_user_is_protected_as_well():
    if os.getuid() != 0:
        pytest.skip("we are an ordinary user, so every other test shows it")
    prefix = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if run_script("import sys; print(sys.base_prefix)", prefix).stdout.strip() != sys.base_prefix:
        # The interpreter lies in a closed home: let the test read it, and nothing more.
        prefix += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    if run_script("import sys; print(sys.base_prefix)", prefix).stdout.strip() != sys.base_prefix:
        pytest.skip("no way to run this interpreter as another user")
    result = run_script(
        """
        import os
        import numpy as np
        from arcnb.programs.executor.executor import Executor
        from arcnb.programs.executor.limits import Job
        grids = (np.ones((2, 2), dtype=np.uint8),) * 2
        tries = ["open('/etc/passwd')", "os.fork()", "os.kill(os.getppid(), 9)", "open('/tmp/arcnb-attack', 'w')",
                 "os.execv('/bin/true', ['true'])"]
        honest = "from common import *\\ndef transform(grid):\\n    return grid + Color.RED"
        with Executor(workers=2) as executor:
            for attempt in tries:
                source = f"import os\\ndef transform(grid):\\n    {attempt}\\n    return [[7]]"
                print(executor.submit(Job(source, grids)).result().status)
            print(sum(e.status == "ok" for e in executor.run(Job(honest + f"# {n}", grids) for n in range(100))))
        print(os.getuid())
        """,
        prefix,
    )
    assert result.stdout.split() == ["unsafe"] * 5 + ["100", "65534"], result.stderr


def test_it_works_in_a_papermill_kernel(tmp_path):
    nbformat, papermill = pytest.importorskip("nbformat"), pytest.importorskip("papermill")
    cells = [
        """
import asyncio, threading
import numpy as np
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job
executor = Executor(workers=2)
grids = (np.ones((2, 3), dtype=np.uint8),)
jobs = [Job(f"def transform(grid):\\n    print(grid)\\n    return grid * {n}", grids, key=n) for n in range(10)]
assert asyncio.get_running_loop().is_running()
print([int(e.outputs[0][0, 0]) for e in executor.run(jobs)])
""",
        """
answers = []
thread = threading.Thread(target=lambda: answers.append(executor.submit(jobs[7]).result().status))
thread.start(); thread.join()
execution = await asyncio.wrap_future(executor.submit(Job("def transform(grid):\\n    while True: pass", grids)))
print(answers, execution.status)
executor.close()
""",
    ]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell.replace("\\\\", "\\")) for cell in cells]
    )
    nbformat.write(notebook, tmp_path / "in.ipynb")
    executed = papermill.execute_notebook(
        str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb"), kernel_name="python3", progress_bar=False
    )
    printed = ["".join(output.get("text", "") for output in cell.outputs) for cell in executed.cells]
    assert printed[0].strip() == str(list(range(10)))
    assert printed[1].strip() == "['ok'] timeout"


def test_a_server_that_cannot_start_is_one_clear_error(monkeypatch):
    monkeypatch.setattr("arcnb.programs.executor.warm_server.START", "import no_such_module")
    executor = Executor(workers=1)
    with pytest.raises(ArcnbError, match=r"cannot start .*: ModuleNotFoundError: No .* 'no_such_module'$"):
        executor.submit(Job(program(1), GRIDS)).result(timeout=120)
    executor.close()


def test_a_server_that_is_always_killed_as_it_starts_is_an_error_that_names_memory(monkeypatch):
    kill = "import os; os.kill(os.getpid(), 9)"
    monkeypatch.setattr("arcnb.programs.executor.warm_server.START", kill)
    with (
        Executor(workers=1) as executor,
        pytest.raises(
            ArcnbError, match=r"cannot start .* \(exit -9\): it was killed, as where memory is short"
        ),
    ):
        executor.submit(Job(program(1), GRIDS)).result(timeout=120)


def test_a_server_that_hangs_as_it_starts_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr("arcnb.programs.executor.warm_server.START", "import time; time.sleep(1000)")
    monkeypatch.setattr("arcnb.programs.executor.pool.GRACE_SECONDS", 0.0)
    hung = r"cannot start .*: it said nothing for too long"
    with Executor(workers=1) as executor, pytest.raises(ArcnbError, match=hung):
        executor.submit(Job(program(1), GRIDS, Limits(0.05, 0.05))).result(timeout=120)


def test_jobs_after_a_warming_that_failed_name_its_cause(monkeypatch):
    monkeypatch.setattr("arcnb.programs.executor.warm_server.START", "import no_such_module")
    with Executor(MAX_FAILED_STARTS) as executor:
        executor.warm()
        executor._service._thread.join(60)
        for _ in range(2):
            with pytest.raises(ArcnbError, match="no_such_module"):
                executor.submit(Job(program(1), GRIDS))


def test_a_caller_that_ignores_its_children_or_blocks_signals_has_servers_as_any_other():
    result = run_script(
        """
        import signal
        import numpy as np
        from arcnb.programs.executor.executor import Executor, Job
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
        shown = "import signal\\ndef transform(grid):\\n    return [[len(signal.pthread_sigmask(0, ()))]]"
        with Executor(workers=1) as executor:
            execution = executor.submit(Job(shown, (np.ones((2, 2), np.uint8),))).result()
            print(execution.status, execution.outputs[0].tolist())
        """
    )
    assert result.stdout == "ok [[0]]\n", result.stderr


def test_a_warm_executor_has_its_servers_before_the_first_job():
    """Two for two workers, and one for each kind of library."""
    others = servers()
    with Executor(2, limits=ROOMY) as executor:
        executor.warm()
        wait_for(lambda: len(servers() - others) >= 4)
        before = servers() - others
        assert len(before) == 4
        for line in ("", "from scipy import ndimage\n", "from scipy import signal\n"):
            assert answer(executor.submit(Job(line + program(7), GRIDS)).result()) == 7
            assert servers() - others == before


def test_no_program_waits_for_a_server_to_start_while_a_ready_one_has_room(monkeypatch, patient):
    """Seven programs come when one of four servers is ready; the next one takes twenty seconds to start."""
    from arcnb.programs.executor import warm_server

    with Executor(4, limits=ROOMY) as executor:
        assert answer(executor.submit(Job(program(1), GRIDS)).result()) == 1
        monkeypatch.setattr(warm_server, "START", "import time; time.sleep(20)\n" + warm_server.START)
        found = queue.SimpleQueue()
        with monkeypatch.context() as asleep:  # the service sees all of them at once
            asleep.setattr(executor._service, "wake", lambda: None)
            for number in range(2, 9):
                executor._add(Job(program(number), GRIDS), found.put, found.put)
        executor._service.wake()
        assert sorted(answer(found.get(timeout=60)) for _ in range(7)) == list(range(2, 9))
        assert [server.ready for server in executor._service.pool.servers] == [True, False]
