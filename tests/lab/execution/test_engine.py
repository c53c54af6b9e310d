"""The engine tells the truth about every way a notebook can end. Real papermill, real kernels."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import numpy as np
import papermill
import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from nbformat.sign import NotebookNotary
from papermill.exceptions import PapermillException, PapermillExecutionError

from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.execution import execute, journal
from arcnb.lab.execution.execute import RunStopped
from arcnb.lab.execution.stopping import StopSignals
from arcnb.lab.notebooks import files
from arcnb.lab.runs import heartbeat
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.heartbeat import place_text, read_heartbeat
from arcnb.lab.runs.provenance import notebook_record
from arcnb.lab.runs.run import new_run
from tests.lab.watching import only_run, process_exists, statuses, wait_for

RECORD = "run.record(outcome={'n': n})"
READY = "(run.path / 'ready').write_text(str(__import__('os').getpid()))"
SAVE_WHEN_STOPPED = f"""
import time
try:
    {READY}
    time.sleep(60 if not (run.path / 'saved').exists() else 0)
except KeyboardInterrupt:
    time.sleep(0.3)
    (run.path / 'saved').write_text('yes')
    raise
"""
SLEEP = "while True:\n  try:\n    time.sleep(60)\n  except KeyboardInterrupt:\n    pass"
REPLY_IS_LOST = f"""
import signal, time
told, kernel, send = [], get_ipython().kernel, get_ipython().kernel.session.send
signal.signal(signal.SIGINT, lambda *_: told.append(True))
def interrupted(stream, kind, *others, **more):
    if kind == 'execute_reply':
        kernel.session.send = send
        raise KeyboardInterrupt
    return send(stream, kind, *others, **more)
kernel.session.send = interrupted
{READY}
while not told:
    time.sleep(0.05)
"""
STUBBORN = f"import time\ntry:\n  {READY}\n  time.sleep(60)\nexcept KeyboardInterrupt:\n  pass\n{SLEEP}"


def ready(root):
    """The kernel's pid, once a cell with READY has run."""
    found = [path for path in root.glob("*/ready") if path.read_text()]
    return found and int(found[0].read_text())


def test_a_finished_run_is_done(notebook, capsys):
    # Its kernel uses no port that another process could take.
    ipc = "from ipykernel.kernelapp import IPKernelApp\nassert IPKernelApp.instance().transport == 'ipc'"
    write = f"{ipc}\n(run.path / 'a.txt').write_text('hi')"
    path = notebook("# Work", write, "run.record({'n': n}, artifacts=['a.txt'])")
    assert cli.main(["run", str(path), "-p", "n", "5"]) == 0
    run = only_run()
    assert capsys.readouterr().out.strip() == str(run.path)
    manifest = run.manifest
    assert manifest["status"] == run.status == "done"
    assert manifest["error"] is None
    assert manifest["parameters"] == {"n": 5, "seconds": 0.0, "label": "x"}
    assert manifest["outcome"] == {"n": 5}
    assert manifest["artifacts"] == [{"path": "a.txt", "bytes": 2}]
    assert manifest["seconds"] > 0
    assert set(statuses(run.copy_path)) == {"completed"}
    assert run.page_path.is_file()
    assert read_heartbeat(run.path) is None
    assert not list(run.path.glob(".*")), "temporary files stay behind"
    copy = nbformat.read(run.copy_path, as_version=4)
    assert NotebookNotary().check_signature(copy), "JupyterLab would hide the grids"
    copy.cells[0].source += "changed"
    assert not NotebookNotary().check_signature(copy)


def test_a_failing_cell_fails_the_run_and_says_where(notebook, capsys):
    path = notebook("# First work", "raise ValueError(f'n\\nis {n}')", "print('never')")
    assert cli.main(["run", str(path)]) == 1
    run = only_run()
    assert run.verdict() == ("failed", 'cell 5 of 6 ("First work"): ValueError: n is 3')
    assert statuses(run.copy_path) == ["completed", "completed", "failed", "pending"]
    assert "An Exception was encountered" in run.copy_path.read_text()
    assert r'"evalue": "n\nis 3"' in run.copy_path.read_text()
    assert "01_small.ipynb failed at cell 5" in capsys.readouterr().err


