"""The end of a kernel's process, bounded in time.

ipykernel (7.4 here; positron #7142) closes its sockets in an order that can block for ever: its control
thread wakes the output thread when that has just gone. About one kernel in twenty hung on two loaded cores,
and the runner waited 10 to 20 seconds for nothing, longer than some schedulers wait before they kill.
"""

import atexit
import os
import threading

SOCKET_SECONDS = 4.0  # what closing the sockets may take; it takes milliseconds

# What the engine has a kernel do before its first cell.
STATEMENT = f"__import__({__name__!r}, fromlist=['bound_end']).bound_end()"


def bound_end() -> None:
    """Let this process end SOCKET_SECONDS after the exit handlers of what it ran.

    Exit handlers run in the reverse order of their registration: those of the cells come before this one,
    the kernel's own after it.
    """
    atexit.register(_start_timer)


def _start_timer() -> None:
    timer = threading.Timer(SOCKET_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()
