"""Starts that bad luck can break: another process takes the port between its choice and its use."""

import re
import socket
from collections.abc import Callable
from typing import TypeVar

Started = TypeVar("Started")

TRIES = 3
_TAKEN = re.compile(r"EADDRINUSE|address (?:is )?already in use", re.I)


def tried_again(start: Callable[[], Started]) -> Started:
    """What `start` returns. It is called again, TRIES times in all, where its error says that a port was
    taken; `start` chooses a new port each time, and leaves nothing where it fails."""
    for _ in range(TRIES - 1):
        try:
            return start()
        except (OSError, RuntimeError, ValueError) as error:
            if not _TAKEN.search(str(error)):
                raise
    return start()


def free_port() -> int:
    """A TCP port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
