"""The tests' own helpers, where a mistake would make other tests wait or pass in vain."""

import threading
import time

import pytest

from tests.lab.watching import interrupted_when, meanwhile, wait_for


@pytest.mark.timeout(30)
def test_a_helper_that_fails_ends_what_waits_for_it_and_is_what_is_raised():
    def give_up():
        wait_for(lambda: False, 0.1)

    with pytest.raises(AssertionError, match="still not after"), meanwhile(give_up):
        time.sleep(60)


def test_a_helper_that_fails_behind_the_block_interrupts_nobody():
    go, gone = threading.Event(), threading.Event()

    def give_up():
        go.wait(20)
        try:
            raise ValueError
        finally:
            gone.set()

    with meanwhile(give_up):
        pass
    go.set()
    assert gone.wait(20)
    time.sleep(0.2)


def test_a_block_that_is_over_is_not_interrupted_any_more():
    go, went = threading.Event(), threading.Event()
    with interrupted_when(lambda: go.wait(20) and (went.set() or True)):
        pass
    go.set()
    assert went.wait(20)
    time.sleep(0.2)


@pytest.mark.timeout(30)
def test_a_block_is_interrupted_when_something_is_ready():
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: time.monotonic() > began + 0.2):
        time.sleep(60)
