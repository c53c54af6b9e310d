"""The progress bar in its three places."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace

import pytest

import arcnb.machine.progress as module
from arcnb.machine.progress import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves; the bar goes by it."""
    time = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("tqdm.std.time", lambda: time.now)
    return time


def test_a_log_gets_whole_lines_and_few(capsys, clock):
    with progress(None, "judging", total=1000, unit="task") as bar:
        for _ in range(1000):
            clock.now += 1.0
            bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "judging: 5/1,000 tasks (0%) · 1/s · 5.0 s so far · 16:35 left"
    assert lines[-1] == "judging: 1,000 tasks in 16:40 · 1/s"
    assert 20 < len(lines) < 80, "lines grow rarer"
    assert not any("\r" in line for line in lines)


def test_short_work_is_not_worth_a_line(capsys, clock):
    assert list(progress(range(3), "quick")) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_a_limit_that_was_not_reached_is_no_failure(capsys, clock):
    with progress(None, "tasks", total=40, unit="task") as bar:
        clock.now += 12
        bar.update(3)
    assert capsys.readouterr().err.splitlines()[-1] == "tasks: 3 of at most 40 tasks in 0:12 · 0.25/s"


def test_an_exception_shows_where_it_stopped(capsys, clock):
    with contextlib.suppress(KeyError), progress(None, "judging", total=10, unit="task") as bar:
        clock.now += 12
        bar.update(4)
        raise KeyError
    assert capsys.readouterr().err.splitlines()[-1] == "judging: stopped at 4/10 tasks after 0:12 · 0.333/s"


def test_slow_items_and_resumed_work(capsys, clock):
    with progress(None, "training", total=10, unit="step", done=6) as bar:
        clock.now += 40
        bar.update(2)
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "training: 8/10 steps (80%) · 20 s each · 0:40 so far · 0:40 left"


def test_fast_work_has_a_plain_rate(capsys, clock):
    with progress(None, "measuring", unit="task") as bar:
        clock.now += 10
        bar.update(22_000)
    assert capsys.readouterr().err.splitlines()[-1] == "measuring: 22,000 tasks in 0:10 · 2,200/s"


def test_unknown_totals_count_up(capsys, clock):
    def items():
        for number in range(3):
            clock.now += 10
            yield number

    assert list(progress(items(), "reading", unit="row")) == [0, 1, 2]
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "reading: 3 rows in 0:30 · 0.1/s"


def test_a_notebook_keeps_one_output(monkeypatch, clock):
    shown = []

    class Handle:
        def update(self, data, raw):
            shown[-1] = data

    def display(data, raw, display_id):
        shown.append(data)
        return Handle()

    fake = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=1), display=SimpleNamespace(display=display)
    )
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", fake.display)
    assert module._place() == "notebook"
    for _ in progress(range(40), "judging <x>", unit="task"):
        clock.now += 1
    assert len(shown) == 1
    assert shown[0]["text/plain"] == "judging <x>: 40 tasks in 0:40 · 1/s"
    assert "judging &lt;x&gt;" in shown[0]["text/html"]
    assert 'value="40" max="40"' in shown[0]["text/html"]


def shown_on_a_terminal(columns: int) -> str:
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    script = "from arcnb.machine.progress import progress\n"
    script += "for _ in progress(range(5), 'judging', unit='task'): pass"
    subprocess.run([sys.executable, "-c", script], stderr=secondary, check=True)
    os.write(secondary, b"end")
    shown = ""
    while not shown.endswith("end"):
        shown += os.read(primary, 10_000).decode()
    os.close(secondary)
    os.close(primary)
    return shown


def test_a_terminal_gets_a_bar():
    shown = shown_on_a_terminal(80)
    assert "judging: 100%" in shown
    assert "5/5" in shown
    assert shown_on_a_terminal(0) == "end", "without columns there is no room for a bar"