def test_a_value_that_cannot_be_shown_fails_the_run_by_its_own_error(notebook):
    shown = "class Shown:\n    def _repr_html_(self):\n        raise ValueError('no page of it')\nShown()"
    assert cli.main(["run", str(notebook(shown))]) == 1
    _, why = only_run().verdict()
    assert why.endswith(": ValueError: no page of it")


def test_a_copy_that_cannot_be_written_is_not_done(notebook, monkeypatch, capsys):
    def full(path, text):
        raise ArcnbError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(execute, "write_whole", full)
    assert cli.main(["run", str(notebook(RECORD))]) == 1
    status, why = only_run().verdict()
    assert status == "failed"
    assert why.startswith("the end: cannot write")
    assert "No space left on device" in capsys.readouterr().err
    assert only_run().manifest["outcome"] == {"n": 3}, "what was recorded stays"


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        ("(run.path / 'manifest.json').write_text('')", "manifest.json cannot be read"),
        ("import shutil; shutil.rmtree(run.path)", "is not a run folder"),
    ],
)
def test_a_run_that_loses_its_manifest_was_not_refused_but_failed(notebook, capsys, break_it, sentence):
    assert cli.main(["run", str(notebook(break_it)), "--quiet"]) == 1
    assert capsys.readouterr().err.count(sentence) == 1


def test_braces_in_a_path_are_no_place_for_a_parameter(notebook, tmp_path, monkeypatch):
    """papermill fills parameters into paths; the notebook of another folder would run."""
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "runs{label}{"))
    for folder in ("of{n}", "of3"):
        (tmp_path / folder).mkdir()
        notebook(f"run.record({{'folder': '{folder}'}})").rename(tmp_path / folder / "01_small.ipynb")
    assert cli.main(["run", str(tmp_path / "of{n}" / "01_small.ipynb")]) == 0
    run = only_run()
    assert run.manifest["outcome"] == {"folder": "of{n}"}
    assert run.copy_path.is_file()
    assert run.page_path.is_file()


def test_what_papermill_refuses_is_said_and_failed(notebook, monkeypatch, capsys):
    def refused(*_, **__):
        raise PapermillException("no handler for this path")

    monkeypatch.setattr(papermill, "execute_notebook", refused)
    assert cli.main(["run", str(notebook(RECORD))]) == 1
    assert "arcnb: 01_small.ipynb could not be run: no handler for this path\n" in capsys.readouterr().err
    assert only_run().verdict() == ("failed", "the notebook could not be run: no handler for this path")


def test_leaving_early_is_not_done(notebook):
    assert cli.main(["run", str(notebook("import sys; sys.exit(0)", RECORD))]) == 1
    assert only_run().status == "failed"
    assert statuses(only_run().copy_path)[-1] == "pending"


def test_a_killed_kernel_is_killed_and_leaves_no_children(notebook):
    path = notebook(
        "import subprocess, os, signal\nchild = subprocess.Popen(['sleep', '600'])\n"
        "(run.path / 'child').write_text(str(child.pid))\nos.kill(os.getpid(), signal.SIGKILL)",
        "print('never')",
    )
    assert cli.main(["run", str(path)]) == 128 + signal.SIGKILL
    run = only_run()
    status, why = run.verdict()
    assert status == "killed"
    assert "cell 4 of 5" in why
    assert "SIGKILL" in why
    assert statuses(run.copy_path) == ["completed", "completed", "killed", "pending"]
    assert "This run was killed" in run.copy_path.read_text()
    wait_for(lambda: not process_exists(int((run.path / "child").read_text())))


def test_sigterm_lets_the_cell_save_and_a_resumed_run_finishes(notebook, start, runs_root):
    path = notebook("# Work", SAVE_WHEN_STOPPED, RECORD)
    process = start("run", path, "-p", "n", "7")
    kernel = wait_for(lambda: ready(runs_root))
    run = only_run()
    assert run.status == "running"
    wait_for(lambda: "(Work)" in place_text(read_heartbeat(run.path) or {}))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"arcnb run --resume {run.path}" in errors
    assert run.verdict() == ("preempted", 'cell 6 of 7 ("Work"): stopped by SIGTERM')
    assert run.manifest["stop"]["signal"] == "SIGTERM"
    assert statuses(run.copy_path) == ["completed"] * 3 + ["preempted", "pending"]
    assert (run.path / "saved").read_text() == "yes"
    assert not process_exists(kernel)

    assert cli.main(["run", "--resume", run.path.name, "-p", "n", "8"]) == 2, (
        "other parameters must be refused"
    )
    assert cli.main(["run", "--resume", run.path.name]) == 0
    assert only_run().path == run.path
    assert run.status == "done"
    assert run.manifest["outcome"] == {"n": 7}
    assert [attempt["status"] for attempt in run.manifest["attempts"]] == ["preempted"]
    assert statuses(run.path / "01_small.attempt-1.ipynb")[-1] == "pending"
    assert cli.main(["run", "--resume", run.path.name]) == 0, "nothing left to do is no error"


