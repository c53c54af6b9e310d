"""A runs folder that machines, users and clocks share, and a package on a disk that takes no files."""

import os
import subprocess
import sys
import time

import pytest

from arcnb.lab.runs.finding import list_runs, runs_called
from arcnb.lab.runs.heartbeat import HEARTBEAT, Heartbeat
from arcnb.lab.runs.manifest import seconds_between
from arcnb.lab.runs.run import new_run
from tests.lab.watching import wait_for
from tests.paths import ROOT

# Somebody without a name or a home here, who may read all and write nothing of others.
SOMEBODY = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
SOMEBODY += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]


def arcnb(*arguments, before=(), cwd=None, **environment):
    """The command line in a process of its own; variables that are None are taken away."""
    given = {name: value for name, value in (os.environ | environment).items() if value is not None}
    command = [*before, sys.executable, "-m", "arcnb.lab.cli", *map(str, arguments)]
    return subprocess.run(command, env=given, cwd=cwd, capture_output=True, text=True, check=False)


def usable(*command) -> bool:
    try:
        return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.long("the command line starts five times")
@pytest.mark.skipif(not usable(*SOMEBODY), reason="only root can be somebody else (setpriv)")
def test_two_users_in_one_runs_folder(notebook, runs_root):
    """The second has neither a home nor an entry among the users."""

    def by_somebody(*arguments):
        return arcnb(*arguments, before=SOMEBODY, HOME=None, PYTHONPATH=str(ROOT), JUPYTER_DATA_DIR=None)

    path = notebook("run.record({'n': n})")
    runs_root.mkdir()
    runs_root.chmod(0o777)
    theirs = by_somebody("sweep", path, "--grid", "n=1", "--name", "rates", "--jobs", "1")
    assert theirs.returncode == 0, theirs.stderr
    (run,) = list_runs()
    assert (run.status, run.path.stat().st_uid) == ("done", 12345)
    assert (runs_root / "sweeps").stat().st_mode & 0o777 == 0o777, "others sweep as well"
    ours = new_run("ours")
    ours.update(status="preempted", owner="engine", notebook={"path": str(path), "sha256": ""})
    refused = by_somebody("run", "--resume", "ours")
    assert refused.returncode == 2
    assert "Permission denied" in refused.stderr
    assert refused.stderr.count("\n") == 1
    refused = by_somebody("rm", ours.path.name)
    assert (refused.returncode, refused.stderr) == (
        2,
        f"arcnb: cannot remove {ours.path}: Permission denied\n",
    )
    assert arcnb("rm", ours.path.name).returncode == 0, "what somebody else could not remove"
    assert [one.name for one in runs_root.iterdir() if one.name.startswith(".")] == []


READ_ONLY = f"mount --bind {ROOT} {ROOT} && mount -o remount,ro,bind {ROOT}"


@pytest.mark.long("a notebook runs in a process of its own")
@pytest.mark.skipif(
    not usable("unshare", "--mount", "sh", "-c", READ_ONLY), reason="nothing can be mounted here"
)
def test_a_read_only_checkout_runs_with_runs_elsewhere(notebook):
    path = notebook("run.record({'n': n})")
    before = ["unshare", "--mount", "sh", "-c", f'{READ_ONLY} && exec "$@"', "sh"]
    refused = arcnb("run", path, before=before, cwd=ROOT, ARCNB_RUNS=None)
    assert refused.returncode == 2
    assert refused.stderr == (
        f"arcnb: cannot make a run folder in {ROOT}/runs: Read-only file system; "
        "$ARCNB_RUNS names another place\n"
    )
    assert arcnb("run", path, before=before, cwd=ROOT).returncode == 0
    assert runs_called("01_small")[0].status == "done"


def test_a_clock_that_jumps_kills_no_run_of_another_machine(monkeypatch):
    run = new_run("far")
    run.update(process=run.manifest["process"] | {"host": "elsewhere"})
    heartbeat = Heartbeat(run.path, dict)
    heartbeat.start()
    wait_for((run.path / HEARTBEAT).exists)
    now = time.time
    for hours in (-1, 1):  # this machine's clock: the disk keeps its own
        monkeypatch.setattr(time, "time", lambda hours=hours: now() + 3600 * hours)
        assert run.verdict() == ("running", None)
    monkeypatch.undo()
    heartbeat.finish()


def test_a_clock_that_was_set_back_makes_no_time_negative():
    assert seconds_between("2026-11-26T10:00:00+00:00", "2026-11-26T09:00:00+00:00") == 0
