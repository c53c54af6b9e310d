"""A kernel ends in an order that works: it neither hangs nor complains."""

import os
import subprocess
from contextlib import contextmanager

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
        with _kernel(*before, stdout=printed, stderr=subprocess.STDOUT) as (manager, client):
            assert client.execute(SLOW_FLUSH, reply=True, timeout=60)["content"]["status"] == "ok"
            manager.request_shutdown()
            code = manager.provisioner.process.wait(60)
        printed.seek(0)
        text = printed.read()
    assert code == 0
    assert ("Traceback" in text, "non-socket" in text) == (not quiet, not quiet), text


LEAVE = """
import multiprocessing, os, subprocess, sys
process = multiprocessing.get_context("spawn").Process(target=print)
process.start()
process.join()
child = subprocess.Popen([sys.executable, "-c", ""])
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
from ipykernel.kernelapp import IPKernelApp
kernel = IPKernelApp.instance().kernel
asked, known = kernel._process_children(), type(kernel)._process_children(kernel)
assert (len(asked), len(known)) == (0, 2), (asked, known)
"""


def test_what_cannot_go_is_not_waited_for_and_warnings_hold_up_no_end(tmp_path):
    """The resource tracker ignores signals, and an ended child that nobody waited for stays: ipykernel would
    ask either for 14 seconds. Where warnings are errors, its own end breaks down."""
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    with open(tmp_path / "printed", "w+", encoding="utf-8") as printed:
        with _kernel(STATEMENT, env=environment, stderr=printed) as (manager, client):
            reply = client.execute(LEAVE, reply=True, timeout=60)["content"]
            assert reply["status"] == "ok", reply
            manager.request_shutdown()
            assert manager.provisioner.process.wait(60) == 0
        printed.seek(0)
        assert "Traceback" not in printed.read()


HOLD = """
import sys, types
class Large:
    def __del__(self, write=sys.__stderr__.write):
        write("taken apart")
sys.modules["held"] = types.ModuleType("held")
sys.modules["held"].large = Large()
"""


@pytest.mark.parametrize(("before", "apart"), [((), True), ((STATEMENT,), False)])
def test_a_kernel_takes_nothing_apart_when_it_ends(tmp_path, before, apart):
    with open(tmp_path / "printed", "w+", encoding="utf-8") as printed:
        with _kernel(*before, stderr=printed) as (manager, client):
            assert client.execute(HOLD, reply=True, timeout=60)["content"]["status"] == "ok"
            manager.request_shutdown()
            assert manager.provisioner.process.wait(60) == 0
        printed.seek(0)
        assert ("taken apart" in printed.read()) == apart


@contextmanager
def _kernel(*before: str, **settings):
    """A kernel that has run these statements, and its client."""
    manager = KernelManager()
    lines = [f"--IPKernelApp.exec_lines={line}" for line in before]
    manager.start_kernel(extra_arguments=lines, **settings)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