@pytest.mark.parametrize("changed", [[], ["-p", "n", "5"]])
@pytest.mark.parametrize("status", ["done", "failed"])
def test_a_run_is_not_resumed_with_another_notebook(status, changed, notebook, capsys):
    run = new_run("a", {}, notebook_record(notebook()), "engine")
    run.update(status=status)
    other = notebook(name="02_other", parameters="m = 1  # of its own")
    assert cli.main(["run", str(other), "--resume", run.path.name, *changed]) == 2
    said = f"{run.path.name} is a run of 01_small, so 02_other cannot resume it"
    assert said in capsys.readouterr().err


def test_signals_to_every_process_or_twice_at_once_do_not_disturb_the_saving(notebook, start, runs_root):
    """A scheduler signals the sweep, its runs and their kernels, and the sweep passes its own on."""
    process = start("run", notebook(SAVE_WHEN_STOPPED))
    kernel = wait_for(lambda: ready(runs_root))
    os.kill(kernel, signal.SIGTERM)
    os.kill(process.pid, signal.SIGTERM)
    os.kill(kernel, signal.SIGTERM)
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert only_run().status == "preempted"
    assert (only_run().path / "saved").read_text() == "yes"


def test_a_second_ctrl_c_later_ends_at_once(notebook, start, runs_root):
    process = start("run", notebook(STUBBORN))
    wait_for(lambda: ready(runs_root))
    process.send_signal(signal.SIGINT)
    wait_for(lambda: only_run().manifest["stop"])
    time.sleep(2.2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)  # the grace time is longer
    assert process.returncode == 128 + signal.SIGINT


def test_a_notebook_that_calls_itself_preempted_is_not_done(notebook, capsys, monkeypatch, tmp_path):
    """Its trainer heard the signal, saved, and ended its cell well. The command that is said goes on."""
    monkeypatch.setenv("ARCNB_RUNS", str(tmp_path / "my runs"))
    stopped = "if not run.manifest['attempts']:\n    run.update(status='preempted')"
    assert cli.main(["run", str(notebook("# End", f"{RECORD}\n{stopped}"))]) == 128 + signal.SIGTERM
    run = only_run()
    why = 'cell 5 of 5 ("End"): the notebook says that it was stopped before its work was done'
    assert run.verdict() == ("preempted", why)
    said = capsys.readouterr().err.partition("to go on: arcnb ")[2].splitlines()[0]
    assert cli.main(shlex.split(said)) == 0
    assert run.verdict() == ("done", None)


def test_progress_of_a_running_cell_is_seen_from_outside(notebook, start, capsys):
    imports = "import time\nfrom arcnb.machine.progress import progress\n"
    loop = "for _ in progress(range(600), 'judging', unit='task'):\n    time.sleep(0.1)"
    process = start("run", notebook("# Judge", imports + loop))
    wait_for(lambda: [run for run in list_runs() if "judging" in str(read_heartbeat(run.path))])
    assert cli.main(["ls"]) == 0
    assert "cell 5/5 (Judge) judging: " in capsys.readouterr().out
    assert cli.main(["show", "01_small"]) == 0
    assert "now          cell 5/5 (Judge) judging: " in capsys.readouterr().out
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    text = only_run().copy_path.read_text()
    assert text.count(" of at most 600 tasks in ") == 2, "the last state, once as text and once as HTML"
    assert text.count("judging: ") == 2, "and nothing of the states before"


def test_a_cell_that_says_nothing_is_in_the_log_once_a_minute(notebook, monkeypatch, capsys):
    monkeypatch.setattr(journal, "SILENT_SECONDS", 0.25)
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.1)
    assert cli.main(["run", str(notebook("# Load", "import time\ntime.sleep(1.5)"))]) == 0
    assert "[5/5] Load · 0 min" in capsys.readouterr().err
    clock = 0.0
    monkeypatch.undo()
    monkeypatch.setattr(journal.time, "monotonic", lambda: clock)
    console = journal.Console(20)
    console.cell(8, "2 · Train")
    for second in range(1, 3601):
        clock = float(second)
        console.still_there()
    assert capsys.readouterr().err.count(" min\n") == 60


