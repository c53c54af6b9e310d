"""Starts that another process's port stops."""

import pytest

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
