"""When a program is late, by a clock and a processor that the test moves."""

from types import SimpleNamespace

import pytest

from arcnb.programs import wire
from arcnb.programs.sandbox import time_limits
from arcnb.programs.sandbox.time_limits import EXIT_SECONDS, SLOW, ProgressPage, Watch

ORDERS = wire.Orders(wire.ALONE, 1, 2.0, 0.5, 0.0, 0.0, 64, 1000, 0)  # 2 s, half a second an input
NAN = float("nan")


@pytest.fixture
def clocks(monkeypatch):
    """What the clock says, and the processor time of the program."""
    now = SimpleNamespace(clock=100.0, used=0.0)
    sleep = lambda seconds: vars(now).update(clock=now.clock + seconds)  # noqa: E731
    monkeypatch.setattr(time_limits, "time", SimpleNamespace(monotonic=lambda: now.clock, sleep=sleep))
    monkeypatch.setattr(time_limits, "processor_time", lambda pid: now.used)
    monkeypatch.setattr(time_limits, "_monotonic", lambda: now.clock)  # the child's
    monkeypatch.setattr(time_limits, "_process_time", lambda: now.used)
    return now


def begun(orders=ORDERS):
    """The watch of a program that has just begun with an input."""
    page = ProgressPage()
    watch = Watch(orders, 3, page)
    page.note(1)
    return watch


@pytest.mark.parametrize(
    ("passed", "used", "late"),
    [
        (0.49, 0.49, None),
        (0.50, 0.50, "input 1 of 3 took longer than 0.5 s"),
        (1.49, 0.49, None),  # a busy machine had no processor for it two thirds of the time
        (1.50, 0.10, "input 1 of 3 took longer than 1.5 s by the clock"),
    ],
)
def test_a_verdict_does_not_depend_on_what_else_the_machine_does(clocks, passed, used, late):
    watch = begun()
    clocks.clock, clocks.used = clocks.clock + passed, clocks.used + used
    assert watch.look(1)[1] == (late and ("timeout", "Timeout", late))


def test_the_next_look_is_not_after_the_limit(clocks):
    watch = begun()
    assert watch.first_look == 0.5
    clocks.clock, clocks.used = clocks.clock + 0.5, 0.2
    assert watch.look(1) == (pytest.approx(0.3), None), "of its 0.5 s it has used 0.2"
    clocks.clock, clocks.used = clocks.clock + 0.9, 0.25
    assert watch.look(1) == (pytest.approx(0.1), None), "1.4 of 1.5 s by the clock"


def test_all_inputs_together_have_a_limit_too(clocks):
    page = ProgressPage()
    watch = Watch(ORDERS, 9, page)
    for number in range(1, 6):
        page.note(number)
        clocks.clock, clocks.used = clocks.clock + 0.4, clocks.used + 0.4
        late = watch.look(1)[1]
        assert late == (("timeout", "Timeout", "the program took longer than 2 s") if number == 5 else None)


@pytest.mark.parametrize("began", [1e9, 1.0, NAN])
def test_a_forged_clock_wins_no_more_than_the_limit_for_the_whole(clocks, began):
    page = ProgressPage()
    watch = Watch(ORDERS, 3, page)
    time_limits._pack(page, 0, 1, began, 0.0)
    clocks.clock, clocks.used = clocks.clock + 1.99, 1.99
    assert watch.look(1)[1] is None
    clocks.clock, clocks.used = clocks.clock + 0.01, 2.0
    assert watch.look(1)[1] == ("timeout", "Timeout", "the program took longer than 2 s")


@pytest.mark.parametrize("used", [50.0, -1.0, NAN])
def test_forged_processor_time_wins_no_more_than_a_program_that_sleeps_has(clocks, used):
    page = ProgressPage()
    watch = Watch(ORDERS, 3, page)
    time_limits._pack(page, 0, 1, clocks.clock, used)
    clocks.clock, clocks.used = clocks.clock + 1.49, 1.49
    assert watch.look(1) == (pytest.approx(0.01), None)
    clocks.clock, clocks.used = clocks.clock + 0.01, 1.5
    assert watch.look(1)[1] == ("timeout", "Timeout", "input 1 of 3 took longer than 1.5 s by the clock")


def test_patience_ends_before_a_limit(clocks):
    watch = begun(ORDERS._replace(patience=0.015, wall_patience=0.03))
    clocks.clock, clocks.used = clocks.clock + 0.029, 0.014
    assert watch.look(1) == (pytest.approx(0.001), None)
    clocks.clock += 0.001
    assert watch.look(1)[1] == SLOW


@pytest.mark.parametrize("works", [False, True])
def test_a_child_that_closes_its_pipe_and_goes_on_is_waited_for_a_moment(clocks, monkeypatch, works):
    began = clocks.clock
    monkeypatch.setattr(time_limits.os, "waitid", lambda *given: None)  # it has not ended
    monkeypatch.setattr(time_limits, "processor_time", lambda pid: works * (clocks.clock - began))
    status, kind, _ = begun().after_closed_pipe(1)
    assert (status, kind) == ("crashed", "ClosedPipe")
    assert clocks.clock - began < (0.01 if works else EXIT_SECONDS + 0.01)