@pytest.mark.parametrize("step_seconds", [7, 31, 59])
def test_a_bar_is_in_the_log_also_after_hours(step_seconds, monkeypatch, capsys):
    """Signs of life, every 10 seconds, do not take its turn."""
    clock = 0.0
    monkeypatch.setattr(journal.time, "monotonic", lambda: clock)
    console = journal.Console(20)
    console.cell(8, "2 · Train")
    for second in range(1, 2 * 3600):
        clock = float(second)
        if second % 10 == 0:
            console.still_there()
        if second % step_seconds == 0:
            console.progress(f"training: {second}")
    steps = [int(line.split()[-1]) for line in capsys.readouterr().err.splitlines() if "training" in line]
    assert max(np.diff(steps)) <= 60 + step_seconds
    assert steps[-1] >= 2 * 3600 - 60 - 2 * step_seconds


def test_a_cell_that_ignores_ctrl_c_is_killed_after_the_grace_time(notebook, start, runs_root):
    process = start("run", notebook(STUBBORN), "--grace", "1")
    kernel = wait_for(lambda: ready(runs_root))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT
    late = "stopped by SIGINT (Ctrl-C) and killed, since it had not saved within 1 s (--grace)"
    assert only_run().verdict() == ("preempted", f'cell 4 of 4 ("Small"): {late}')
    assert not process_exists(kernel)


def test_a_cell_that_is_interrupted_before_its_reply_is_not_waited_for(notebook, start, runs_root):
    process = start("run", notebook(REPLY_IS_LOST))
    kernel = wait_for(lambda: ready(runs_root))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert only_run().verdict() == ("preempted", 'cell 4 of 4 ("Small"): stopped by SIGTERM')
    assert not process_exists(kernel)


def test_a_stop_is_written_down_though_the_cell_ends_before_the_next_tick():
    written = []
    with StopSignals(60.0, written.append) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        while stop.received is None:
            time.sleep(0.01)
    assert [request["signal"] for request in written] == ["SIGTERM"]


def test_the_reason_of_a_stop_is_known_while_the_kernel_is_still_ending(notebook, start, runs_root):
    """A scheduler may kill everything before a slow kernel has gone."""
    slow_end = f"import atexit, time\natexit.register(time.sleep, 600)\n{READY}\ntime.sleep(600)"
    process = start("run", notebook(slow_end))
    wait_for(lambda: ready(runs_root))
    run = only_run()
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: run.manifest["stop"])
    assert run.manifest["status"] == "running"
    kernel = run.manifest["kernel"]["pid"]
    process.kill()
    process.wait()
    assert run.verdict()[0] == "preempted"
    assert "stopped by SIGTERM, then ended before it could say more" in run.verdict()[1]
    with contextlib.suppress(ProcessLookupError):  # it goes when it notices that its runner has
        os.kill(kernel, signal.SIGKILL)


def test_a_kernel_whose_sockets_do_not_close_ends_by_itself(notebook):
    """Nobody has to end it: ten seconds later the client would send SIGTERM."""
    stuck = (
        "import signal\nfrom functools import partial\nfrom time import sleep\n"
        "from ipykernel.kernelapp import IPKernelApp\n"
        "signal.signal(signal.SIGTERM, lambda *_, touch=(run.path / 'terminated').touch: touch())\n"
        "IPKernelApp.instance().reset_io = partial(sleep, 600)  # the first thing it does in the end"
    )
    ends = "import atexit\natexit.register((run.path / 'ended').touch)"
    assert cli.main(["run", str(notebook(stuck, ends, RECORD))]) == 0
    run = only_run()
    assert (run.path / "ended").is_file(), "exit handlers of the cells are not cut short"
    assert not (run.path / "terminated").exists()


def test_a_signal_while_the_kernel_starts_stops_before_the_first_cell(notebook, start, runs_root):
    process = start("run", notebook(READY))
    wait_for(lambda: list(runs_root.glob("*/01_small.ipynb")))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert only_run().status == "preempted"
    assert not ready(runs_root)


