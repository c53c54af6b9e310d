"""A kernel ends in an order that works: it neither hangs nor complains."""

import subprocess

import pytest
from jupyter_client import KernelManager

from arcnb.lab.execution.kernel_end import STATEMENT

# ipykernel's control thread flushes what was printed after it answered a shutdown. Here it is held up between
# the question whether the output thread lives and the message to it, as a loaded machine does now and then.
# What it needs is bound early: names of cells are gone by then.
SLOW_FLUSH = """
import sys, threading, time
from ipykernel.kernelapp import IPKernelApp
def flush(output=IPKernelApp.instance().iopub_thread, thread=threading.current_thread, sleep=time.sleep):
    if thread().name == "Control" and output.thread.is_alive():
        sleep(2)
        output._event_pipe.send(b"")
sys.stderr.flush = flush
"""


@pytest.mark.parametrize(("before", "quiet"), [((), False), ((STATEMENT,), True)])
def test_the_control_thread_ends_before_what_it_writes_to(tmp_path, before, quiet):
    """Without the statement the window is wide enough for the fault: the test sees what it looks for."""
    with open(tmp_path / "printed", "w+", encoding="utf-8") as printed:
        manager = KernelManager()
        manager.start_kernel(
            stdout=printed,
            stderr=subprocess.STDOUT,
            extra_arguments=[f"--IPKernelApp.exec_lines={line}" for line in before],
        )
        client = manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=120)
            assert client.execute(SLOW_FLUSH, reply=True, timeout=60)["content"]["status"] == "ok"
            manager.request_shutdown()
            code = manager.provisioner.process.wait(60)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        printed.seek(0)
        text = printed.read()
    assert code == 0
    assert ("Traceback" in text, "non-socket" in text) == (not quiet, not quiet), text


SPAWN = """
import multiprocessing
process = multiprocessing.get_context("spawn").Process(target=print)
process.start()
process.join()
"""


ENDED = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", ""])
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
"""


@pytest.mark.parametrize("left_behind", [SPAWN, ENDED], ids=["resource-tracker", "ended-child"])
def test_what_cannot_go_is_not_waited_for(left_behind):
    """The resource tracker ignores signals, and an ended child that nobody waited for stays; ipykernel would
    ask either for 14 seconds. Without the statement the test sees that, but for a kernel that breaks down
    while it ends, as the module says."""
    assert _ends_soon(left_behind, STATEMENT)
    assert not all(_ends_soon(left_behind) for _ in range(3))


def _ends_soon(left_behind: str, *before: str) -> bool:
    """Whether a kernel that ran `before` and this cell is gone five seconds after it was asked to go."""
    manager = KernelManager()
    manager.start_kernel(extra_arguments=[f"--IPKernelApp.exec_lines={line}" for line in before])
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        assert client.execute(left_behind, reply=True, timeout=60)["content"]["status"] == "ok"
        manager.request_shutdown()
        try:
            manager.provisioner.process.wait(5)
        except subprocess.TimeoutExpired:
            return False
        return True
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
