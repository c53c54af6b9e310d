"""Starts that another process's port stops."""

import itertools
import os
import socket
import subprocess
import sys

import pytest

from arcnb.machine import starts
from arcnb.machine.starts import TRIES, free_port, tried_again

TAKEN = [
    OSError(98, "Address already in use"),
    RuntimeError("The server socket has failed to listen. port: 29500, code: -98, name: EADDRINUSE"),
]


def failing(*errors):
    left = list(errors)

    def start():
        if left:
            raise left.pop(0)
        return free_port()

    return start


@pytest.mark.parametrize("error", TAKEN)
def test_a_port_that_was_taken_meanwhile_is_chosen_anew(error):
    assert tried_again(failing(*[error] * (TRIES - 1))) > 0
    with pytest.raises(type(error)):
        tried_again(failing(*[error] * TRIES))


def test_what_is_no_bad_luck_is_not_tried_again():
    with pytest.raises(ValueError, match="no such model"):
        tried_again(failing(ValueError("no such model")))


def test_connections_are_not_given_the_ports_that_are_listened_on_later():
    assert all(1024 <= free_port() < 32768 for _ in range(20))  # Linux's first one


def test_processes_that_start_together_choose_different_ports():
    code = "from arcnb.machine.starts import free_port; print(free_port(), free_port())"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
    said = [list(map(int, one.communicate()[0].split())) for one in started]
    ports = [port for two in said for port in two]
    assert len(set(ports)) == 8, said


def test_a_port_that_is_listened_on_is_left_out_on_any_address(monkeypatch):
    expected = starts.FIRST_PORT + (os.getpid() * starts.PORTS_A_PROCESS + 5) % 20_000
    monkeypatch.setattr(starts, "_looked_at", itertools.count(5))
    with socket.create_server(("127.0.0.1", expected)):
        assert len({expected, free_port(), free_port()}) == 3