def test_a_runner_that_vanishes_is_shown_as_killed_and_can_be_resumed(notebook, start, runs_root):
    body = f"import time, os\n{READY}\ntime.sleep(0 if run.manifest['attempts'] else 60)\n"
    process = start("run", notebook(body + "with open(run.path / 'pids', 'a') as f: f.write('x')", RECORD))
    kernel = wait_for(lambda: ready(runs_root))
    process.kill()
    process.wait()
    run = only_run()
    assert run.manifest["status"] == "running"
    status, why = run.verdict()
    assert status == "killed"
    assert "is gone (last seen" in why
    assert cli.main(["run", "--resume", run.path.name]) == 0, "the old kernel is waited for"
    assert not process_exists(kernel)
    assert run.status == "done"
    assert [attempt["status"] for attempt in run.manifest["attempts"]] == ["killed"]
    assert (run.path / "pids").read_text() == "x", "only one kernel got so far"


def test_papermill_with_the_engine_checks_parameters_before_the_kernel(notebook, tmp_path):
    path, out = notebook(RECORD), tmp_path / "out.ipynb"
    with pytest.raises(ArcnbError, match=r"01_small.ipynb has no parameter 'lable'; did you mean 'label'\?"):
        papermill.execute_notebook(path, out, {"lable": "y"}, engine_name="arcnb", progress_bar=False)
    with pytest.raises(ArcnbError, match=r"parameter 'n' must be int \(default 3\), got 'many' of type str"):
        papermill.execute_notebook(path, out, {"n": "many"}, engine_name="arcnb", progress_bar=False)
    assert list_runs() == [], "no kernel was started for nothing"
    papermill.execute_notebook(path, out, {"n": 4}, engine_name="arcnb", progress_bar=False)
    assert only_run().manifest["outcome"] == {"n": 4}
    assert only_run().copy_path.is_file()
    assert statuses(out) == ["completed"] * 4


def test_papermill_with_the_engine_raises_for_a_dead_kernel_and_says_its_exit_code(notebook, tmp_path):
    path = notebook("import os; os._exit(3)")
    with pytest.raises(RunStopped, match="the kernel died: its process ended with exit code 3"):
        papermill.execute_notebook(path, tmp_path / "out.ipynb", engine_name="arcnb", progress_bar=False)
    status, why = only_run().verdict()
    assert status == "killed"
    assert "exit code 3" in why


def test_plain_papermill_leaves_a_run_too(notebook, tmp_path):
    program = Path(sys.executable).with_name("papermill")
    path = notebook(RECORD)
    command = [program, path.name, tmp_path / "out.ipynb", "-p", "n", "4", "--no-progress-bar"]
    subprocess.run(command, cwd=path.parent, check=True, capture_output=True)
    run = only_run()
    assert run.name == "01_small"
    assert run.manifest["notebook"] == notebook_record(path)
    assert run.status == "done"
    assert run.manifest["parameters"] == {"n": 4, "seconds": 0.0, "label": "x"}
    assert run.manifest["outcome"] == {"n": 4}


def test_plain_papermill_leaves_a_failed_run(notebook, tmp_path):
    with pytest.raises(PapermillExecutionError):
        papermill.execute_notebook(notebook("1 / 0"), tmp_path / "out.ipynb", progress_bar=False)
    status, why = only_run().verdict()
    assert status == "failed"
    assert "ZeroDivisionError" in why


def test_output_of_a_running_cell_is_on_disk_before_it_ends(notebook, start, runs_root):
    process = start(
        "run", notebook(f"import time\nprint('early')\n{READY}\nfor _ in range(600):\n    time.sleep(.1)")
    )
    wait_for(lambda: ready(runs_root))
    copy = only_run().copy_path
    nbformat.validate(nbformat.read(copy, as_version=4))
    assert statuses(copy)[-1] == "running"
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=120)
    assert "early" in copy.read_text()


