"""Starts that bad luck can break: another process takes the port between its choice and its use."""

import itertools
import os
import re
import socket
from collections.abc import Callable
from typing import TypeVar

from arcnb.errors import ArcnbError

Started = TypeVar("Started")

TRIES = 3
FIRST_PORT, LAST_PORT = 10_000, 30_000  # the second is behind the last
PORTS_A_PROCESS = 16
_looked_at = itertools.count()
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
    """A TCP port of this machine that nobody uses at the moment, and that nobody is likely to take soon.

    It lies below the ports that Linux (from 32768) and macOS (from 49152) give to connections of their own
    accord: an engine listens on it a minute later, when other runs have opened hundreds. Processes that start
    together look in different places, and no process is given a port twice.
    """
    for _ in range(LAST_PORT - FIRST_PORT):
        place = os.getpid() * PORTS_A_PROCESS + next(_looked_at)
        port = FIRST_PORT + place % (LAST_PORT - FIRST_PORT)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:  # taken, on this or that address
                continue
            return port
    raise ArcnbError(f"all TCP ports from {FIRST_PORT} to {LAST_PORT - 1} are taken")
