"""A notebook in JupyterLab: the kernel owns its run. A real kernel, driven as the front end drives it."""

import os

import pytest
from jupyter_client.manager import start_new_kernel

from arcnb.lab.runs.finding import list_runs


@pytest.fixture
def session(tmp_path):
    """run(source): execute a cell in a kernel that JupyterLab would have started for 02_sft.ipynb."""
    environment = os.environ | {"JPY_SESSION_NAME": str(tmp_path / "notebooks" / "02_sft.ipynb")}
    manager, client = start_new_kernel(kernel_name="python3", env=environment)

    def run(source):
        return client.execute_interactive(source, timeout=30, output_hook=lambda _: None)["content"]

    run.manager = manager
    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_an_interactive_run(session):
    session("n = 3\nrate: float = 0.5")
    session("n = 4\nprint('edited')")
    session("from arcnb.lab import open_run\nrun = open_run()")
    (run,) = list_runs()
    assert run.name == "02_sft"
    assert run.manifest["parameters"] == {"n": 4, "rate": 0.5}
    assert run.status == "running"

    session("run = open_run()")
    assert len(list_runs()) == 1, "nothing was written yet: the cell may be run again"
    assert session("1 / 0")["status"] == "error"
    assert run.status == "running", "an error in a session is not its end"
    session("(run.path / 'a').write_text('x')\nrun.record({'n': n}, artifacts=['a'])")
    assert run.status == "done"

    session("run = open_run()")
    assert len(list_runs()) == 2, "top to bottom again is a run of its own"
    session.manager.shutdown_kernel()
    assert [run.status for run in list_runs()] == ["done", "preempted"]


def test_a_session_that_ends_in_an_error_failed(session):
    session("from arcnb.lab import open_run\nrun = open_run('named')")
    session("raise ValueError('n')")
    session.manager.shutdown_kernel()
    (run,) = list_runs()
    assert run.name == "named"
    assert run.verdict() == ("failed", "In [2]: ValueError: n")
