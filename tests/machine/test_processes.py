"""Children end with a parent that is killed; a process is known again; shared memory and cgroups are seen."""

import subprocess
import sys

import pytest

from arcnb.machine.processes import death_cause, is_alive, process_identity, usable_memory_gb
from tests.lab.watching import process_exists, wait_for

PARENT = """
import sys
from arcnb.machine.processes import start_session
child = start_session(["sleep", "600"])
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does this")
def test_a_child_ends_with_a_parent_that_is_killed():
    command = [sys.executable, "-c", PARENT]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert process_exists(child)
    parent.kill()
    parent.wait()
    wait_for(lambda: not process_exists(child), 30)


NO_SHARED_MEMORY = "mount --bind /dev/shm /dev/shm && mount -o remount,ro,bind /dev/shm"


def test_shared_memory_that_takes_no_files_is_one_sentence():
    if subprocess.run(["unshare", "-m", "sh", "-c", NO_SHARED_MEMORY], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    script = "from arcnb.machine.processes import shared_context; shared_context()"
    command = [
        "unshare",
        "-m",
        "sh",
        "-c",
        f'{NO_SHARED_MEMORY} && exec "$@"',
        "sh",
        sys.executable,
        "-c",
        script,
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (
        "ArcnbError: processes cannot work together, /dev/shm says Read-only file system: mount"
        in result.stderr
    )


LEAVES = """
import atexit, sys, threading, time
from arcnb.machine.processes import leave

class Large:
    def __del__(self):
        print("taken apart", file=sys.stderr, flush=True)

large = Large()
atexit.register(print, "exit handlers ran")
threading.Thread(target=lambda: (time.sleep(0.2), print("threads ended"))).start()
leave(3)
"""


def test_a_process_that_leaves_waits_for_its_threads_and_prints_all_but_takes_nothing_apart():
    result = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (3, "")
    assert result.stdout.splitlines() == ["threads ended", "exit handlers ran"]


HALF, UNLIMITED = 2**29, 2**63 - 4096
JOB = "system.slice/slurmstepd.scope/job_7"


@pytest.mark.parametrize(
    ("own", "limits"),
    [
        (f"0::/{JOB}/step_0/task_0", {f"{JOB}/memory.max": HALF, f"{JOB}/step_0/memory.max": "max"}),
        ("0::/a/b", {"a/memory.max": 2 * HALF, "a/b/memory.max": HALF}),
        ("0::/", {"memory.max": HALF}),
        ("4:memory:/docker/7", {"memory/memory.limit_in_bytes": HALF}),
        (
            "4:memory:/job\n0::/",
            {"memory/job/memory.limit_in_bytes": HALF, "memory/memory.limit_in_bytes": UNLIMITED},
        ),
    ],
    ids=["Slurm", "the least", "a container", "a container of version 1", "version 1"],
)
def test_memory_is_the_least_that_a_cgroup_around_the_process_allows(tmp_path, own, limits):
    write(tmp_path / "proc/self/cgroup", own)
    for name, limit in limits.items():
        write(tmp_path / "sys/fs/cgroup" / name, f"{limit}\n")
    assert usable_memory_gb(tmp_path) == 0.5


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_cgroups_memory_is_the_machine_s(tmp_path):
    assert usable_memory_gb(tmp_path) >= usable_memory_gb() > 0


def test_a_process_is_known_again():
    mine = process_identity()
    assert is_alive(mine) is True
    assert is_alive(mine | {"started": 1}) is False, "a reused pid is another process"
    assert is_alive(mine | {"host": "elsewhere"}) is None
    child = subprocess.Popen(["true"])
    wait_for(lambda: not process_exists(child.pid))
    assert is_alive(mine | {"pid": child.pid}) is False, "a zombie is not alive"
    child.wait()


@pytest.mark.parametrize(
    ("returncode", "oom_kills", "cause"),
    [
        (-9, 1, "killed by SIGKILL because memory ran out"),
        (-9, 0, "killed by SIGKILL (by hand, by a scheduler, or for want of memory)"),
        (-11, 0, "killed by SIGSEGV"),
        (7, 0, "its process ended with exit code 7"),
        (None, 0, "it stopped answering"),
    ],
)
def test_death_causes(returncode, oom_kills, cause):
    assert death_cause(returncode, oom_kills) == cause