def test_streams_are_kept_as_a_terminal_shows_them_and_long_lines_cost_nothing(notebook):
    loop = "for i in range(5):\n    print(f'\\r{i}/5', end='', flush=True); time.sleep(0.3)\nprint()"
    path = notebook(f"import sys, time\n{loop}", "print('x' * 300_000)\nprint('err', file=sys.stderr)")
    began = time.process_time()
    assert cli.main(["run", str(path)]) == 0
    assert time.process_time() - began < 10
    first, second = nbformat.read(only_run().copy_path, as_version=4).cells[-2:]
    assert [output.text for output in first.outputs] == ["4/5\n"]
    assert {output.name: len(output.text) for output in second.outputs} == {"stdout": 300_001, "stderr": 4}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_after_the_last_cell_is_only_noted(notebook, monkeypatch, number):
    """And until the end is in the manifest the heart beats: others take a run without that for dead."""

    def stopped_meanwhile(record):
        beats.append(read_heartbeat(record.run.path))
        os.kill(os.getpid(), number)
        write_copies(record)

    beats, write_copies = [], journal.RunRecord.write_copies
    monkeypatch.setattr(journal.RunRecord, "write_copies", stopped_meanwhile)
    before = signal.signal(number, lambda *_: None)  # what it does now would end the tests
    try:
        assert cli.main(["run", str(notebook(RECORD))]) == 0
    finally:
        signal.signal(number, before)
    run = only_run()
    assert run.status == "done"
    assert run.manifest["stop"]["signal"] == number.name
    assert beats[0] is not None
    assert read_heartbeat(run.path) is None


def test_the_heart_beats_while_the_kernel_ends(notebook, start, runs_root):
    wait = "while not (folder / 'go').exists():\n        time.sleep(0.05)"
    ends = f"import atexit, time\ndef end(folder=run.path):\n    (folder / 'ends').touch()\n    {wait}"
    process = start("run", notebook(f"{ends}\natexit.register(end)", RECORD))
    wait_for(lambda: list(runs_root.glob("*/ends")))
    run = only_run()
    assert read_heartbeat(run.path) is not None
    assert run.manifest["status"] == "running"
    (run.path / "go").touch()
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert run.status == "done"
    assert read_heartbeat(run.path) is None


def test_ctrl_c_around_the_engine_says_where_it_came(notebook, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(papermill, "execute_notebook", interrupted)
        assert cli.main(["run", str(notebook(RECORD))]) == 130
    assert only_run().verdict() == ("preempted", "interrupted before the notebook started")
    assert "arcnb: interrupted before the notebook started\n" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(files, "sign", interrupted)
        assert cli.main(["run", "--resume", str(only_run())]) == 130
    assert only_run().status == "done"
    assert "arcnb: interrupted after the notebook had ended\n" in capsys.readouterr().err


@pytest.mark.parametrize("limited", [False, True])
def test_no_output_is_dropped_however_much_a_cell_shows_at_once(notebook, monkeypatch, limited):
    """ZeroMQ drops what goes beyond a thousand messages, where the reader is slower than the cell. Ours takes
    all of them; the cell waits for one that does not."""
    n, much = 3000, 3000
    one = f"display(HTML(f'<p>{{i:{much}}}'))"
    shows = f"from IPython.display import HTML, display\nfor i in range({n}):\n    {one}"
    process_message = execute.ArcnbClient.process_message

    def read_when_all_is_shown(self, msg, cell, index):
        if msg["msg_type"] == "display_data" and not limited:
            wait_for((self.record.run.path / "shown").exists)
        return process_message(self, msg, cell, index)

    monkeypatch.setattr(execute.ArcnbClient, "process_message", read_when_all_is_shown)
    if limited:
        monkeypatch.setattr(execute, "UnlimitedClient", AsyncKernelClient)
    assert cli.main(["run", str(notebook(f"{shows}\n(run.path / 'shown').touch()", RECORD))]) == 0
    run = only_run()
    outputs = nbformat.read(run.copy_path, as_version=4).cells[3].outputs
    assert [output.data["text/html"] for output in outputs] == [f"<p>{i:{much}}" for i in range(n)]
    assert run.manifest["lost_outputs"] is None


def test_outputs_that_do_not_come_are_noted_and_the_run_goes_on(notebook, monkeypatch, capsys):
    monkeypatch.setattr(execute, "SILENT_SECONDS", 0.5)
    silent = (
        "get_ipython().kernel._publish_status = lambda *_, **__: None  # which says that a cell has ended"
    )
    assert cli.main(["run", str(notebook(silent, RECORD))]) == 0
    run = only_run()
    assert run.manifest["lost_outputs"][0] == 4
    assert run.manifest["outcome"] == {"n": 3}
    assert "what this cell showed last is lost" in run.page_path.read_text()
    capsys.readouterr()
    assert cli.main(["show", str(run)]) == 0
    assert "the last ones of cell 4" in capsys.readouterr().out
