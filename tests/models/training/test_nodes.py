"""A training over several nodes: here two folders of one machine, with what a cluster's job would start."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from arcnb.errors import ArcnbError
from arcnb.models.training import nodes
from arcnb.models.training.output import failure, is_consequence
from arcnb.models.training.processes import LaunchError, launch, parallel_problem
from tests.lab.watching import meanwhile, process_exists, wait_for
from tests.paths import ROOT

pytestmark = [pytest.mark.timeout(300), pytest.mark.long("two processes load torch")]
PROGRAM = "tests.models.training.adds_up"


@contextmanager
def second_node(folder, *words):
    """The process of the second node of two, following what is below the folder; this one is on the first.
    words: what Python runs with (folder, rank)."""
    meeting = folder / "nodes" / "job"
    words = words or ("-m", "arcnb.models.training.nodes")
    command = [sys.executable, *words, str(meeting), "1"]
    with pytest.MonkeyPatch.context() as patch, open(folder / "second.txt", "w") as log:
        patch.setenv(nodes.COUNT, "2")
        patch.setenv(nodes.FOLDER, str(meeting))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        process.log = Path(log.name)
        try:
            yield process
            meeting.mkdir(parents=True, exist_ok=True)
            (meeting / "done").touch()
            process.wait(2 * nodes.GRACE)  # which its part of a launch may take
        finally:
            process.kill()
            process.wait()
            print(process.log.read_text())  # pytest shows it where a test fails


@pytest.fixture
def second(tmp_path):
    with second_node(tmp_path) as process:
        yield process


def number_in(path):
    """The number that a process is to write there."""
    return int(wait_for(lambda: path.exists() and path.read_text()))


def start(folder, mode):
    return launch(PROGRAM, [str(folder), mode], 2, folder / "log.txt")


def test_two_nodes_train_together_until_a_process_of_the_second_fails(tmp_path, second):
    assert start(tmp_path, "ends") is False
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)] == ["2 of 2", "2 of 2"]
    (tmp_path / "0.txt").unlink()
    cause = r"node 2 of 2 \(.+\) failed: ValueError: process 1 had enough on 2"
    with pytest.raises(LaunchError, match=cause):
        start(tmp_path, "fails1")
    assert (tmp_path / "0.txt").read_text() == "2 of 2", "a second launch of the same run"
    assert second.poll() is None, "the first node decides how the job ends"


def test_a_lost_node_fails_the_launch_with_its_name(tmp_path, second, monkeypatch):
    def lose():
        wait_for((tmp_path / "1.txt").exists)
        os.killpg(second.pid, signal.SIGSTOP)
        monkeypatch.setattr(nodes, "LOST_SECONDS", 2.0)

    said = rf"node 2 of 2 \({os.uname().nodename}\) is lost: no sign of it for \d+ s"
    with pytest.raises(LaunchError, match=said), meanwhile(lose):
        start(tmp_path, "idles")
    second.kill()


@pytest.mark.parametrize(
    ("trouble", "number"),
    [("os.fsync = lambda file: time.sleep(600)", 2), ("nodes.BEAT_SECONDS = 600", 0)],
    ids=["a busy disk", "before its first second is over"],
)
def test_a_node_gives_a_sign_of_life(tmp_path, trouble, number):
    program = f"""
