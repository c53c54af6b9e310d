"""What spawned processes inherit is changed for those of one thread only."""

import multiprocessing
import os
import sys
import tempfile
import threading

import pytest

from arcnb.models.sampling.engine_spawn import spawning

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="as the engines")


def say(connection):
    """Prints the variable, and sends it."""
    os.write(1, b"to stdout\n")
    os.write(2, b"to stderr\n")
    connection.send(os.environ.get("ARCNB_TEST_SPAWN"))


def spawned() -> str | None:
    """What a spawned process says of its environment, through a pipe that it inherits."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=say, args=(there,))
    process.start()
    assert here.poll(60)
    process.join()
    assert process.exitcode == 0
    return here.recv()


def test_only_what_this_thread_spawns_has_the_variables_and_the_output(capfd):
    inherited = []
    with tempfile.TemporaryFile() as log:
        with spawning({"ARCNB_TEST_SPAWN": "mine"}, log.fileno()):
            other = threading.Thread(target=lambda: inherited.append(spawned()))
            other.start()
            inherited.append(spawned())
            other.join()
            assert "ARCNB_TEST_SPAWN" not in os.environ
        log.seek(0)
        assert log.read() == b"to stdout\nto stderr\n"
    assert sorted(inherited, key=str) == [None, "mine"]
    assert capfd.readouterr() == ("to stdout\n", "to stderr\n")
    assert spawned() is None


def test_blocks_of_two_threads_come_one_after_the_other():
    order = []

    def second():
        with tempfile.TemporaryFile() as log, spawning({"ARCNB_TEST_SPAWN": "second"}, log.fileno()):
            order.append(spawned())

    with tempfile.TemporaryFile() as log, spawning({"ARCNB_TEST_SPAWN": "first"}, log.fileno()):
        other = threading.Thread(target=second)
        other.start()
        other.join(0.3)
        order.append(spawned())
    other.join()
    assert order == ["first", "second"]
    assert spawned() is None