import os, sys, time
from pathlib import Path
from arcnb.models.training import nodes
{trouble}
nodes.follow(Path(sys.argv[1]), int(sys.argv[2]))"""
    with second_node(tmp_path, "-c", program) as process:
        sign = tmp_path / "nodes" / "job" / "1.alive"
        wait_for(lambda: sign.exists() and int(sign.read_text().split()[1]) >= number)
        process.kill()


def test_a_killed_process_is_named(tmp_path, second):
    """Its comrades complain of lost connections, and the launcher of a failed child."""

    def kill():
        os.kill(number_in(tmp_path / "1.pid"), signal.SIGKILL)

    said = r"node 2 of 2 \(.+\) failed: process 1 was killed by SIGKILL"
    with pytest.raises(LaunchError, match=said), meanwhile(kill):
        start(tmp_path, "waits")


@pytest.mark.parametrize("n_nodes", ["1", "2"])
def test_a_launcher_that_cannot_be_started_keeps_nobody_waiting(tmp_path, monkeypatch, n_nodes):
    monkeypatch.setenv(nodes.COUNT, n_nodes)
    monkeypatch.setenv(nodes.FOLDER, str(tmp_path / "nodes"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    with pytest.raises(OSError, match="no python"):
        start(tmp_path, "ends")
    assert sorted(path.name for path in tmp_path.glob("nodes/*")) == (
        ["launch-0.ended", "launch-0.json"] if n_nodes == "2" else []
    )


def test_the_second_node_goes_when_the_first_is_done(second):
    folder = Path(os.environ[nodes.FOLDER])
    wait_for((folder / "1.alive").exists)
    (folder / "done").touch()
    assert second.wait(60) == 0, second.log.read_text()


def test_a_node_that_never_comes_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv(nodes.COUNT, "2")
    monkeypatch.setenv(nodes.FOLDER, str(tmp_path / "nodes"))
    monkeypatch.setattr(nodes, "ARRIVAL_SECONDS", 0.5)
    with pytest.raises(LaunchError, match="node 2 of 2 did not come"):
        start(tmp_path, "ends")
    (tmp_path / "nodes" / "1.failed").write_text("exit code 127, see log-node1.txt\n")  # by the job's script
    monkeypatch.setattr(nodes, "ARRIVAL_SECONDS", 600.0)
    with pytest.raises(LaunchError, match=r"node 2 of 2 failed: exit code 127, see log-node1\.txt"):
        start(tmp_path, "ends")


SERVER = """
import sys, time
from pathlib import Path
from arcnb.models.training.nodes import serve
program = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); "
command = [sys.executable, "-c", program + sys.argv[2], sys.argv[1] + "/pid"]
serve(Path(sys.argv[1]), 1, command, {}, "http://far:8000")
"""


@pytest.fixture
def served(tmp_path, monkeypatch):
    """served("pass"): the last node of two runs a server that does so; this process is on the first."""
    monkeypatch.setenv(nodes.SERVER, "1")
    monkeypatch.setenv(nodes.FOLDER, str(tmp_path / "nodes"))
    (tmp_path / "nodes").mkdir()
    processes = []

    def start_server(does):
        words = [sys.executable, "-c", SERVER, str(tmp_path / "nodes"), does]
        processes.append(subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(ROOT)}))
        return processes[0]

    yield start_server
    (tmp_path / "nodes" / "done").touch()
    for process in processes:
        process.wait(60)


def test_a_server_of_the_job_is_known_by_its_address_and_ends_with_it(tmp_path, served, monkeypatch):
    process = served("import time; time.sleep(600)")
    assert nodes.job_server() == "http://far:8000"
    pid = number_in(tmp_path / "nodes" / "pid")
    process.terminate()  # the job is to stop, and the training wants samples until it has saved
    (tmp_path / "nodes" / "done").touch()
    assert process.wait(60) == 0
    assert not process_exists(pid)
    monkeypatch.delenv(nodes.SERVER)
    assert nodes.job_server() == ""


def test_a_server_that_ends_fails_the_launch_with_its_node_and_address(tmp_path, served):
    def kill():
        wait_for((tmp_path / "1.txt").exists)
        os.kill(number_in(tmp_path / "nodes" / "pid"), signal.SIGKILL)

    served("import time; time.sleep(600)")
    said = r"node 2 of 2 \(.+\) failed: the server at http://far:8000 ended \(-9\): "
    with pytest.raises(LaunchError, match=said), meanwhile(kill):
        start(tmp_path, "idles")


def test_a_server_that_never_comes_or_cannot_start_is_told(served, monkeypatch):
    monkeypatch.setattr(nodes, "ARRIVAL_SECONDS", 0.5)
    with pytest.raises(ArcnbError, match="node 2 of 2 did not come"):
        nodes.job_server()
    Path(os.environ[nodes.FOLDER], "1.failed").write_text("exit code 127, see log-node1.txt\n")
    with pytest.raises(ArcnbError, match=r"node 2 of 2 failed: exit code 127, see log-node1\.txt"):
        nodes.job_server()


def test_processes_are_shared_equally_by_the_nodes(monkeypatch):
    monkeypatch.setenv(nodes.COUNT, "3")
    assert parallel_problem(4, "ddp") == "num_processes=4 cannot be shared equally by 3 nodes"
    assert parallel_problem(6, "ddp") is None


def test_a_process_that_aborts_behind_its_exception_failed_by_the_exception():
    """Gloo's threads outlive it now and then, and C++ aborts."""
    report = "  rank      : 1 (local_rank: 0)\n  exitcode  : -6 (pid: 7)\n"
    assert failure("[rank1]: ValueError: it had enough\n" + report) == "ValueError: it had enough"
    assert failure(report) == "process 1 was killed by SIGABRT"


# Two processes of four GPUs, as torch 2.11 reports them: the first hung, so that the launcher killed it.
HUNG = """Failures:
[1]:
  time      : 2026-11-28_07:54:49
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 12395)
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_07:54:18
  rank      : 1 (local_rank: 1)
  exitcode  : {} (pid: 12396)
"""


def test_a_process_that_the_launcher_had_to_kill_is_not_why():
    killed = "process 1 was killed by SIGKILL (by hand, or for want of memory)"
    assert failure(HUNG.format(-9)) == killed
    assert failure("[rank1]: ValueError: it had enough\n" + HUNG.format(1)) == "ValueError: it had enough"


@pytest.mark.parametrize(
    "cause", ["node 2 of 2 (b) is lost: no sign of it for 8 s", "failed in one of 2: ValueError: bad data"]
)
@pytest.mark.parametrize("words", ["Connection closed by peer [127.0.0.1]:20626", "remote process exited or"])
def test_who_lost_a_connection_speaks_after_who_broke_it(cause, words):
    consequence = f"node 3 of 3 failed: RuntimeError: {words}"
    assert sorted([consequence, cause], key=is_consequence) == [cause, consequence]
    assert sorted([cause, consequence], key=is_consequence) == [cause, consequence]
